//! What a family is, and how it is written.

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
    /// What it is switched on and off with.
    pub group: Group,
    /// How many series one node has of it, for the table of cardinality.
    pub series: &'static str,
}

/// Families that are switched on and off together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// GPUs and what they lack.
    Gpu,
    /// State and speed of links.
    Link,
    /// Traffic of links.
    Throughput,
    /// Errors of links.
    Error,
    /// The graph: pairs of GPUs.
    Peer,
    /// Domains, and what is free in them.
    Domain,
    /// The fabric as each GPU sees it.
    Fabric,
    /// XIDs.
    Xid,
    /// Who holds which GPUs, and how well they were placed.
    Placement,
    /// The exporter itself; always on.
    Exporter,
}

/// Types of metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only grows; its name gets `_total`.
    Counter,
}

pub(super) const fn gauge(
    group: Group,
    name: &'static str,
    labels: &'static [&'static str],
    series: &'static str,
    help: &'static str,
) -> Family {
    Family {
        name,
        help,
        kind: Kind::Gauge,
        labels,
        group,
        series,
    }
}

pub(super) const fn counter(
    group: Group,
    name: &'static str,
    labels: &'static [&'static str],
    series: &'static str,
    help: &'static str,
) -> Family {
    Family {
        name,
        help,
        kind: Kind::Counter,
        labels,
        group,
        series,
    }
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
