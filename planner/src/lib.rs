//! The planner of the queue: which waiting job starts when, and on which GPUs.
//!
//! The crate is pure: values in, values out; no IO, no async, no clock, no Kubernetes
//! client.

#![warn(missing_docs)]
