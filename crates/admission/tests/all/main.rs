//! The decision on a pod, as the webhook and `preview` make it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::too_many_lines)]

mod access;
mod channels;
mod claims;
mod classify;
mod environments;
mod fixture;
mod gangs;
mod gate;
mod golden;
mod handover;
mod refusals;
