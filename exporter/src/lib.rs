//! Discovers the NVLink graph of a GPU node, exports it to Prometheus and
//! publishes it to Kubernetes.
//!
//! The modules; each uses only those above it:
//!
//! - [`source`] reads a node: its hardware, a file, a simulation.
//! - `duration` reads lengths of time, as flags and files have them.
//! - `origin` says which requests come from a page of another site.
//! - [`release`] has the source let go of for a while.
//! - [`web`] lets requests in: TLS, passwords, limits.
//! - [`tally`] is what the process knows of its own work.
//! - [`placement`] is who holds which GPUs, and how well they were placed.
//! - [`load`] is what moved between two readings.
//! - `faults` is what came and went between them, for the log.
//! - [`snapshot`] holds the latest of everything, for readers that never wait.
//! - [`metrics`] is what a scrape gets.
//! - [`output`] shows a topology and a placement in a terminal.
//! - [`page`] shows a snapshot in a browser.
//! - [`collect`] reads the source and makes snapshots.
//! - [`publish`] writes snapshots to the cluster.
//! - [`allocations`] asks who holds which GPUs, and judges it.
//! - [`control`] breaks a simulated node over HTTP.
//! - [`lifecycle`] has the source let go of over HTTP.
//! - [`server`] answers requests: metrics, page, document, probes.
//! - [`args`] is the command line.
//! - `log` starts the log.
//! - `commands` are the subcommands; [`run`] is the program.

pub mod allocations;
pub mod args;
pub mod collect;
mod commands;
pub mod control;
mod duration;
mod faults;
pub mod lifecycle;
pub mod load;
mod log;
pub mod metrics;
mod origin;
pub mod output;
pub mod page;
pub mod placement;
pub mod publish;
pub mod release;
pub mod server;
pub mod snapshot;
pub mod source;
pub mod tally;
pub mod web;

pub use commands::run;
