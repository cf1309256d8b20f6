//! Admission of GPU pods into NVLink domains: the program, and its parts for tests.
//!
//! The way of a request: [`review`] reads it, [`admit`] asks [`decide`] which
//! class the pod is in and what that changes, with [`authorize`] in between for
//! restricted classes; [`patch`] records the changes; [`review`] answers. All
//! but the questions to the API server is pure. [`cluster`] keeps the [`view`]
//! that decisions are made from; [`preview`] fills it from files.

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
