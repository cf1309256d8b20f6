//! The program, and the library that it is made of.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail by panicking"
)]

mod cli;
mod faults;
#[path = "../support/full.rs"]
mod full;
mod golden;
mod ingest;
mod input;
#[path = "../../../crates/source/tests/all/machine.rs"]
#[allow(dead_code, reason = "the tests of the sources use all of it")]
mod machine;
mod marks;
mod page;
mod podresources;
mod publish;
mod recording;
mod release;
#[path = "../support/scrape.rs"]
mod scrape;
mod server;
mod sim;
mod start;
#[path = "../support/mod.rs"]
mod support;
mod sysfs;
mod totals;
