//! Results of collective benchmarks: what they print, what is kept of them, and how they
//! compare with the model and with earlier runs.
//!
//! `input` tells the formats apart; `text` (with `lines`, `table` and `log`), `json` and
//! `exposition` (both with `inspected`) read one each, and make a `run` of each test. `model` is what is expected of
//! a collective, and `placement` finds out where it took place. `state` is what is kept, `store` keeps
//! it in a file, and `verdict` compares. `watch` follows a directory of files, and `summary`
//! puts results into a container's termination message; `follow` reads both for `serve`.

pub mod exposition;
pub mod follow;
pub mod input;
mod inspected;
pub mod json;
pub mod kind;
pub mod lines;
pub mod log;
pub mod model;
pub mod placement;
pub mod run;
pub mod state;
pub mod store;
pub mod summary;
pub mod table;
pub mod text;
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
