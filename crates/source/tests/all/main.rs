//! The sources, as a program that uses the library sees them.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod machine;
mod sysfs;
mod sysfs_any;
mod sysfs_nics;
