//! Discovers the NVLink graph of a GPU node, exports it to Prometheus and
//! publishes it to Kubernetes.
//!
//! [`source`] reads a node, [`collect`] makes [`snapshot`]s of it, and
//! [`metrics`], [`page`], [`publish`] and [`output`] show them. [`run`] is the program.

pub mod allocations;
pub mod args;
pub mod collect;
mod commands;
pub mod control;
mod duration;
mod faults;
pub mod load;
mod log;
pub mod metrics;
pub mod output;
pub mod page;
pub mod placement;
pub mod publish;
pub mod server;
pub mod snapshot;
pub mod source;
pub mod web;

pub use commands::run;
