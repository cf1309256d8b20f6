//! The families: names, help and labels in one table, from which they are written.

use std::fmt;

use prometheus_client::{
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
};

/// One metric family.
#[derive(Debug)]
pub struct Family {
    /// Name without `_total`.
    pub name: &'static str,
    /// What it says, a sentence.
    pub help: &'static str,
    /// Gauge or counter.
    pub kind: Kind,
    /// Names of its labels. A label whose value is not known is left out.
    pub labels: &'static [&'static str],
}

/// Types of metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only grows; its name gets `_total`.
    Counter,
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family {
        name,
        help,
        kind: Kind::Gauge,
        labels,
    }
}

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family {
        name,
        help,
        kind: Kind::Counter,
        labels,
    }
}

macro_rules! families {
    ($($id:ident = $family:expr;)*) => {
        $(pub(super) static $id: Family = $family;)*

        /// All families, in the order in which they are written.
        pub static FAMILIES: &[&Family] = &[$(&$id),*];
    };
}

families! {
    GPU_INFO = gauge(
        "nvlink_gpu_info",
        &["gpu", "UUID", "pci_bus_id", "model", "domain", "numa_node", "mig", "node"],
        "A GPU of the node and the NVLink domain that it is in; always 1.",
    );
    MISSING_LINKS = gauge(
        "nvlink_missing_links",
        &["gpu", "UUID"],
        "NVLinks that should be up and are not, judged by the other GPUs of the model on the node and by what its board has.",
    );
    LINK_UP = gauge(
        "nvlink_link_up",
        &["gpu", "UUID", "link", "remote"],
        "Whether the NVLink is up. The label remote says what is at the other end.",
    );
    LINK_SPEED = gauge(
        "nvlink_link_speed_bytes_per_second",
        &["gpu", "UUID", "link"],
        "Line rate of the NVLink in one direction; absent while it is down.",
    );
    TRANSMIT = counter(
        "nvlink_transmit_bytes",
        &["gpu", "UUID", "link"],
        "Payload bytes that the GPU sent over the NVLink.",
    );
    RECEIVE = counter(
        "nvlink_receive_bytes",
        &["gpu", "UUID", "link"],
        "Payload bytes that the GPU received over the NVLink.",
    );
    ERRORS = counter(
        "nvlink_errors",
        &["gpu", "UUID", "link", "kind"],
        "Errors that the GPU counted on the NVLink, by kind.",
    );
    PEER_LINKS = gauge(
        "nvlink_peer_links",
        &["gpu", "UUID", "peer", "peer_UUID", "via"],
        "NVLinks that carry traffic from the GPU to its peer: direct ones, or the fewer of both GPUs' links to the switches.",
    );
    PEER_BANDWIDTH = gauge(
        "nvlink_peer_bandwidth_bytes_per_second",
        &["gpu", "UUID", "peer", "peer_UUID", "via"],
        "Usable NVLink bandwidth from the GPU to its peer.",
    );
    DOMAIN_GPUS = gauge(
        "nvlink_domain_gpus",
        &["domain", "node"],
        "GPUs of the node in the NVLink domain.",
    );
    DOMAIN_FREE_GPUS = gauge(
        "nvlink_domain_free_gpus",
        &["domain", "node"],
        "GPUs of the node in the NVLink domain that no pod holds; absent where allocations are not known.",
    );
    LARGEST_FREE_SET = gauge(
        "nvlink_largest_free_set_gpus",
        &["node"],
        "The most free GPUs in one NVLink domain of the node (1 where free GPUs are in none): the largest job that still fits well.",
    );
    COLLECTOR_SUCCESS = gauge(
        "nvlink_exporter_collector_success",
        &["collector"],
        "Whether the last collection succeeded.",
    );
    COLLECTION_DURATION = gauge(
        "nvlink_exporter_collection_duration_seconds",
        &["collector"],
        "How long the last collection took.",
    );
    SNAPSHOT_AGE = gauge(
        "nvlink_exporter_snapshot_age_seconds",
        &[],
        "Time since the last collection ended; grows while the source hangs.",
    );
    SOURCE_INFO = gauge(
        "nvlink_exporter_source_info",
        &["source", "from"],
        "What the topology was read from; always 1.",
    );
    BUILD_INFO = gauge(
        "nvlink_exporter_build_info",
        &["version"],
        "The exporter's version; always 1.",
    );
}

/// One sample: label values in the order of [`Family::labels`] (an empty one is
/// left out), and the value.
pub(super) type Series = (Vec<String>, Value);

/// A sample's value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Whole(u64),
    Real(f64),
}

impl Family {
    /// Writes the family, or nothing where there is no series.
    pub(super) fn write(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        series: impl IntoIterator<Item = Series>,
    ) -> fmt::Result {
        let mut series = series.into_iter().peekable();
        if series.peek().is_none() {
            return Ok(());
        }
        let kind = match self.kind {
            Kind::Gauge => MetricType::Gauge,
            Kind::Counter => MetricType::Counter,
        };
        let mut family = encoder.encode_descriptor(self.name, self.help, None, kind)?;
        for (values, value) in series {
            let labels = self.labels.iter().copied().zip(values);
            let labels: Vec<_> = labels.filter(|(_, value)| !value.is_empty()).collect();
            match labels.is_empty() {
                // `name 1`, not `name{} 1`.
                true => self.sample(&mut family, value)?,
                false => self.sample(&mut family.encode_family(&labels)?, value)?,
            }
        }
        Ok(())
    }

    fn sample(&self, metric: &mut MetricEncoder<'_>, value: Value) -> fmt::Result {
        match (self.kind, value) {
            (Kind::Gauge, Value::Whole(value)) => metric.encode_gauge(&value),
            (Kind::Gauge, Value::Real(value)) => metric.encode_gauge(&value),
            (Kind::Counter, Value::Whole(value)) => {
                metric.encode_counter::<NoLabelSet, _, f64>(&value, None)
            }
            (Kind::Counter, Value::Real(value)) => {
                metric.encode_counter::<NoLabelSet, _, f64>(&value, None)
            }
        }
    }
}
