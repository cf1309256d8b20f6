//! Stands between the kubelet and the vendor's device plugin, so that a container
//! gets the GPUs that are best connected, in the order of their ring.
//!
//! The vendor's plugin registers with a socket of this program as with the kubelet's
//! ([`Proxy`]), and this program registers each resource with the kubelet under its own name
//! (`relay`). Calls and answers pass through as bytes, but for two: preferences for whole GPUs are
//! answered by the search on the node's graph (`chooser`), and the answer to the allocation of whole
//! GPUs gets their order as variables (`environment`).
//!
//! After a restart, the vendor's plugin registers again, because this program removes all sockets in
//! its directory as a kubelet does. All that is kept is which GPUs were unhealthy (`health`).
//!
//! Of the node it knows what [`Node`] shows. The modules; each uses only those above it:
//!
//! - `messages` are the parts of the API of device plugins that are read.
//! - `authority` and `wire` speak gRPC on Unix sockets; `crowd` has the connections.
//! - `statistics` are the metrics.
//! - `chooser` chooses GPUs, and `environment` writes their order.
//! - `node` is what is known of the node.
//! - `health` keeps which GPUs are unhealthy.
//! - `directories` are those of the sockets; `registration` checks one of a device plugin.
//! - `service` answers the kubelet, and `relay` passes one resource on.
//! - `visitors` are the peers that connect in order to register.
//! - `proxy` takes registrations and starts relays; `label` sets the label of the Node that leads pods
//!   here.

mod authority;
mod chooser;
mod crowd;
mod directories;
mod environment;
mod health;
mod label;
mod messages;
mod node;
mod proxy;
mod registration;
mod relay;
mod service;
mod statistics;
mod visitors;
mod wire;

pub use self::{
    directories::Directories,
    label::{Label, MANAGER},
    node::Node,
    proxy::Proxy,
};
