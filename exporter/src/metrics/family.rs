//! A family of metrics, and its labels and values.

use prometheus_client::metrics::MetricType;
use strum::IntoEnumIterator;

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

/// The unit of a family's values, or the values that there are, with the words in the documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Unit {
    /// Its labels say everything.
    #[strum(serialize = "always 1")]
    One,
    #[strum(serialize = "0 or 1")]
    ZeroOrOne,
    Bytes,
    #[strum(serialize = "bytes/s")]
    BytesPerSecond,
    Seconds,
    #[strum(serialize = "seconds since 1970")]
    UnixTime,
    #[strum(serialize = "ratio, 0 to 1")]
    Ratio,
    #[strum(serialize = "ratio, about 1")]
    RatioAboutOne,
    Links,
    #[strum(serialize = "GPUs")]
    Gpus,
    Domains,
    Errors,
    Failures,
    Runs,
    Clients,
    Restarts,
    Lines,
}

/// Families that are switched on and off together, by their words in the flag `--collector.WORD`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, strum::EnumIter, strum::EnumString,
)]
#[strum(serialize_all = "lowercase")]
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
    /// The fabric, as each GPU sees it, and the IMEX channels of the node.
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
    /// Returns all groups that can be switched off.
    pub fn switched() -> impl Iterator<Item = Self> {
        Self::iter().filter(|one| *one != Self::Exporter)
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
