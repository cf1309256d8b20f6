//! What the planner knows of a job that waits.

use nvlink_topology::{Pattern, Scope};

use crate::{Estimate, Millis, Name};

/// A job that waits: one pod, or a gang.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its class; it uses only nodes that have this name in [`crate::NodeState::sets`].
    pub class: Name,
    /// Its project.
    pub project: Name,
    /// Its priority; a higher one comes first.
    pub priority: i32,
    /// When it was created: the time of its last pod, since which it could start.
    pub created: Millis,
    /// The pods that wait.
    pub members: Vec<Member>,
    /// Whether all pods that it declares are there. If not, it waits and holds nothing.
    pub complete: bool,
    /// The communication pattern over all its GPUs.
    pub pattern: Pattern,
    /// How close the GPUs of each of its pods must be.
    pub scope: Scope,
    /// For a gang, how far apart its pods may be; they are as close as what is free allows.
    pub gang_scope: Scope,
    /// Further sets of nodes ([`crate::NodeState::sets`]); it uses only nodes that are in
    /// all of them.
    pub within: Vec<Name>,
    /// How long it runs; `None` if that is unknown.
    pub duration: Option<Estimate>,
    /// When its waiting ends; `None` for never.
    pub deadline: Option<Deadline>,
    /// For a gang that was released before: the seats that its pods were given, as the
    /// caller recorded them. A member that is recreated gets the seat of its predecessor.
    pub seats: Vec<Seat>,
    /// When the gang was released, or last lost a member; meaningful only with seats. From then on,
    /// the seats of lost members are kept for a while, and who takes one of them meanwhile is
    /// before all others and needs no quota.
    pub released: Millis,
}

impl Job {
    /// Returns how far apart any two of its GPUs may be.
    #[must_use]
    pub fn reach(&self) -> Scope {
        match self.members.len() {
            0 | 1 => self.scope,
            _ => self.gang_scope,
        }
    }
}

/// A pod that waits.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its id.
    pub pod: Name,
    /// The number of GPUs that it asks for, at least 1.
    pub gpus: u32,
    /// Its rank among the pods of the gang. If the ranks of a gang are not exactly
    /// `0..pods`, the order of the ids decides, and the release says so.
    pub rank: Option<u32>,
    /// Its role, where pods of one gang differ (`prefill`, `decode`).
    pub role: Option<Name>,
    /// What it asks of other resources, in the order of [`crate::NodeState::resources`].
    pub resources: Vec<u64>,
}

/// Returns the sum of what pods ask or hold. It saturates, since authors write these numbers:
/// a sum that wraps would let a job start that no node can hold.
pub(crate) fn total(gpus: impl Iterator<Item = u32>) -> u32 {
    gpus.fold(0, u32::saturating_add)
}

/// The end of a job's waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// When it passes.
    pub at: Millis,
    /// What happens then.
    pub then: OnTimeout,
}

impl Deadline {
    /// Reports whether the job fails before `start`.
    #[must_use]
    pub fn fails_before(self, start: Millis) -> bool {
        self.then == OnTimeout::Reject && self.at < start
    }
}

/// What happens to a job that has waited too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTimeout {
    /// It fails.
    Reject,
    /// It is released without the constraint to a domain. A gang that has no room now, and a
    /// job whose project may not hold its GPUs, fail. A single pod without room waits on in
    /// its place of the queue, and needs no domain any more.
    Spread,
}

/// A pod's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The pod.
    pub pod: Name,
    /// Its rank among the pods of the gang.
    pub rank: u32,
    /// The node; the planner always names one. `None` where the caller let the pod go to any
    /// node that the scheduler finds.
    pub node: Option<Name>,
    /// Indices of its GPUs in rank order; empty if the node's GPUs are not known.
    pub gpus: Vec<u32>,
    /// The domain that contains them.
    pub domain: Option<Name>,
}
