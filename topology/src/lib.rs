//! The NVLink graph of GPU nodes, and where to put a job on it.
//!
//! Everything here is pure: values in, values out; no IO, no async, no clock,
//! no Kubernetes client. Both programs of the workspace stand on it.
//!
//! * [`NodeTopology`] is the one document that describes a node: what the
//!   exporter records, serves and publishes, and what the webhook reads.
//! * [`Graph`] is the same in the form that the search wants.
//! * [`Pattern`] and [`Shape`] say who talks to whom; [`search`] finds the
//!   placement of least communication time; [`multi_node`] does it over nodes.
//! * [`labels`] and [`descriptor`] are the words published on the Node.

#![warn(missing_docs)]

pub mod bandwidth;
mod complete;
pub mod cost;
pub mod descriptor;
mod domain;
mod error;
mod flows;
pub mod generation;
mod gpu_set;
mod graph;
pub mod labels;
mod missing;
mod model;
pub mod multi_node;
mod pattern;
mod rings;
pub mod search;
mod sharing;

pub use complete::direct_links;
pub use domain::domains;
pub use error::{Invalid, NoPlacement};
pub use gpu_set::{GpuSet, MAX_GPUS};
pub use graph::Graph;
pub use missing::missing_links;
pub use model::{
    API_VERSION, Allocation, Domain, Edge, Fabric, GROUP, Gpu, Interconnect, KIND, Link, Metadata,
    Nic, NodeTopology, NodeTopologySpec, NodeTopologyStatus, Path, PathClass, Remote, RemoteKind,
    Source, SourceKind, VERSION, Via,
};
pub use pattern::{Pattern, Scope, Shape};
pub use search::{Placement, Quality, Request, place};
