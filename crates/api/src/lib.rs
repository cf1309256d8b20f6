//! The API of this project as Rust types, and what every reader of the cluster's objects needs.
//! It contacts no cluster.
//!
//! The modules, in an order in which each uses only those above it:
//!
//! - [`yaml`]: reading and writing documents;
//! - [`quantity`]: amounts of resources;
//! - [`patch`]: edits of raw JSON, recorded as a JSON Patch;
//! - [`node_topology`]: the NodeTopology as a resource of the API server;
//! - [`crd`]: the custom resources as the API server stores them, and their CRDs;
//! - [`ci`]: CI systems, as their pods show them, and how long each waits for a pod;
//! - [`class`]: a class as decisions need it, and the CI systems that it may list;
//! - [`pod`]: pods as raw JSON.

pub mod ci;
pub mod class;
pub mod crd;
pub mod node_topology;
pub mod patch;
pub mod pod;
pub mod quantity;
pub mod yaml;

/// The default name of the Lease of the leader, which serves the queue.
pub const LEASE: &str = "nvlink-webhook";

/// The field manager of the webhook's writes to the cluster.
pub const MANAGER: &str = "nvlink-webhook";
/// The name of the MutatingWebhookConfiguration.
pub const REGISTRATION: &str = "nvlink-domains.io";
