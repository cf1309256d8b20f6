//! A family of metrics, and its labels and values.

use prometheus_client::metrics::MetricType;

#[derive(Debug)]
pub struct Family {
    /// Name without `_total`.
    pub name: &'static str,
    /// The unit of its values.
    pub unit: Unit,
    /// Help text: sentences, each with a full stop.
    pub help: &'static str,
    /// Gauge or counter; the sample names of a counter end in `_total`.
    pub kind: MetricType,
    /// Names of its labels. A label with an unknown value is omitted.
    pub labels: &'static [&'static str],
    /// The group that switches it on and off.
    pub group: Group,
    /// Number of series per node, for the table of series in the documentation.
    pub series: &'static str,
}

/// The unit of a family's values, or the values that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Its labels say everything.
    One,
    ZeroOrOne,
    Bytes,
    BytesPerSecond,
    Seconds,
    UnixTime,
    Ratio,
    RatioAboutOne,
    Links,
    Gpus,
    Domains,
    Errors,
    Failures,
    Runs,
    Clients,
    Restarts,
    Lines,
}

impl Unit {
    /// Returns the words in the documentation.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::One => "always 1",
            Self::ZeroOrOne => "0 or 1",
            Self::Bytes => "bytes",
            Self::BytesPerSecond => "bytes per second",
            Self::Seconds => "seconds",
            Self::UnixTime => "seconds since 1970",
            Self::Ratio => "ratio, 0 to 1",
            Self::RatioAboutOne => "ratio, about 1",
            Self::Links => "links",
            Self::Gpus => "GPUs",
            Self::Domains => "domains",
            Self::Errors => "errors",
            Self::Failures => "failures",
            Self::Runs => "runs",
            Self::Clients => "clients",
            Self::Restarts => "restarts",
            Self::Lines => "lines",
        }
    }
}

/// Families that are switched on and off together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// GPUs and their missing links.
    Gpu,
    /// State and speed of links.
    Link,
    Throughput,
    Error,
    /// The graph: pairs of GPUs.
    Peer,
    /// Domains, and their free GPUs.
    Domain,
    /// The fabric, as each GPU sees it.
    Fabric,
    Xid,
    /// Which containers hold which GPUs, and how good the placements are.
    Placement,
    /// Results of collective benchmarks.
    Collective,
    /// The exporter itself; always on.
    Exporter,
}

impl Group {
    /// All groups that can be switched off.
    pub const SWITCHED: [Self; 10] = [
        Self::Gpu,
        Self::Link,
        Self::Throughput,
        Self::Error,
        Self::Peer,
        Self::Domain,
        Self::Fabric,
        Self::Xid,
        Self::Placement,
        Self::Collective,
    ];

    /// Returns its word in the flag `--collector.WORD`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Link => "link",
            Self::Throughput => "throughput",
            Self::Error => "error",
            Self::Peer => "peer",
            Self::Domain => "domain",
            Self::Fabric => "fabric",
            Self::Xid => "xid",
            Self::Placement => "placement",
            Self::Collective => "collective",
            Self::Exporter => "exporter",
        }
    }
}

/// The groups that are written. [`Group::Exporter`] always is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups(u16);

impl Groups {
    pub const ALL: Self = Self(u16::MAX);
    /// Only the exporter's own group.
    pub const NONE: Self = Self(0);

    /// Returns these groups and `group`.
    #[must_use]
    pub fn with(self, group: Group) -> Self {
        Self(self.0 | 1 << group as u16)
    }

    /// Returns these groups without `group`.
    #[must_use]
    pub fn without(self, group: Group) -> Self {
        Self(self.0 & !(1 << group as u16))
    }

    /// Reports whether `group` is one of these groups.
    #[must_use]
    pub fn contains(self, group: Group) -> bool {
        group == Group::Exporter || self.0 & 1 << group as u16 != 0
    }
}

pub(super) const fn gauge(
    group: Group,
    name: &'static str,
    unit: Unit,
    labels: &'static [&'static str],
    series: &'static str,
    help: &'static str,
) -> Family {
    Family {
        name,
        unit,
        help,
        kind: MetricType::Gauge,
        labels,
        group,
        series,
    }
}

pub(super) const fn counter(
    group: Group,
    name: &'static str,
    unit: Unit,
    labels: &'static [&'static str],
    series: &'static str,
    help: &'static str,
) -> Family {
    let kind = MetricType::Counter;
    let gauge = gauge(group, name, unit, labels, series, help);
    Family { kind, ..gauge }
}

/// A label's value. The series omits a label with an unknown value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Label<'a> {
    Text(&'a str),
    Number(u64),
    Unknown,
}

impl Label<'_> {
    /// Reports whether the value is unknown. An empty text is: to Prometheus it means no label.
    pub(super) fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown | Self::Text(""))
    }
}

impl<'a> From<&'a str> for Label<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl From<u32> for Label<'_> {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u64> for Label<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl<'a> From<Option<&'a str>> for Label<'a> {
    fn from(text: Option<&'a str>) -> Self {
        text.map_or(Self::Unknown, Self::Text)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Whole(u64),
    Real(f64),
}

impl Family {
    /// Returns the name of its samples.
    #[must_use]
    pub fn sample_name(&self) -> String {
        match self.kind {
            MetricType::Counter => format!("{}_total", self.name),
            _ => self.name.to_owned(),
        }
    }
}
