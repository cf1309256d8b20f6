//! The two errors of this library.

use crate::pattern::{Pattern, Scope};

/// The error for a document that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct Invalid {
    /// The place of the error as a path in the document: `spec.edges[3].b`.
    pub path: String,
    /// What is wrong, and what is expected.
    pub reason: String,
}

impl Invalid {
    /// Returns an error at `path`.
    pub fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            reason: reason.into(),
        }
    }
}

/// The reason why a request has no placement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPlacement {
    /// The request is for zero GPUs.
    #[error("0 GPUs requested: request at least one")]
    NoGpus,
    /// The request is for more GPUs than there are.
    #[error("{asked} GPUs requested, but there are only {have}")]
    TooMany {
        /// Requested GPUs.
        asked: usize,
        /// GPUs of the node.
        have: usize,
    },
    /// The request is for more GPUs than are free.
    #[error("{asked} GPUs requested, but only {free} are free")]
    NotEnoughFree {
        /// Requested GPUs.
        asked: usize,
        /// Free GPUs.
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
    /// More GPUs are required than requested.
    #[error("{required} GPUs are required, but only {asked} were requested")]
    TooManyRequired {
        /// Required GPUs.
        required: usize,
        /// Requested GPUs.
        asked: usize,
    },
    /// The scope cannot be satisfied.
    #[error("no {scope} has room for {asked} GPUs: the most that fit in one is {most}")]
    Scope {
        /// The requested scope.
        scope: Scope,
        /// Requested GPUs.
        asked: usize,
        /// The most free GPUs (including the required ones) within one such scope.
        most: usize,
    },
    /// No free GPUs have the NVLinks that the pattern needs.
    #[error(
        "no {asked} free GPUs of one nvlink-domain have all the NVLinks that {pattern} needs: \
         two GPUs of a domain may have no NVLink between them. \
         Free other GPUs, request one more GPU that links them, or allow PCIe with scope node"
    )]
    OffNvlink {
        /// Requested GPUs.
        asked: usize,
        /// The pattern, which determines who must reach whom.
        pattern: Pattern,
    },
    /// The search took as many steps as it may, without a placement and without a proof that there
    /// is none.
    #[error(
        "the search for {asked} GPUs of one nvlink-domain took as many steps as it may and found \
         no order with the NVLinks that {pattern} needs; there may be one. \
         Request fewer GPUs, choose a simpler pattern, or allow PCIe with scope node"
    )]
    NotFound {
        /// Requested GPUs.
        asked: usize,
        /// The pattern, which determines who must reach whom.
        pattern: Pattern,
    },
    /// The product of the shape's sizes differs from the number of requested GPUs.
    #[error("the shape {shape} needs {needs} GPUs, but {asked} were requested")]
    Shape {
        /// The shape.
        shape: String,
        /// GPUs that the shape needs.
        needs: usize,
        /// Requested GPUs.
        asked: usize,
    },
}
