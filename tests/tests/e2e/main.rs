//! The whole path on real parts: etcd, API server, scheduler, controllers,
//! kubectl, Prometheus, and our own two programs.
//!
//! One binary, so that its tests share one control plane: see [`shared`].

// Clippy knows test functions as tests, but not what they call.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod access;
mod admission;
mod allocations;
mod availability;
mod build;
mod cases;
mod clients;
mod crds;
mod debug;
mod gang;
mod harness;
mod later;
mod metrics;
mod nvml;
mod overload;
mod page;
mod pods;
mod policies;
mod publishing;
mod running;
mod scheduling;
mod shared;
mod untouched;
mod web;
