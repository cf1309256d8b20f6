//! The two ways in which this library says no.

use crate::pattern::{Pattern, Scope};

/// A document that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct Invalid {
    /// Where, as a path in the document: `spec.edges[3].b`.
    pub path: String,
    /// What is wrong, and what would be right.
    pub reason: String,
}

impl Invalid {
    /// An error at `path`.
    pub fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            reason: reason.into(),
        }
    }
}

/// Why a request has no placement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPlacement {
    /// Zero GPUs were asked for.
    #[error("asked for 0 GPUs: ask for at least one")]
    NoGpus,
    /// More GPUs than there are.
    #[error("asked for {asked} GPUs, but there are only {have}")]
    TooMany {
        /// GPUs asked for.
        asked: usize,
        /// GPUs of the node.
        have: usize,
    },
    /// More GPUs than are free.
    #[error("asked for {asked} GPUs, but only {free} are free")]
    NotEnoughFree {
        /// GPUs asked for.
        asked: usize,
        /// GPUs free.
        free: usize,
    },
    /// A required GPU does not exist.
    #[error("GPU {gpu} does not exist")]
    UnknownGpu {
        /// Its index.
        gpu: u32,
    },
    /// A required GPU is in use.
    #[error("GPU {gpu} is required but not free")]
    RequiredNotFree {
        /// Its index.
        gpu: u32,
    },
    /// More GPUs are required than asked for.
    #[error("{required} GPUs are required, but only {asked} asked for")]
    TooManyRequired {
        /// GPUs required.
        required: usize,
        /// GPUs asked for.
        asked: usize,
    },
    /// The scope cannot be met.
    #[error("no {scope} can hold {asked} free GPUs: the most in one is {most}")]
    Scope {
        /// The scope asked for.
        scope: Scope,
        /// GPUs asked for.
        asked: usize,
        /// The most free GPUs (with the required ones) within one such scope.
        most: usize,
    },
    /// NVLink joins no free GPUs as the pattern needs it.
    #[error(
        "no {asked} free GPUs of one nvlink-domain reach each other over NVLink as {pattern} needs: \
         a domain is joined pair by pair, and some two of them have no NVLink between them. \
         Make other GPUs free, ask for one more that links them, or allow PCIe with scope node"
    )]
    OffNvlink {
        /// GPUs asked for.
        asked: usize,
        /// Who has to reach whom.
        pattern: Pattern,
    },
    /// A shape whose sizes do not multiply to the number of GPUs.
    #[error("the shape {shape} is for {needs} GPUs, but {asked} were asked for")]
    Shape {
        /// The shape.
        shape: String,
        /// GPUs that the shape needs.
        needs: usize,
        /// GPUs asked for.
        asked: usize,
    },
}
