//! Results of collective benchmarks: what they print, what is kept of them, and how they
//! compare with the model and with earlier runs.
//!
//! It knows of a node only its document; who has the node implements [`follow::Node`].
//! The modules; each uses only those above it:
//!
//! - `kind` has the collectives, and [`run`] is one test of a benchmark.
//! - [`lines`] splits an input; `table` and `log` read lines of nccl-tests and of NCCL.
//! - `inference` infers what a table does not say.
//! - `text` reads what nccl-tests print.
//! - `inspected` makes runs of what NCCL Inspector measured.
//! - `exposition` reads the Inspector's metrics; `json` reads both programs' JSON.
//! - [`input`] tells the formats apart.
//! - [`model`] is what is expected of a collective, and [`placement`] finds out where it took place.
//! - [`state`] is what is kept, and [`store`] keeps it in a file.
//! - [`verdict`] compares, and [`report`] shows it.
//! - [`watch`] follows a directory of files.
//! - [`summary`] puts results into a container's termination message.
//! - [`follow`] reads the file and the messages for `serve`.
//! - [`ingest`] and [`calibration`] are what the commands of these names do.

pub mod calibration;
mod exposition;
pub mod follow;
mod inference;
pub mod ingest;
pub mod input;
mod inspected;
mod json;
mod kind;
pub mod lines;
mod log;
pub mod model;
pub mod placement;
pub mod report;
pub mod run;
pub mod state;
pub mod store;
pub mod summary;
mod table;
mod text;
pub mod verdict;
pub mod watch;

pub use self::{
    follow::{Inbox, Results},
    kind::Collective,
    model::Expected,
    placement::{Given, Place, Placed, place},
    run::{Run, SizeClass},
    state::State,
};
