//! Discovers the NVLink graph of a GPU node, exports it to Prometheus and
//! publishes it to Kubernetes.
//!
//! The modules; each uses only those above it:
//!
//! - `origin` refuses requests that come from a page of another site.
//! - [`release`] releases the source for a while.
//! - [`statistics`] counts what the process itself does.
//! - [`placement`] describes which container holds which GPUs, and how good they are for it.
//! - [`load`] computes link rates and new errors from two readings.
//! - [`totals`] adds up the counters of each GPU's links.
//! - [`remotes`] keeps to which kind of device each link leads.
//! - [`marks`] marks broken GPUs in the document.
//! - `faults` finds the faults that began or ended between two readings, for the log.
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
mod faults;
pub mod lifecycle;
pub mod load;
mod log;
pub mod marks;
pub mod metrics;
mod origin;
pub mod output;
pub mod page;
pub mod placement;
pub mod publish;
pub mod release;
pub mod remotes;
pub mod server;
pub mod snapshot;
pub mod statistics;
pub mod totals;

pub use commands::run;
