//! The state of the cluster, kept by watches, and what follows from it for the classes.
//!
//! The modules, in an order in which each uses only those above it:
//!
//! - [`metrics`]: how current the state is, and what was found;
//! - [`authorizer`]: whether a user may use a class, by access reviews of the API server;
//! - [`extent`]: the free GPUs of a node, from its NodeTopology;
//! - [`watches`]: keep the view that decisions use;
//! - [`exclusive`], `isolated`, `strays`: what is wrong with the nodes of a class;
//! - [`status`]: writes that into the conditions of classes, while this process leads;
//! - [`mirror`]: what the view forgets, the graphs of nodes and the pods on them.

pub mod authorizer;
pub mod exclusive;
pub mod extent;
mod isolated;
pub mod metrics;
pub mod mirror;
pub mod status;
mod strays;
pub mod watches;
