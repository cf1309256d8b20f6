//! What tells how a job communicates, and why: the one place to add a launcher,
//! an operator or a CI system.
//!
//! Rows are tried in their order: programs, images, variables, labels, owners,
//! then the job's name. What starts the job says the most, a name the least.

use nvlink_topology::Pattern;

use super::sizes::Dimension;

/// What a row says of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Ranks that train one model: a ring of gradients, and what the sizes say.
    Train,
    /// Servers of one GPU each, unless the sizes say that they share a model.
    Serve,
    /// One server whose model lies on all GPUs, unless the sizes say fewer.
    ServeWhole,
    /// This pattern, whatever the sizes.
    Always(Pattern),
}

/// A program, by name and perhaps first argument.
pub(super) struct Program {
    /// Its names; a Python module is a name as well.
    pub(super) names: &'static [&'static str],
    /// First arguments, one of which must be there; empty: any.
    pub(super) then: &'static [&'static str],
    /// Starts other programs, which say more than itself.
    pub(super) starts_others: bool,
    pub(super) meaning: Meaning,
    pub(super) why: &'static str,
}

const fn program(names: &'static [&'static str], meaning: Meaning, why: &'static str) -> Program {
    Program {
        names,
        then: &[],
        starts_others: false,
        meaning,
        why,
    }
}

pub(super) const PROGRAMS: &[Program] = &[
    // Benchmarks are told by their names, whatever starts them.
    program(
        &[
            "all_reduce_perf",
            "all_gather_perf",
            "reduce_scatter_perf",
            "broadcast_perf",
            "reduce_perf",
        ],
        Meaning::Always(Pattern::AllReduce),
        "nccl-tests measures a ring",
    ),
    program(
        &["alltoall_perf"],
        Meaning::Always(Pattern::AllToAll),
        "nccl-tests measures all pairs",
    ),
    program(
        &["sendrecv_perf"],
        Meaning::Always(Pattern::Pipeline),
        "nccl-tests measures neighbours",
    ),
    program(
        &["gather_perf", "scatter_perf"],
        Meaning::Always(Pattern::ParameterServer),
        "nccl-tests measures a star",
    ),
    Program {
        then: &["serve"],
        ..program(
            &["vllm"],
            Meaning::Serve,
            "each model lies on as many GPUs as its flags say",
        )
    },
    program(
        &[
            "vllm.entrypoints.openai.api_server",
            "vllm.entrypoints.api_server",
            "vllm.entrypoints.cli.main",
        ],
        Meaning::Serve,
        "each model lies on as many GPUs as its flags say",
    ),
    program(
        &["sglang.launch_server"],
        Meaning::Serve,
        "each model lies on as many GPUs as its flags say",
    ),
    Program {
        then: &["serve"],
        ..program(
            &["sglang"],
            Meaning::Serve,
            "each model lies on as many GPUs as its flags say",
        )
    },
    program(
        &["trtllm-serve"],
        Meaning::Serve,
        "each model lies on as many GPUs as its flags say",
    ),
    Program {
        then: &["serve"],
        ..program(
            &["lmdeploy"],
            Meaning::Serve,
            "each model lies on as many GPUs as its flags say",
        )
    },
    program(
        &["tritonserver"],
        Meaning::Serve,
        "each model instance has a GPU of its own",
    ),
    program(
        &["text-generation-launcher"],
        Meaning::ServeWhole,
        "it spreads one model over every GPU that it sees",
    ),
    // Launchers of training: the gradients of all ranks are summed each step.
    // DeepSpeed's ZeRO and FSDP gather and scatter in the same ring.
    program(
        &[
            "torchrun",
            "torch.distributed.run",
            "torch.distributed.launch",
        ],
        Meaning::Train,
        "data parallel ranks sum their gradients",
    ),
    Program {
        then: &["launch"],
        ..program(
            &["accelerate"],
            Meaning::Train,
            "data parallel ranks sum their gradients",
        )
    },
    program(
        &["accelerate.commands.launch"],
        Meaning::Train,
        "data parallel ranks sum their gradients",
    ),
    program(
        &[
            "deepspeed",
            "deepspeed.launcher.runner",
            "deepspeed.launcher.launch",
            "deepy.py",
        ],
        Meaning::Train,
        "ZeRO gathers and scatters in a ring",
    ),
    program(
        &["horovodrun", "horovod.runner"],
        Meaning::Train,
        "Horovod is a ring all-reduce",
    ),
    program(
        &["composer"],
        Meaning::Train,
        "data parallel ranks sum their gradients",
    ),
    Program {
        then: &["run"],
        ..program(
            &["colossalai", "fabric", "lightning"],
            Meaning::Train,
            "data parallel ranks sum their gradients",
        )
    },
    Program {
        starts_others: true,
        ..program(
            &["mpirun", "mpiexec", "orterun", "mpiexec.hydra"],
            Meaning::Train,
            "ranks under MPI mostly sum gradients",
        )
    },
];

/// Images whose entry point serves, in pods that give only arguments.
pub(super) const IMAGES: &[(&str, Meaning, &str)] = &[
    (
        "vllm/vllm-openai",
        Meaning::Serve,
        "the image serves models, on as many GPUs as its flags say",
    ),
    (
        "lmsysorg/sglang",
        Meaning::Serve,
        "the image serves models, on as many GPUs as its flags say",
    ),
    (
        "/text-generation-inference",
        Meaning::ServeWhole,
        "the image spreads one model over every GPU that it sees",
    ),
    (
        "nvcr.io/nim/",
        Meaning::ServeWhole,
        "the image spreads one model over every GPU that it sees",
    ),
    (
        "/tritonserver",
        Meaning::Serve,
        "each model instance has a GPU of its own",
    ),
];

/// Variables of images that have no flags.
pub(super) const SIZE_VARIABLES: &[(&str, Dimension)] = &[
    ("NUM_SHARD", Dimension::Tensor),
    ("NIM_TENSOR_PARALLEL_SIZE", Dimension::Tensor),
    ("NIM_PIPELINE_PARALLEL_SIZE", Dimension::Pipeline),
];

/// Variables that an operator or a framework sets: name, what their value
/// must contain, the pattern, and why.
pub(super) const VARIABLES: &[(&str, &str, Pattern, &str)] = &[
    (
        "TF_CONFIG",
        "\"ps\"",
        Pattern::ParameterServer,
        "TF_CONFIG lists parameter servers",
    ),
    (
        "DMLC_PS_ROOT_URI",
        "",
        Pattern::ParameterServer,
        "MXNet and BytePS talk to parameter servers",
    ),
    (
        "VC_PS_NUM",
        "",
        Pattern::ParameterServer,
        "the Volcano job has parameter servers",
    ),
    (
        "TF_CONFIG",
        "\"worker\"",
        Pattern::AllReduce,
        "TF_CONFIG lists workers and no parameter server",
    ),
    (
        "PET_NPROC_PER_NODE",
        "",
        Pattern::AllReduce,
        "the operator starts torchrun, whose ranks sum their gradients",
    ),
];

/// A label or annotation that an operator writes.
pub(super) struct Mark {
    pub(super) key: &'static str,
    /// Its value; empty: any.
    pub(super) value: &'static str,
    pub(super) pattern: Pattern,
    /// It says what the job is, not how it communicates.
    pub(super) guess: bool,
    /// The job has other pods.
    pub(super) spans: bool,
    pub(super) why: &'static str,
}

const fn mark(key: &'static str, value: &'static str, pattern: Pattern, why: &'static str) -> Mark {
    Mark {
        key,
        value,
        pattern,
        guess: false,
        spans: true,
        why,
    }
}

const fn hint(key: &'static str, value: &'static str, pattern: Pattern, why: &'static str) -> Mark {
    Mark {
        guess: true,
        ..mark(key, value, pattern, why)
    }
}

pub(super) const MARKS: &[Mark] = &[
    mark(
        "training.kubeflow.org/replica-type",
        "ps",
        Pattern::ParameterServer,
        "a parameter server of Kubeflow",
    ),
    mark(
        "volcano.sh/task-spec",
        "ps",
        Pattern::ParameterServer,
        "a parameter server of a Volcano job",
    ),
    mark(
        "training.kubeflow.org/operator-name",
        "pytorchjob-controller",
        Pattern::AllReduce,
        "a PyTorchJob's ranks sum their gradients",
    ),
    mark(
        "training.kubeflow.org/operator-name",
        "mpijob-controller",
        Pattern::AllReduce,
        "an MPIJob is mostly a ring all-reduce",
    ),
    mark(
        "training.kubeflow.org/operator-name",
        "mpi-operator",
        Pattern::AllReduce,
        "an MPIJob is mostly a ring all-reduce",
    ),
    mark(
        "training.kubeflow.org/operator-name",
        "jaxjob-controller",
        Pattern::AllReduce,
        "a JAXJob's ranks sum their gradients",
    ),
    mark(
        "training.kubeflow.org/operator-name",
        "paddlejob-controller",
        Pattern::AllReduce,
        "a PaddleJob's ranks sum their gradients",
    ),
    mark(
        "training.kubeflow.org/operator-name",
        "xgboostjob-controller",
        Pattern::AllReduce,
        "XGBoost sums histograms over all ranks",
    ),
    hint(
        "training.kubeflow.org/job-name",
        "",
        Pattern::AllReduce,
        "a training job of Kubeflow",
    ),
    hint(
        "trainer.kubeflow.org/trainjob-ancestor-step",
        "trainer",
        Pattern::AllReduce,
        "a TrainJob of Kubeflow",
    ),
    hint(
        "leaderworkerset.sigs.k8s.io/name",
        "",
        Pattern::AllToAll,
        "a LeaderWorkerSet mostly splits one model over its pods",
    ),
    // Servers first: a RayService is a Ray cluster as well.
    hint(
        "ray.io/originated-from-crd",
        "RayService",
        Pattern::AllToAll,
        "GPUs of one Ray Serve pod mostly share a model",
    ),
    hint(
        "ray.io/node-type",
        "",
        Pattern::AllReduce,
        "Ray says nothing of how its tasks communicate; most train",
    ),
    hint(
        "jobset.sigs.k8s.io/jobset-name",
        "",
        Pattern::AllReduce,
        "a JobSet says nothing of how it communicates; most train",
    ),
    hint(
        "volcano.sh/job-name",
        "",
        Pattern::AllReduce,
        "a Volcano job says nothing of how it communicates; most train",
    ),
    Mark {
        spans: false,
        ..hint(
            "serving.kserve.io/inferenceservice",
            "",
            Pattern::AllToAll,
            "GPUs of one server mostly share a model",
        )
    },
    Mark {
        spans: false,
        ..hint(
            "notebook-name",
            "",
            Pattern::AllReduce,
            "a notebook runs anything; most of several GPUs train",
        )
    },
];

/// Kinds of owners: pattern, whether that is a guess, whether the job has other pods, and why.
pub(super) const OWNERS: &[(&str, Pattern, bool, bool, &str)] = &[
    (
        "PyTorchJob",
        Pattern::AllReduce,
        false,
        true,
        "a PyTorchJob's ranks sum their gradients",
    ),
    (
        "MPIJob",
        Pattern::AllReduce,
        false,
        true,
        "an MPIJob is mostly a ring all-reduce",
    ),
    (
        "JAXJob",
        Pattern::AllReduce,
        false,
        true,
        "a JAXJob's ranks sum their gradients",
    ),
    (
        "PaddleJob",
        Pattern::AllReduce,
        false,
        true,
        "a PaddleJob's ranks sum their gradients",
    ),
    (
        "TFJob",
        Pattern::AllReduce,
        true,
        true,
        "a TFJob without parameter servers in TF_CONFIG",
    ),
    (
        "RayCluster",
        Pattern::AllReduce,
        true,
        true,
        "Ray says nothing of how its tasks communicate; most train",
    ),
    (
        "ReplicaSet",
        Pattern::AllToAll,
        true,
        false,
        "a Deployment serves, and GPUs of one server mostly share a model",
    ),
];

/// Where CI systems write a job's name: label or annotation, and the system.
pub(super) const NAMES: &[(&str, &str, &str)] = &[
    ("annotations", "job.runner.gitlab.com/name", "GitLab"),
    ("labels", "tekton.dev/pipelineTask", "Tekton"),
    ("labels", "tekton.dev/task", "Tekton"),
    ("labels", "tekton.dev/taskRun", "Tekton"),
    ("labels", "actions.github.com/scale-set-name", "ARC"),
];

/// Variables in which Buildkite writes a step's name.
pub(super) const NAME_VARIABLES: &[&str] = &["BUILDKITE_STEP_KEY", "BUILDKITE_LABEL"];

/// Parts of a job's name, between other characters than letters and digits.
pub(super) const NAME_WORDS: &[(&[&str], Pattern)] = &[
    (&["alltoall", "all2all", "moe"], Pattern::AllToAll),
    (
        &["allreduce", "ddp", "fsdp", "zero3", "horovod"],
        Pattern::AllReduce,
    ),
];

/// Labels by which a CI system is known that runs the job's script later, so
/// that the pod does not show it.
pub(super) const SILENT: &[(&str, &str)] = &[
    ("project.runner.gitlab.com/id", "GitLab's runner"),
    ("job.runner.gitlab.com/id", "GitLab's runner"),
    ("actions-ephemeral-runner", "ARC's runner"),
    ("actions.github.com/scale-set-name", "ARC's runner"),
    ("runner-pod", "ARC's runner"),
    ("buildkite.com/job-uuid", "Buildkite's agent"),
    ("tekton.dev/taskRun", "Tekton"),
];
