//! Who holds which GPUs, and how well they were placed.

use std::{fmt, time::Duration};

use nvlink_topology::{Allocation, NodeTopologyStatus, Pattern};

use crate::source::LostGpu;

/// The allocations of a node at one moment, judged. Replaced whole.
#[derive(Clone, Debug, Default)]
pub struct Placements {
    /// What the document says under `status`; absent where nobody knows.
    pub status: Option<NodeTopologyStatus>,
    /// One for each container that holds GPUs, by namespace, pod, container;
    /// also where none of them answers.
    pub judged: Vec<Judged>,
    /// How asking for them went; absent where nobody is asked (a recording holds them, or nothing does).
    pub health: Option<Health>,
}

/// How asking for the allocations went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Why there is no answer.
    pub error: Option<String>,
    /// How long it took.
    pub duration: Duration,
}

/// One container's GPUs, judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// Who holds which.
    pub allocation: Allocation,
    /// GPUs that it holds as well and that do not answer now.
    pub lost: Vec<LostGpu>,
    /// How the job is taken to communicate.
    pub pattern: Pattern,
    /// Why it is taken so.
    pub pattern_from: PatternFrom,
    /// NVLink domains that the GPUs lie in; a GPU outside any counts as one;
    /// absent where NVLink is unknown, and where no GPU answers.
    pub domains: Option<usize>,
    /// Bandwidth of the slowest path that the pattern uses, bytes per second in
    /// one direction; absent where there is no traffic, and where NVLink is unknown.
    pub bottleneck_bytes_per_second: Option<u64>,
    /// Best possible cost on the empty node over the cost; absent where it cannot be told.
    pub quality_node: Option<f64>,
    /// Best possible cost in what was free when the pod came, over the cost;
    /// absent where it is not known what was free.
    pub quality_free: Option<f64>,
}

/// Why a job is taken to communicate in its pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternFrom {
    /// The webhook's annotation `decision`.
    Decision,
    /// Nobody said: the most common one.
    Default,
}

impl PatternFrom {
    /// The word used in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Decision => "decision",
            Self::Default => "default",
        }
    }
}

impl fmt::Display for PatternFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
