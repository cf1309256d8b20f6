//! Admission of GPU pods into NVLink domains: the program, and its parts for tests.
//!
//! The modules in an order in which each uses only those above it:
//!
//! - [`metrics`]: what the program counts of itself;
//! - [`health`]: whether it is ready, and the endpoints that say so;
//! - `yaml`, `stdout`: documents in and out;
//! - [`crd`]: the custom resources as the API server stores them;
//! - [`class`]: a class as decisions need it, and the CI systems that it may list;
//! - [`authorize`]: who stands behind a pod, and whether they may use a class;
//! - [`cluster`]: the view that decisions are made from, kept by watches;
//! - [`decide`]: the decision on a pod, pure: its class, its pattern, what must
//!   not be and what is written;
//! - [`policies`]: the rules of the decision as the API server's own;
//! - [`admission`]: reviews in and out, over HTTP;
//! - [`mod@registration`]: which pods the API server asks about, kept right;
//! - [`certificate`]: what the API server trusts when it asks;
//! - [`args`]: the command line;
//! - [`preview`]: the decision made from files;
//! - [`serve`]: the running webhook;
//! - `run`: from the command line to an exit status.

pub mod admission;
pub mod args;
pub mod authorize;
pub mod certificate;
pub mod class;
pub mod cluster;
pub mod crd;
pub mod decide;
pub mod health;
pub mod metrics;
pub mod policies;
pub mod preview;
pub mod registration;
mod run;
pub mod serve;
mod stdout;
mod yaml;

pub use registration::{WebhookTarget, registration};
pub use run::run;
