//! The communication pattern of a job, how close its GPUs must be, and how much each rank sends.

use std::{fmt, str::FromStr};

use strum::EnumString;

/// The communication pattern of a job: the volume that each rank sends to each other
/// rank, for one byte of payload per GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Data or tensor parallel: a ring, `2(n-1)/n` to the next rank (bandwidth-optimal
    /// ring all-reduce, Patarasuk and Yuan 2009; the factor of nccl-tests' busbw).
    #[default]
    AllReduce,
    /// Expert parallel: `1/n` to each other rank.
    AllToAll,
    /// Pipeline parallel: a chain, 1 to the next rank, nothing from the last.
    Pipeline,
    /// A star around rank 0: 1 each way with every other rank.
    ParameterServer,
    /// Inference: no traffic. Such a job uses up fragments and leaves large domains whole.
    None,
    /// Blocks of tensor, data and pipeline parallel ranks.
    Shape(Shape),
}

/// Sizes of a job's parallel dimensions.
///
/// Ranks are numbered as in Megatron-LM by default: tensor parallel ranks are neighbours,
/// then data parallel ranks, then pipeline stages. For one byte of payload per GPU a rank
/// sends
/// * [`Shape::TENSOR_WEIGHT`]`/tp` to each other rank of its tensor group,
/// * [`Shape::DATA_WEIGHT`]` * 2(dp-1)/dp` to the next rank of its data group (a ring),
/// * [`Shape::PIPELINE_WEIGHT`] to its successor in the next stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Tensor parallel size.
    pub tensor: u32,
    /// Data parallel size.
    pub data: u32,
    /// Pipeline stages.
    pub pipeline: u32,
}

impl Shape {
    /// The weight of tensor parallelism, which exchanges activations several times in
    /// every layer.
    pub const TENSOR_WEIGHT: u64 = 16;
    /// The weight of data parallelism, which exchanges the gradients once per step,
    /// mostly hidden behind the backward pass.
    pub const DATA_WEIGHT: u64 = 2;
    /// The weight of a pipeline, which passes on the activations of one boundary.
    ///
    /// The three weights are orders of magnitude, based on the traffic analysis of
    /// Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
    /// Using Megatron-LM" (2021), section 3. Only their order matters to the search.
    pub const PIPELINE_WEIGHT: u64 = 1;

    /// Returns the number of GPUs that the shape needs.
    #[must_use]
    pub fn gpus(self) -> usize {
        self.tensor as usize * self.data as usize * self.pipeline as usize
    }
}

/// How close GPUs must be to each other, closest first: those of a pod, or those of the pods of a
/// gang.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display, EnumString,
)]
#[strum(serialize_all = "kebab-case")]
#[strum(parse_err_ty = UnknownWord, parse_err_fn = UnknownWord::scope)]
pub enum Scope {
    /// One GPU.
    Gpu,
    /// One NVLink domain.
    NvlinkDomain,
    /// One node; inside one domain if one can hold the job.
    #[default]
    Node,
    /// One rack.
    Rack,
    /// One zone.
    Zone,
    /// Anywhere in the cluster.
    Cluster,
}

/// The error for a word that is not a pattern, shape or scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} {word:?}: use {expected}")]
pub struct UnknownWord {
    what: &'static str,
    word: String,
    expected: &'static str,
}

const PATTERNS: &str = "all-reduce, all-to-all, pipeline, parameter-server, none, or a shape such as tp=4,pp=2 (tp, dp, pp; their product is at most 128, the most GPUs of one node)";
const SCOPES: &str = "gpu, nvlink-domain, node, rack, zone or cluster";

impl UnknownWord {
    fn new(what: &'static str, word: &str, expected: &'static str) -> Self {
        let word = word.chars().take(64).collect();
        Self {
            what,
            word,
            expected,
        }
    }

    fn scope(word: &str) -> Self {
        Self::new("scope", word, SCOPES)
    }
}

impl FromStr for Pattern {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        match word {
            "all-reduce" => Ok(Self::AllReduce),
            "all-to-all" => Ok(Self::AllToAll),
            "pipeline" => Ok(Self::Pipeline),
            "parameter-server" => Ok(Self::ParameterServer),
            "none" => Ok(Self::None),
            shape => parse_shape(shape)
                .map(Self::Shape)
                .ok_or_else(|| UnknownWord::new("pattern", shape, PATTERNS)),
        }
    }
}

/// Parses a shape such as `tp=4,pp=2`. It names at least one dimension and each at most
/// once; each size is at least 1, and the product is at most [`crate::MAX_GPUS`] GPUs.
fn parse_shape(text: &str) -> Option<Shape> {
    let (mut tensor, mut data, mut pipeline) = (None, None, None);
    for part in text.split(',') {
        let (name, size) = part.split_once('=')?;
        let slot = match name.trim() {
            "tp" => &mut tensor,
            "dp" => &mut data,
            "pp" => &mut pipeline,
            _ => return None,
        };
        let size: u32 = size
            .trim()
            .parse()
            .ok()
            .filter(|size| (1..=128).contains(size))?;
        if slot.replace(size).is_some() {
            return None;
        }
    }
    let shape = Shape {
        tensor: tensor.unwrap_or(1),
        data: data.unwrap_or(1),
        pipeline: pipeline.unwrap_or(1),
    };
    (shape.gpus() <= crate::MAX_GPUS).then_some(shape)
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllReduce => f.write_str("all-reduce"),
            Self::AllToAll => f.write_str("all-to-all"),
            Self::Pipeline => f.write_str("pipeline"),
            Self::ParameterServer => f.write_str("parameter-server"),
            Self::None => f.write_str("none"),
            Self::Shape(shape) => shape.fmt(f),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = [
            ("tp", self.tensor),
            ("dp", self.data),
            ("pp", self.pipeline),
        ];
        let said: Vec<_> = sizes
            .iter()
            .filter(|(name, size)| *size > 1 || (*name == "tp" && self.gpus() == 1))
            .map(|(name, size)| format!("{name}={size}"))
            .collect();
        f.write_str(&said.join(","))
    }
}

impl Scope {
    /// Returns the scope of pods that a scope of GPUs beyond one node means: the GPUs of one pod
    /// are always on one node.
    #[must_use]
    pub fn of_pods(self) -> Option<Self> {
        (self > Self::Node).then_some(self)
    }
}
