//! A round: walks the queue and says what starts, what waits, and why.
//!
//! Each job that can start now on GPUs that no job ahead needs starts. Each other job
//! reserves the earliest place that it can have, and jobs behind it get only what leaves
//! that place alone: conservative backfill (Mu'alem and Feitelson, "Utilization,
//! Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with
//! Backfilling", 2001).
//!
//! The number of reservations is limited ([`crate::Settings::depth`]). Beyond it, a job
//! that does not start blocks all nodes that it may use for all jobs behind it. So nobody
//! overtakes there, and nobody is delayed.

pub(crate) mod explain;
pub(crate) mod gang;
mod job;
mod overtake;
pub(crate) mod plan;
pub(crate) mod quota;
mod reasons;
pub(crate) mod rejoin;
mod spread;
pub(crate) mod target;
mod walk;

pub(crate) use walk::{Reserved, walk};
