//! The whole path on real parts: etcd, API server, scheduler, controllers,
//! kubectl, Prometheus, and our own two programs.
//!
//! One binary, so that its tests share one control plane: see [`cluster`].

mod access;
mod admission;
mod availability;
mod cluster;
mod crds;
mod gang;
mod harness;
mod metrics;
mod pods;
mod publishing;
mod scheduling;
mod untouched;
