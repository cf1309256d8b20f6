//! The harness of the end-to-end tests and of the demo. It runs the real programs on loopback and
//! leaves nothing behind.
//!
//! [`ControlPlane`] is etcd, API server, scheduler and controller manager;
//! [`Lab`] is a node of it that runs pods;
//! [`Kubectl`] talks to it as a user would, [`Helm`] installs the chart; [`Prometheus`] scrapes
//! and evaluates the [`Rules`], [`Alertmanager`] tells a [`Receiver`];
//! [`Exporter`] and [`Webhook`] are this project's programs as users run them.
//!
//! Everything is synchronous: a test reads like a shell session.

mod alertmanager;
pub mod assets;
mod balancer;
mod browser;
pub mod certificates;
mod compute_domain;
pub mod controlplane;
pub mod dashboards;
pub mod dcgm;
mod device_plugin;
mod exporter;
mod faulty;
mod foreign;
mod gitlab;
mod helm;
pub mod http;
mod kubeconfig;
mod kubectl;
pub mod kubelet;
mod lab;
mod metrics_page;
pub mod node;
pub mod nvml;
mod operators;
pub mod port;
mod process;
pub mod programs;
mod prometheus;
pub mod promql;
mod rules;
#[cfg(test)]
mod structure;
mod wait;
pub mod webhook;
pub mod workdir;

pub use alertmanager::{Alertmanager, Message, Notification, Receiver};
pub use balancer::{Backend, Balancer};
pub use browser::Browser;
pub use compute_domain::ComputeDomains;
pub use controlplane::ControlPlane;
pub use device_plugin::DevicePlugin;
pub use exporter::Exporter;
pub use faulty::{FaultyApi, Wrong};
pub use foreign::Foreign;
pub use gitlab::{GitlabJob, JobEnd};
pub use helm::{CHART, Helm, REGISTRY};
pub use kubectl::Kubectl;
pub use kubelet::Kubelet;
pub use lab::{
    Allocations, Allocator, Choice, DriverEvent, Lab, LabNode, Shares, Step, VendorPlugin, allocate,
};
pub use metrics_page::MetricsPage;
pub use node::Node;
pub use nvml::FakeNvml;
pub use operators::Operator;
pub use process::{Process, command};
pub use prometheus::{Prometheus, Sample, check_metrics};
pub use rules::Rules;
pub use wait::{crowd, wait_until};
pub use webhook::{Controller, Replica, Webhook};
