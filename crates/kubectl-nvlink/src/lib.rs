//! `kubectl nvlink`: what people ask of the cluster and of files, with their own rights. It has no
//! server.
//!
//! The modules, in an order in which each uses only those above it:
//!
//! - [`args`]: the command line;
//! - [`preview`]: the decision, made from files;
//! - `simulate`: the queue, on a trace of jobs;
//! - [`status`]: the queue and the domains, with the rights of whoever asks;
//! - [`check`]: whether the webhook of a cluster answers;
//! - `run`: from the command line to an exit status.
//!
//! `nvlink-webhook` has `preview` and `check`, too: the first for scripts that call it
//! there, the second for `helm test`, which has only the webhook's image.

pub mod args;
pub mod check;
pub mod preview;
mod run;
mod simulate;
pub mod status;

pub use run::run;
