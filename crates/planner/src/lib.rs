//! The planner of the queue: which waiting job starts when, and on which GPUs.
//!
//! The crate is pure: values in, values out; no IO, no async, no clock, no Kubernetes
//! client. A [`Planner`] is fed with changes of nodes, pods, jobs and classes, and
//! [`Planner::round`] says what to do now. What a round returns depends only on the
//! present state, never on the order of the changes that led to it, unless the graph of a
//! node is so far from all real machines that its searches take longer than a round may
//! take: then the rounds go on one after the other, and nothing starts on such a node
//! meanwhile that would need an open search.
//!
//! * [`NodeState`], [`PodState`], [`Job`], [`Class`] and [`Settings`] are the state.
//! * [`Round`] is the answer: [`Action`]s to carry out, and for each job that waits its
//!   position, its expected start and the [`Reason`].

#![warn(missing_docs)]

mod action;
mod assumed_end;
mod capacity;
mod cluster;
mod gang_kind;
mod graphs;
mod job;
mod job_kind;
mod node;
mod node_entry;
mod planner;
mod pod;
mod preference;
mod profile;
mod queue;
mod replacement;
mod room;
mod round;
mod search;
mod seats;
mod settings;
mod time;

pub use action::{
    Action, Eta, Explanation, GiveBack, Holder, Reason, Reject, Release, Round, Waiting, Why,
};
pub use job::{Deadline, Job, Member, OnTimeout, Seat};
pub use node::{Availability, Held, NodeState};
pub use planner::Planner;
pub use pod::PodState;
pub use room::{Holding, Room};
pub use settings::{Class, Settings, UsualRun};
pub use time::{Estimate, Millis};

/// A name or id of the caller: of a node, a pod, a job, a project, a class, a set of nodes.
///
/// Names are compared as text, so every tie ends in the order of names.
pub type Name = std::sync::Arc<str>;
