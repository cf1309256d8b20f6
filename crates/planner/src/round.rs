//! A round: walks the queue and says what starts, what waits, and why.
//!
//! Each job that can start now starts, the first in the queue first: first fit by age. A job
//! that cannot is passed by others, until it has waited for so long that a place is kept for it
//! ([`keep`]). Jobs that wait for a better placement, and members that come back to their gang,
//! have a reservation at once.
//!
//! Who starts is decided first. Then the round says when the others are expected to start, each
//! at the first place that the jobs ahead leave by the estimates of run times. That is a guess:
//! jobs behind may pass.

pub(crate) mod explain;
pub(crate) mod gang;
mod job;
mod keep;
mod nearest;
pub(crate) mod plan;
pub(crate) mod quota;
mod reasons;
pub(crate) mod rejoin;
mod spread;
pub(crate) mod target;
mod walk;

pub(crate) use walk::{Reserved, walk};
