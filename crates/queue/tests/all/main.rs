//! The queue, as far as it is pure: what it reads, how it follows the cluster, and what it shows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::too_many_lines)]

mod feed;
#[path = "../../../admission/tests/all/fixture/mod.rs"]
mod fixture;
mod gangs;
mod shown;
