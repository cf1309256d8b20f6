//! The state of the cluster, kept by watches, and what follows from it for the classes.
//!
//! The modules, in an order in which each uses only those above it:
//!
//! - [`metrics`]: how current the state is, and what was found;
//! - [`authorizer`]: whether a user may use a class, by access reviews of the API server;
//! - [`gpus`]: the GPUs of nodes, and who holds which;
//! - [`volumes`]: the nodes that volumes allow;
//! - [`informer`]: one watch of a kind for all that follow it;
//! - [`kinds`]: the kinds that are followed, and what is read of each;
//! - [`mirror`]: the GPUs of nodes and the pods on them, as the process sees them now;
//! - [`watches`]: keep the view that decisions use;
//! - `exclusive`, `isolated`, `plain`, `steady`, `restriction`, `strays`: what is wrong with the nodes of
//!   a class, which pods do not belong there, and [`seen`], what the queue sees of that;
//! - [`enforced`]: the index of the classes for the policies, which the leader keeps;
//! - [`status`]: writes that into the conditions of classes, while this process leads.

pub mod authorizer;
pub mod enforced;
mod exclusive;
pub mod gpus;
pub mod informer;
mod isolated;
pub mod kinds;
pub mod metrics;
pub mod mirror;
mod plain;
mod restriction;
pub mod seen;
pub mod status;
mod steady;
mod strays;
pub mod volumes;
pub mod watches;
