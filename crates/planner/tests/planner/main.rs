//! Drives the planner through its public API.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

#[allow(dead_code)]
#[path = "../../../topology/tests/search/boards.rs"]
mod boards;

mod capacity;
mod cluster;
mod deadlines;
mod fed;
mod gangs;
mod promises;
mod random;
mod waits;
mod world;
