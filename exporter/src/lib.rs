//! Discovers the NVLink graph of a GPU node, exports it to Prometheus and
//! publishes it to Kubernetes.
//!
//! The modules; each uses only those above it:
//!
//! - `origin` refuses requests that come from a page.
//! - [`release`] releases the source for a while.
//! - [`statistics`] counts what the process itself does.
//! - [`imex`] interprets what the kubelet says of IMEX channels and daemons.
//! - [`placement`] describes which container holds which GPUs, and how good they are for it.
//! - [`snapshot`] holds the latest state, for readers that never wait.
//! - [`metrics`] renders the answer to a scrape.
//! - [`output`] prints a topology and a placement.
//! - [`page`] shows a snapshot in a browser.
//! - [`collect`] reads the source and makes snapshots.
//! - [`publish`] writes snapshots to the cluster.
//! - [`allocations`] finds out which container holds which GPUs, and judges the placements.
//! - [`control`] injects faults into a simulated node over HTTP.
//! - [`lifecycle`] releases the source over HTTP.
//! - [`server`] answers requests: metrics, page, document, probes.
//! - [`args`] defines the command line.
//! - `log` starts the log.
//! - `commands` implements the subcommands; [`run`] is the program.

pub mod allocations;
pub mod args;
pub mod collect;
mod commands;
pub mod control;
pub mod imex;
pub mod lifecycle;
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
pub mod statistics;

pub use commands::run;
