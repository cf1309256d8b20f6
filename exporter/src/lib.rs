//! Discovers the NVLink graph of a GPU node, exports it to Prometheus and
//! publishes it to Kubernetes.

pub mod collect;
pub mod metrics;
pub mod snapshot;
pub mod source;
