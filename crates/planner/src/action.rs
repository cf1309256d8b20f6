//! What a round says.

use nvlink_topology::Scope;

use crate::{Deadline, Millis, Name, Seat};

/// The answer of [`crate::Planner::round`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// What to do now, in order.
    pub actions: Vec<Action>,
    /// The jobs that wait after these actions, in the order of the queue.
    pub waiting: Vec<Waiting>,
    /// When the answer may change although nothing else does: the next deadline, or the
    /// next estimate that runs out. `None` if only a change can change it.
    pub wake: Option<Millis>,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Release a job: all its waiting pods at once. Of a gang that lost members, only those
    /// that take their seats; the others follow in a later round.
    Release(Release),
    /// Fail a job whose deadline passed.
    Reject(Reject),
    /// Report that a gang lost a member before all its pods were bound.
    GiveBack(GiveBack),
}

/// A job that starts now: all its members, or those for which its gang has seats.
#[derive(Clone, Debug, PartialEq)]
pub struct Release {
    /// The job.
    pub job: Name,
    /// The seats of its pods, in the order of the ranks.
    pub seats: Vec<Seat>,
    /// Expected time of the slowest GPU, seconds per byte of payload.
    pub cost: f64,
    /// Best possible cost for such a job on the empty nodes of its class over `cost`, in
    /// (0, 1]. For a gang that no node can hold, a lower bound of the best cost within
    /// `scope` stands for it.
    pub quality: f64,
    /// The closest scope that contains all GPUs.
    pub scope: Scope,
    /// Why it starts now, and there.
    pub why: Why,
    /// Whether the ranks of the members were in doubt, so that the order of the ids decided.
    pub ranks_in_doubt: bool,
}

/// Why a job starts now, and there.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// It is its turn.
    Turn,
    /// It passes jobs that wait, none of which can start now.
    Backfill {
        /// The number of jobs ahead that wait.
        ahead: u32,
    },
    /// A better placement would come later, and waiting for it would cost more than it saves.
    Worse {
        /// The cost of the better placement, seconds per byte of payload.
        best_cost: f64,
        /// How long it would have to wait for it, milliseconds.
        wait: Millis,
        /// How much longer it is expected to run, milliseconds.
        longer: Millis,
    },
    /// Its members take the seats of lost ones: each one seat, with no more GPUs than it had.
    Rejoin,
    /// Its deadline passed: it is released without the constraint to a domain.
    Spread {
        /// The cost of the best placement on an empty node of its class, seconds per byte
        /// of payload.
        best_cost: f64,
    },
}

/// A job that fails because its deadline passed.
#[derive(Clone, Debug, PartialEq)]
pub struct Reject {
    /// The job.
    pub job: Name,
    /// Its pods.
    pub pods: Vec<Name>,
    /// Why it waited.
    pub reason: Reason,
}

/// A gang that lost a member before all its pods were bound.
///
/// A pod that was released cannot be gated again. So the gang keeps the seats of the lost
/// members until `until`, so that pods that its owner creates in their place can rejoin.
/// Then these seats are free for others, and the pods that remain count as running.
#[derive(Clone, Debug, PartialEq)]
pub struct GiveBack {
    /// The job.
    pub job: Name,
    /// The seats of the lost members.
    pub vacant: Vec<Seat>,
    /// The pods that remain.
    pub remaining: Vec<Name>,
    /// Until when the seats are kept.
    pub until: Millis,
    /// Whether that time has passed.
    pub free: bool,
}

/// A job that waits.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    /// The job.
    pub job: Name,
    /// Its position in the whole queue, from 1.
    pub position: u32,
    /// Its position among the jobs of its class, from 1.
    pub class_position: u32,
    /// When it is expected to start; `None` if an end that this depends on is unknown.
    pub eta: Option<Eta>,
    /// When its waiting ends; `None` for never.
    pub deadline: Option<Deadline>,
    /// Why it waits.
    pub reason: Reason,
}

impl Waiting {
    /// Returns when it is expected to start, unless it fails before.
    #[must_use]
    pub fn promise(&self) -> Option<Eta> {
        let fails = |eta: &Eta| self.deadline.is_some_and(|end| end.fails_before(eta.mean));
        self.eta.filter(|eta| !fails(eta))
    }
}

/// When a job is expected to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eta {
    /// The expected start.
    pub mean: Millis,
    /// The same by upper estimates.
    pub upper: Millis,
    /// Whether both are only lower bounds: the job is too far back for more.
    pub at_least: bool,
}

/// Why a job waits.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// The gang is not complete.
    Incomplete,
    /// No node of its class can ever hold it, even when empty.
    Never,
    /// Its pods could run, but nothing within its scope can ever hold all of them.
    NeverTogether {
        /// The number of its pods.
        pods: usize,
    },
    /// Its pods must share a rack or a zone, and no label says in which one any node of its class is.
    Unlabelled,
    /// Nothing within its scope can ever hold it, but other nodes can: it starts once its deadline has
    /// passed, which lets it spread.
    Spreads,
    /// The nodes that could hold it are silent.
    Silent,
    /// Its project holds as many GPUs of the class as it may.
    Quota {
        /// GPUs that the project holds.
        held: u32,
        /// GPUs that it may hold.
        most: u32,
    },
    /// Not enough GPUs are free on any set of nodes that its scope allows.
    Insufficient {
        /// GPUs that it asks for.
        asked: u32,
        /// The most GPUs that are free within its scope.
        free: u32,
    },
    /// The GPUs that it needs are free on a node, but not with the other resources that it needs.
    Resources {
        /// GPUs that it asks for.
        asked: u32,
    },
    /// Enough GPUs are free on one node, or within the scope of a gang, but not in one domain,
    /// not where it needs them, or, for a gang, not with the other resources that it needs.
    Fragmented {
        /// GPUs that it asks for.
        asked: u32,
        /// The most GPUs that are free there.
        free: u32,
    },
    /// GPUs are free, but jobs ahead need them.
    Behind {
        /// The number of jobs ahead that wait for a place on the same nodes; 0 if jobs that start now
        /// take them.
        ahead: u32,
    },
    /// It could start now, but a better placement is worth the wait.
    Better {
        /// How much longer it would run with the placement that it could have now,
        /// milliseconds.
        longer: Millis,
    },
}

impl Reason {
    /// Reports whether the job cannot start on the nodes that its class has, not even when they are empty.
    #[must_use]
    pub fn is_never(&self) -> bool {
        matches!(
            self,
            Self::Never | Self::NeverTogether { .. } | Self::Unlabelled
        )
    }
}

/// Why a job waits, in full: [`crate::Planner::explain`].
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// What the round says of it.
    pub waiting: Waiting,
    /// Where it is expected to start; empty if it has no reservation.
    pub seats: Vec<Seat>,
    /// The pods that hold these GPUs now, in the order of their expected ends.
    pub holders: Vec<Holder>,
    /// The jobs ahead that will use these GPUs before it.
    pub before: Vec<Name>,
}

/// A pod that holds GPUs that a waiting job is expected to get.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    /// The pod.
    pub pod: Name,
    /// Its node.
    pub node: Name,
    /// Indices of the GPUs that it holds and that the job is expected to get.
    pub gpus: Vec<u32>,
    /// Its project.
    pub project: Name,
    /// When it is expected to end.
    pub end: Option<crate::Estimate>,
    /// Whether its priority is lower than that of the job that waits.
    pub lower_priority: bool,
}
