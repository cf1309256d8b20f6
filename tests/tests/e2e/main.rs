//! End-to-end tests on real parts: etcd, API server, scheduler, controllers, kubectl,
//! Prometheus, and the project's programs.
//!
//! They are one binary, so that they share one control plane: see [`shared`].

// Clippy recognises test functions as tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod access;
mod admission;
mod alerts;
mod allocations;
mod availability;
mod broken;
mod build;
mod cases;
mod chart;
mod check;
mod ci;
mod clients;
mod cluster_page;
mod crds;
mod dashboards;
mod debug;
mod demo;
mod device_plugins;
mod extender;
mod foreign;
mod gang;
mod harness;
mod lab;
mod later;
mod metrics;
mod nvml;
mod overload;
mod page;
mod pods;
mod policies;
mod publishing;
mod queue;
mod queued;
mod release;
mod running;
mod scheduling;
mod shared;
mod siblings;
mod status;
mod untouched;
mod web;
