//! One run of a benchmark, as its output reports it.

use nvlink_topology::PathClass;
use serde::{Deserialize, Serialize};

use super::kind::Collective;

/// The maximum number of rows of one run; more are an error. nccl-tests prints one row for
/// each size, which it doubles, so real tables have about 30.
pub(crate) const MOST_ROWS: usize = 2048;
/// The maximum number of ranks that a run lists.
pub(crate) const MOST_DEVICES: usize = 16_384;
/// The maximum number of warnings that a run keeps.
const MOST_WARNINGS: usize = 8;

/// One run of one collective.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Line of the input on which it begins, from 1.
    pub line: u64,
    pub collective: Option<Known<Collective>>,
    /// Number of GPUs: nccl-tests has one rank for each.
    pub ranks: Option<Known<u32>>,
    /// Number of machines.
    pub nodes: Option<Known<u32>>,
    /// Class of the slowest path of the rings inside a node.
    pub path: Option<Known<PathClass>>,
    /// Whether NVSwitches add up the data of its large messages (NVLS, NVLink SHARP).
    pub nvls: Option<Known<bool>>,
    /// The log says that they do not, and names no setting that turns it off.
    pub nvls_refused: bool,
    /// The ranks that the output lists; it may list some only.
    pub devices: Vec<Device>,
    /// One row for each size, type, operation and root.
    pub rows: Vec<Row>,
    /// Average bus bandwidth of all rows, in GB/s, as printed at the end.
    pub average_bandwidth: Option<f64>,
    /// How long the set-up of the communicator took, on the slowest rank.
    pub setup_seconds: Option<f64>,
    /// What is unusual and no failure.
    pub warnings: Vec<String>,
    pub failure: Option<Failure>,
    /// The input never says that the run has ended: NCCL Inspector rewrites its file, or adds to
    /// it, for as long as the job runs.
    pub endless: bool,
}

/// A value, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known<T> {
    pub value: T,
    pub from: Origin,
}

impl<T> Known<T> {
    pub fn new(value: T, from: Origin) -> Self {
        Self { value, from }
    }
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// A flag.
    Flag,
    /// The output of the benchmark.
    Output,
    /// NCCL's log.
    Log,
    /// The topology of the node.
    Topology,
    /// Derived from the measured bandwidths.
    Bandwidths,
}

impl Origin {
    /// Returns the words that follow "from".
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Flag => "flags",
            Self::Output => "the output",
            Self::Log => "NCCL's log",
            Self::Topology => "the topology",
            Self::Bandwidths => "the bandwidths",
        }
    }
}

/// One rank's GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub rank: u32,
    pub pid: u32,
    pub host: String,
    /// PCI address as printed: `0000:1b:00`, or only the bus as `0x1b`.
    pub pci: String,
    pub model: String,
}

/// The results of one message size.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Bytes of the message.
    pub size: u64,
    /// Data type, such as `float`.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Reduction, such as `sum`; `none` without one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub redop: String,
    /// The root's rank; -1 without one.
    pub root: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_place: Option<Measured>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_place: Option<Measured>,
    /// Number of measurements, of which the values are the means.
    #[serde(skip_serializing_if = "is_one")]
    pub measurements: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_one(number: &u32) -> bool {
    *number <= 1
}

/// One measurement, in the units in which benchmarks print it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    /// Microseconds.
    pub time_us: f64,
    /// Algorithm bandwidth, GB/s.
    #[serde(rename = "algGBps")]
    pub alg_bandwidth: f64,
    /// Bus bandwidth, GB/s.
    #[serde(rename = "busGBps")]
    pub bus_bandwidth: f64,
    /// Wrong values; absent where they were not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wrong: Option<u64>,
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub reason: Reason,
    /// Line of the input.
    pub line: u64,
    /// What the input says there, on one line.
    pub text: String,
}

/// Kinds of failures: the values of the label `reason`.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    strum::Display,
    strum::EnumIter,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Reason {
    /// The results are wrong.
    WrongResults,
    /// The output ends before the benchmark does.
    Truncated,
    /// NCCL or CUDA reports an error.
    NcclError,
    /// Something waited too long.
    Timeout,
}

impl Reason {
    /// Returns the word used in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Classes of message sizes: latency dominates small messages, bandwidth large ones.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum SizeClass {
    /// Below 1 MiB.
    Small,
    /// Below 256 MiB.
    Medium,
    Large,
}

impl SizeClass {
    pub const ALL: [Self; 3] = [Self::Small, Self::Medium, Self::Large];

    /// Returns the class of a message of `size` bytes.
    #[must_use]
    pub fn of(size: u64) -> Self {
        match size {
            0..0x10_0000 => Self::Small,
            0x10_0000..0x1000_0000 => Self::Medium,
            _ => Self::Large,
        }
    }

    /// Returns the word used in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The result of a size class: that of its largest message, where bandwidth is stable.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Level {
    /// Bytes of the message.
    pub size: u64,
    /// Bus bandwidth, as printed.
    pub bytes_per_second: u64,
    pub seconds: f64,
}

impl Run {
    /// Returns the result of a size class: out-of-place, or in-place where that is all.
    #[must_use]
    pub fn level(&self, class: SizeClass) -> Option<Level> {
        let row = self.row(class)?;
        let measured = row.best()?;
        Some(Level {
            size: row.size,
            bytes_per_second: bytes_per_second(measured.bus_bandwidth),
            seconds: measured.time_us / 1e6,
        })
    }

    /// Returns the row of [`Run::level`].
    pub(super) fn row(&self, class: SizeClass) -> Option<&Row> {
        let of_class = |row: &&Row| SizeClass::of(row.size) == class && row.best().is_some();
        let rows = self.rows.iter().filter(of_class);
        rows.max_by_key(|row| row.size)
    }

    /// Reports whether a row has a bandwidth.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        let mut rows = self.rows.iter();
        rows.any(|row| row.out_of_place.is_some() || row.in_place.is_some())
    }

    /// Adds a row; one of the same size, type, operation and root becomes their mean.
    /// Returns `false` if there are too many.
    pub fn add(&mut self, row: Row) -> bool {
        let same = |one: &&mut Row| {
            (one.size, one.root) == (row.size, row.root)
                && one.kind == row.kind
                && one.redop == row.redop
        };
        if let Some(there) = self.rows.iter_mut().rev().find(same) {
            there.merge(&row);
            return true;
        }
        if self.rows.len() < MOST_ROWS {
            self.rows.push(row);
            return true;
        }
        false
    }

    /// Adds a warning, unless there are too many.
    pub fn warn(&mut self, warning: String) {
        if self.warnings.len() < MOST_WARNINGS && !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Returns the wrong values of all rows, and the largest message that has some.
    #[must_use]
    pub fn wrong(&self) -> Option<(u64, u64)> {
        let rows = self.rows.iter().filter(|row| row.wrong() > 0);
        let total = rows.clone().map(Row::wrong).fold(0, u64::saturating_add);
        rows.map(|row| row.size).max().map(|size| (total, size))
    }

    /// Returns the names of the hosts, sorted.
    #[must_use]
    pub fn hosts(&self) -> Vec<&str> {
        let mut hosts: Vec<_> = self.devices.iter().map(|one| &*one.host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }
}

impl Row {
    fn best(&self) -> Option<&Measured> {
        self.out_of_place.as_ref().or(self.in_place.as_ref())
    }

    fn wrong(&self) -> u64 {
        let both = [&self.out_of_place, &self.in_place].into_iter().flatten();
        both.filter_map(|one| one.wrong)
            .fold(0, u64::saturating_add)
    }

    fn merge(&mut self, other: &Self) {
        let count = self.measurements.max(1);
        let merge = |mean: &mut Option<Measured>, next: &Option<Measured>| match (mean, next) {
            (Some(mean), Some(next)) => mean.merge(next, f64::from(count)),
            (mean @ None, next) => *mean = *next,
            (Some(_), None) => {}
        };
        merge(&mut self.out_of_place, &other.out_of_place);
        merge(&mut self.in_place, &other.in_place);
        self.measurements = count.saturating_add(other.measurements.max(1));
    }
}

impl Measured {
    /// Returns a measurement if its numbers can be used: a time of 0 gives infinite bandwidths.
    #[must_use]
    pub fn new(
        time_us: f64,
        alg_bandwidth: f64,
        bus_bandwidth: f64,
        wrong: Option<u64>,
    ) -> Option<Self> {
        // No machine reaches 10^9 GB/s.
        let good = |value: f64| (0.0..1e9).contains(&value);
        let usable = (0.0..1e18).contains(&time_us) && good(alg_bandwidth) && good(bus_bandwidth);
        usable.then_some(Self {
            time_us,
            alg_bandwidth,
            bus_bandwidth,
            wrong,
        })
    }

    fn merge(&mut self, next: &Self, count: f64) {
        let mean = |mean: &mut f64, next: f64| *mean += (next - *mean) / (count + 1.0);
        mean(&mut self.time_us, next.time_us);
        mean(&mut self.alg_bandwidth, next.alg_bandwidth);
        mean(&mut self.bus_bandwidth, next.bus_bandwidth);
        self.wrong = match (self.wrong, next.wrong) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        };
    }
}

/// Converts GB/s, as printed with a few decimals, to whole bytes per second.
#[must_use]
pub fn bytes_per_second(gbps: f64) -> u64 {
    // The cast saturates.
    (gbps * 1e9).round() as u64
}

/// Shortens text of an input to one line of at most `most` characters.
#[must_use]
pub fn short(text: &str, most: usize) -> String {
    let text = text.trim();
    let mut line: String = text.chars().take(most).collect();
    line = line.replace(char::is_control, " ");
    if text.chars().nth(most).is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(size: u64, bus_bandwidth: f64) -> Row {
        Row {
            size,
            out_of_place: Measured::new(10.0, bus_bandwidth, bus_bandwidth, Some(0)),
            ..Row::default()
        }
    }

    #[test]
    fn the_result_of_a_size_class_is_that_of_its_largest_message() {
        let mut run = Run::default();
        assert_eq!(run.level(SizeClass::Large), None);
        for (size, bus) in [(1 << 30, 356.01), (1 << 33, 386.56), (1 << 20, 12.0)] {
            assert!(run.add(row(size, bus)));
        }
        assert!(run.add(Row {
            size: 1 << 34,
            ..Row::default()
        }));
        let level = run.level(SizeClass::Large).unwrap();
        assert_eq!(
            (level.size, level.bytes_per_second),
            (1 << 33, 386_560_000_000)
        );
        assert_eq!(run.level(SizeClass::Medium).unwrap().size, 1 << 20);
        assert_eq!(run.level(SizeClass::Small), None);
    }

    #[test]
    fn repeated_measurements_become_their_mean() {
        let mut run = Run::default();
        for bus in [1.0, 2.0, 6.0] {
            assert!(run.add(row(8, bus)));
        }
        let level = run.level(SizeClass::Small).unwrap();
        assert_eq!(level.bytes_per_second, 3_000_000_000);
        assert_eq!((run.rows.len(), run.rows[0].measurements), (1, 3));
    }

    #[test]
    fn rows_are_bounded_and_impossible_values_are_absent() {
        let mut run = Run::default();
        let added = (0..MOST_ROWS as u64 + 1).filter(|&size| run.add(row(size, 1.0)));
        assert_eq!(added.count(), MOST_ROWS);
        assert_eq!(Measured::new(0.0, f64::INFINITY, f64::INFINITY, None), None);
        assert_eq!(Measured::new(f64::NAN, 1.0, 1.0, None), None);
        assert_eq!(Measured::new(-1.0, 1.0, 1.0, None), None);
        assert_eq!(short(" a\tb\u{1b}[0m ", 5), "a b […");
    }
}
