//! Tables of the programs and images that containers start, and how these communicate. Add new
//! launchers and images here. `marks` has the tables of operators and CI systems.
//!
//! The tables are tried in this order: programs, images, variables, labels, owners, then the job's
//! name. The program that starts the job is the best evidence, the name the weakest.

use nvlink_topology::Pattern;

use super::sizes::Dimension;

/// What a row means for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Ranks that train one model: a ring of gradients, and the pattern of the sizes.
    Train,
    /// Servers with one GPU each, unless the sizes show that GPUs share a model.
    Serve,
    /// As `Serve`, but data parallel ranks share the experts of a model with experts.
    ServeExperts,
    /// One server whose model is on all GPUs, unless the sizes are smaller.
    ServeWhole,
    /// Servers of one GPU each; those that one MPI job starts are the ranks of one model.
    ServeRanks,
    /// This pattern, whatever the sizes are.
    Always(Pattern),
}

/// A program, identified by its name and optionally its first argument.
pub(super) struct Program {
    /// Its names; a Python module counts as a name.
    pub(super) names: &'static [&'static str],
    /// First arguments, one of which is required; empty: any.
    pub(super) then: &'static [&'static str],
    /// It starts other programs, which are better evidence.
    pub(super) starts_others: bool,
    /// It starts one process, unless it is told otherwise.
    pub(super) one_process: bool,
    /// It passes [`LAUNCH_VARIABLES`] to torchrun.
    pub(super) reads_variables: bool,
    pub(super) meaning: Meaning,
    pub(super) why: &'static str,
}

const fn program(names: &'static [&'static str], meaning: Meaning, why: &'static str) -> Program {
    Program {
        names,
        then: &[],
        starts_others: false,
        one_process: false,
        reads_variables: false,
        meaning,
        why,
    }
}

/// A program that fine-tunes models, with the first arguments by which it trains.
const fn trains(names: &'static [&'static str], then: &'static [&'static str]) -> Program {
    Program {
        then,
        ..program(
            names,
            Meaning::Train,
            "data parallel ranks sum their gradients",
        )
    }
}

pub(super) const PROGRAMS: &[Program] = &[
    // Benchmarks are recognized by their names, whatever starts them.
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
            Meaning::ServeExperts,
            "each model uses as many GPUs as its flags say",
        )
    },
    program(
        &[
            "vllm.entrypoints.openai.api_server",
            "vllm.entrypoints.api_server",
            "vllm.entrypoints.cli.main",
        ],
        Meaning::ServeExperts,
        "each model uses as many GPUs as its flags say",
    ),
    program(
        &["dynamo.vllm"],
        Meaning::ServeExperts,
        "each model uses as many GPUs as its flags say",
    ),
    program(
        &["dynamo.sglang", "dynamo.trtllm"],
        Meaning::Serve,
        "each model uses as many GPUs as its flags say",
    ),
    program(
        &["sglang_router.launch_server"],
        Meaning::Serve,
        "each of its servers has a model of its own",
    ),
    program(
        &["sglang.launch_server"],
        Meaning::Serve,
        "each model uses as many GPUs as its flags say",
    ),
    Program {
        then: &["serve"],
        ..program(
            &["sglang"],
            Meaning::Serve,
            "each model uses as many GPUs as its flags say",
        )
    },
    program(
        &["trtllm-serve"],
        Meaning::Serve,
        "each model uses as many GPUs as its flags say",
    ),
    Program {
        then: &["serve"],
        ..program(
            &["lmdeploy"],
            Meaning::Serve,
            "each model uses as many GPUs as its flags say",
        )
    },
    program(
        &["tritonserver", "launch_triton_server.py"],
        Meaning::ServeRanks,
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
    trains(&["accelerate"], &["launch"]),
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
        &["maxtext.trainers.pre_train.train", "MaxText.train"],
        Meaning::Train,
        "MaxText gathers and scatters in a ring",
    ),
    program(
        &["verl.trainer.main_ppo"],
        Meaning::Train,
        "ranks that train gather and scatter in a ring",
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
    trains(&["colossalai", "fabric", "lightning"], &["run"]),
    trains(&["axolotl"], &["train"]),
    // A recipe for one device needs no option of torchrun.
    Program {
        one_process: true,
        ..trains(&["tune"], &["run"])
    },
    // `--devices` is 1 by default.
    Program {
        one_process: true,
        ..trains(
            &["litgpt"],
            &[
                "pretrain",
                "finetune",
                "finetune_full",
                "finetune_lora",
                "finetune_adapter",
                "finetune_adapter_v2",
            ],
        )
    },
    Program {
        reads_variables: true,
        ..trains(&["llamafactory-cli", "lmf"], &["train"])
    },
    // Without the variables, one process spreads the model's layers over the GPUs.
    Program {
        one_process: true,
        reads_variables: true,
        ..trains(&["swift", "megatron"], &["pt", "sft", "rlhf"])
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

/// Images whose entry point is a server, for containers without a command.
pub(super) const IMAGES: &[(&str, Meaning, &str)] = &[
    (
        "vllm/vllm-openai",
        Meaning::ServeExperts,
        "the image serves models, on as many GPUs as its flags say",
    ),
    // The entry point is that of vLLM (docker/Dockerfile.cuda of https://github.com/llm-d/llm-d).
    (
        "llm-d/llm-d-",
        Meaning::ServeExperts,
        "the image serves models, on as many GPUs as its flags say",
    ),
    (
        "ai-dynamo/vllm-runtime",
        Meaning::ServeExperts,
        "the image serves models, on as many GPUs as its flags say",
    ),
    (
        "ai-dynamo/",
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
        Meaning::ServeRanks,
        "each model instance has a GPU of its own",
    ),
];

/// Parts of the names of models with experts, in lower case. Many other names contain the number of
/// active parameters, such as `-a3b`.
pub(super) const EXPERTS: &[&str] = &[
    "moe",
    "mixtral",
    "deepseek-v2",
    "deepseek-v3",
    "deepseek-v4",
    "deepseek-r1",
    "deepseek-coder-v2",
    "kimi-k",
    "gpt-oss",
    "llama-4",
    "glm-4.5",
    "glm-4.6",
    "glm-5",
    "minimax-m",
    "dbrx",
];

/// Parts of the names of models without experts, unless one of the parts above matches.
/// Models that are distilled from a model with experts have none.
pub(super) const DENSE: &[&str] = &[
    "llama-2",
    "llama-3",
    "qwen2",
    "qwen3",
    "gemma",
    "mistral-7b",
    "mistral-small",
    "phi-4",
];

/// Variables of images without flags.
pub(super) const SIZE_VARIABLES: &[(&str, Dimension)] = &[
    ("NUM_SHARD", Dimension::Tensor),
    ("NIM_TENSOR_PARALLEL_SIZE", Dimension::Tensor),
    ("NIM_PIPELINE_PARALLEL_SIZE", Dimension::Pipeline),
];

/// Variables that some launchers pass to torchrun.
pub(super) const LAUNCH_VARIABLES: &[(&str, Dimension)] = &[
    ("NPROC_PER_NODE", Dimension::Processes),
    ("NNODES", Dimension::Nodes),
];

/// torchrun's variable for `--nnodes`, which Kubeflow's training operator sets in the pods of a
/// PyTorchJob (`pkg/controller.v1/pytorch/envvar.go`).
pub(super) const NODES: &str = "PET_NNODES";

/// Variables that an operator or framework sets: the name, what the value must contain, the
/// pattern, and why.
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
