//! The program, as a user runs it, and the reports that it prints.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::too_many_lines)]

#[path = "../../../admission/tests/all/fixture/mod.rs"]
mod fixture;
mod preview;
mod simulate;
mod status;
