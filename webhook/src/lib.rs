//! Admission of GPU pods into NVLink domains: the program, and its parts for tests.
//!
//! The modules, in an order in which each uses only those above it:
//!
//! - [`metrics`]: metrics of the program itself;
//! - [`recent`]: the latest decisions, for the page;
//! - [`health`]: readiness, and the endpoints that report it;
//! - [`policies`]: the ValidatingAdmissionPolicies, printed, and compared with a cluster's;
//! - [`admission`]: admission reviews over HTTP;
//! - [`certificate`]: the certificate that the API server trusts;
//! - [`mod@registration`]: which pods the API server calls the webhook for;
//! - [`page`]: the page of the cluster;
//! - [`extender`]: kube-scheduler's extender;
//! - [`args`]: the command line;
//! - `drain`: empties the queue before the webhook is removed;
//! - [`serve`]: the running webhook;
//! - `run`: from the command line to an exit status.

pub mod admission;
pub mod args;
pub mod certificate;
mod drain;
pub mod extender;
pub mod health;
pub mod metrics;
pub mod page;
pub mod policies;
pub mod recent;
pub mod registration;
mod run;
pub mod serve;

pub use registration::{WebhookTarget, registration};
pub use run::run;
