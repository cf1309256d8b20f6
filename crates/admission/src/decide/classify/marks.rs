//! Tables of the labels, annotations and owners that operators and CI systems set on pods, and what
//! they mean for the job. Add new operators and CI systems here.

use nvlink_topology::Pattern;

/// A label or annotation that an operator writes.
pub(super) struct Mark {
    pub(super) key: &'static str,
    /// Its value; empty: any.
    pub(super) value: &'static str,
    pub(super) pattern: Pattern,
    /// It shows what the job is, but not how it communicates.
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

/// The label on pods of mpi-operator, which starts ranks over ssh.
pub(super) const MPI_OPERATOR: (&str, &str) =
    ("training.kubeflow.org/operator-name", "mpi-operator");

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
        MPI_OPERATOR.0,
        MPI_OPERATOR.1,
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
        Pattern::AllReduce,
        "a LeaderWorkerSet mostly splits one model over its pods",
    ),
    // Servers come first, because a RayService is also a Ray cluster.
    hint(
        "ray.io/originated-from-crd",
        "RayService",
        Pattern::AllReduce,
        "GPUs of one Ray Serve pod mostly share a model",
    ),
    hint(
        "ray.io/node-type",
        "",
        Pattern::AllReduce,
        "Ray does not show how its tasks communicate; most train",
    ),
    hint(
        "jobset.sigs.k8s.io/jobset-name",
        "",
        Pattern::AllReduce,
        "a JobSet does not show how it communicates; most train",
    ),
    hint(
        "volcano.sh/job-name",
        "",
        Pattern::AllReduce,
        "a Volcano job does not show how it communicates; most train",
    ),
    Mark {
        spans: false,
        ..hint(
            "serving.kserve.io/inferenceservice",
            "",
            Pattern::AllReduce,
            "GPUs of one server mostly share a model",
        )
    },
    Mark {
        spans: false,
        ..hint(
            "notebook-name",
            "",
            Pattern::AllReduce,
            "a notebook can run anything; most with several GPUs train",
        )
    },
];

/// Owners by kind: the pattern, whether it is a guess, whether the job has other pods, and why.
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
        "Ray does not show how its tasks communicate; most train",
    ),
    (
        "ReplicaSet",
        Pattern::AllReduce,
        true,
        false,
        "a Deployment serves, and GPUs of one server mostly share a model",
    ),
];

/// Labels and annotations in which CI systems write a job's name, each with the system.
pub(super) const NAMES: &[(&str, &str, &str)] = &[
    ("annotations", "job.runner.gitlab.com/name", "GitLab"),
    ("labels", "tekton.dev/pipelineTask", "Tekton"),
    ("labels", "tekton.dev/task", "Tekton"),
    ("labels", "tekton.dev/taskRun", "Tekton"),
    ("labels", "actions.github.com/scale-set-name", "ARC"),
];

/// Variables in which Buildkite writes a step's name.
pub(super) const NAME_VARIABLES: &[&str] = &["BUILDKITE_STEP_KEY", "BUILDKITE_LABEL"];

/// Words in a job's name, separated by characters other than letters and digits.
pub(super) const NAME_WORDS: &[(&[&str], Pattern)] = &[
    (&["alltoall", "all2all", "moe"], Pattern::AllToAll),
    (
        &["allreduce", "ddp", "fsdp", "zero3", "horovod"],
        Pattern::AllReduce,
    ),
];

/// Labels of CI systems that run the job's script later, so that the pod does not contain it.
pub(super) const SILENT: &[(&str, &str)] = &[
    ("project.runner.gitlab.com/id", "GitLab's runner"),
    ("job.runner.gitlab.com/id", "GitLab's runner"),
    ("actions-ephemeral-runner", "ARC's runner"),
    ("actions.github.com/scale-set-name", "ARC's runner"),
    ("runner-pod", "ARC's runner"),
    ("buildkite.com/job-uuid", "Buildkite's agent"),
    ("tekton.dev/taskRun", "Tekton"),
];
