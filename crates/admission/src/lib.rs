//! Admission of GPU pods into NVLink domains: the decision on a pod, and the rules behind it.
//! It contacts no cluster; what it knows of one is a [`view::View`], which others fill.
//!
//! The modules, in an order in which each uses only those above it:
//!
//! - [`authorize`]: the users behind a pod, and the rights that they need;
//! - [`view`]: classes, namespaces and nodes, indexed for decisions;
//! - [`decide`]: the decision on a pod, a pure function: its class, its pattern, what is refused
//!   and what is written;
//! - [`policies`]: the rules of the decision as ValidatingAdmissionPolicies;
//! - [`admit`]: from a pod to a decision, with the rights that it needs.

pub mod admit;
pub mod authorize;
pub mod decide;
pub mod policies;
pub mod view;
