//! The NVLink graph of GPU nodes, and the search for the best placement of a job on it.
//!
//! The crate is pure: values in, values out; no IO, no async, no clock, no Kubernetes
//! client. All programs of the workspace use it.
//!
//! * [`NodeTopology`] is the one document that describes a node: the exporter records,
//!   serves and publishes it, and the webhook reads it.
//! * [`Graph`] has the same content in the form that the search needs.
//! * [`Pattern`] and [`Shape`] define which ranks communicate; [`search`] finds the
//!   placement with the least communication time, and the next best set of GPUs; [`multi_node`]
//!   does so for several nodes. [`memo`] remembers what was found.
//! * [`profile`] has the hardware of well-known machines, for simulated nodes.
//! * [`labels`] and [`descriptor`] define the labels and annotations of the Node.

#![warn(missing_docs)]

pub mod bandwidth;
pub mod calibration;
pub mod comparison;
mod complete;
pub mod cost;
pub mod descriptor;
mod domain;
mod error;
mod fault;
mod flows;
pub mod generation;
mod gpu_set;
mod graph;
pub mod labels;
pub mod memo;
mod missing;
mod model;
pub mod multi_node;
mod network;
mod pattern;
pub mod profile;
mod recovery;
mod rings;
pub mod search;
pub mod tray;
mod volumes;
mod weight;

pub use calibration::Calibration;
pub use complete::{bus_id, direct_links};
pub use domain::domains;
pub use error::{Invalid, NoPlacement};
pub use fault::Fault;
pub use gpu_set::{GpuSet, MAX_GPUS};
pub use graph::Graph;
pub use missing::{missing_gpus, missing_links, own_missing_links, shared_missing_links};
pub use model::{
    API_VERSION, Allocation, Comparison, Domain, Edge, Fabric, GROUP, Gpu, Interconnect, KIND,
    Link, Lost, Metadata, Nic, NodeTopology, NodeTopologySpec, NodeTopologyStatus, PLURAL, Path,
    PathClass, Remote, RemoteKind, Source, SourceKind, VERSION, Via,
};
pub use pattern::{Pattern, Scope, Shape};
pub use recovery::RecoveryAction;
pub use search::{BrokenGpus, NextBest, Placement, Quality, Request, next_best, place, sparing};
pub use tray::Tray;
