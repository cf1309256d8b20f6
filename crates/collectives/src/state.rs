//! What is kept of runs: the last ones of each placement class and collective, and their
//! baseline.

use std::collections::{BTreeMap, BTreeSet};

use nvlink_topology::{PathClass, calibration};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Collective,
    model::{Expected, Nvls, ratio},
    placement::Placed,
    run::{Failure, Known, Level, Origin, Reason, Row, Run, SizeClass, short},
};

/// The number of runs that are kept of each class: about a month of daily runs.
pub const KEPT_RUNS: usize = 32;
/// The maximum number of classes that are kept; the one whose latest run is the oldest goes
/// first. With [`KEPT_RUNS`], the file stays below the 1 MiB that `serve` reads.
pub const KEPT_CLASSES: usize = 64;
/// The number of earlier runs that make a baseline: the median of fewer says nothing.
pub(crate) const BASELINE_RUNS: usize = 3;
/// The maximum length of a model's name and of a failure's text, in characters.
const MOST_TEXT: usize = 120;

/// The content of the state file. Keys that this version does not know are kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// By class, in ascending order.
    #[serde(default)]
    pub collectives: Vec<Entry>,
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

/// The runs of one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    #[serde(flatten)]
    pub class: Class,
    /// What the model says for large messages of the latest run of which it says something,
    /// bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_bytes_per_second: Option<u64>,
    /// The last [`KEPT_RUNS`], the latest one last.
    #[serde(default)]
    pub runs: Vec<Kept>,
    /// Number of all runs, also of those that are no longer kept.
    #[serde(default)]
    pub total: u64,
    /// Number of failed ones, by reason.
    #[serde(default)]
    pub failures: BTreeMap<Reason, u64>,
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

/// A collective and the placement class in which it ran.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Class {
    pub collective: Collective,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub gpus: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathClass>,
}

/// What is kept of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    /// Identifies the run, so that reading a file twice counts it once.
    pub id: String,
    /// Identifies its first measurement, by which a reading that ends early is known as a part of
    /// the run; `None` without measurements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
    /// Unix time of its end.
    pub at: u64,
    /// Its number in its input, which orders runs of the same time.
    #[serde(default)]
    pub index: u32,
    /// Results by size class; none of a failed run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub levels: BTreeMap<SizeClass, Level>,
    /// How long the set-up of the communicator took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup_seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// What the model expects of its large messages; absent without them, if the model says
    /// nothing, and in runs that earlier versions kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Expected>,
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

impl Class {
    /// Returns the class of a run; `None` if its collective or its number of GPUs is not known.
    #[must_use]
    pub fn of(placed: &Placed) -> Option<Self> {
        let place = &placed.place;
        let value = |text: &str| short(text, MOST_TEXT);
        Some(Self {
            collective: placed.run.collective.as_ref()?.value,
            model: place.model.as_ref().map(|model| value(&model.value)),
            gpus: place.gpus.as_ref()?.value,
            nodes: place.nodes.as_ref().map(|nodes| nodes.value),
            path: place.path.as_ref().map(|path| path.value),
        })
    }
}

impl Kept {
    /// Returns what is kept of `run`, the one with this `index` in the input `name` that
    /// ended at the Unix time `at`.
    #[must_use]
    pub fn new(run: &Run, name: &str, index: u32, at: u64) -> Self {
        let failure = run.failure.clone().map(|failure| Failure {
            text: short(&failure.text, MOST_TEXT),
            ..failure
        });
        let levels = SizeClass::ALL.into_iter();
        let levels = levels.filter(|_| failure.is_none());
        Self {
            id: format!("{:016x}", identity(run, name)),
            first: first(run).map(|first| format!("{first:016x}")),
            at,
            index,
            levels: levels
                .filter_map(|class| Some((class, run.level(class)?)))
                .collect(),
            setup_seconds: run.setup_seconds,
            failure,
            model: None,
            unknown: Map::new(),
        }
    }
}

impl State {
    /// Adds a run. One that is there already is not counted again, and one that is older than
    /// all that are kept is ignored. A file that is written again may be read before its end: such
    /// a part of a run that is there is ignored, and a run replaces a part of it. Counters keep
    /// what they counted, because they only rise. Returns whether the run says something new.
    pub fn add(&mut self, class: &Class, kept: Kept, expected: Option<Expected>) -> bool {
        let at = match self
            .collectives
            .binary_search_by(|one| one.class.cmp(class))
        {
            Ok(at) => at,
            Err(at) => {
                self.collectives.insert(at, Entry::new(class.clone()));
                at
            }
        };
        let is_new = self.collectives[at].add(kept, expected);
        self.shrink();
        is_new
    }

    /// Adds the runs of one input, in its order, each with its class and what the model says
    /// of it. Returns of each whether it is new.
    ///
    /// An input grows at its end. So what precedes a run that is kept was added with it or
    /// before it, also if it is no longer kept.
    pub(crate) fn add_input(&mut self, runs: Vec<(Class, Kept, Option<Expected>)>) -> Vec<bool> {
        let mut followed = BTreeSet::new();
        let mut forgotten = vec![false; runs.len()];
        for (forgotten, (class, kept, _)) in forgotten.iter_mut().zip(&runs).rev() {
            match self.entry(class) {
                Some(entry) if entry.find(kept).is_some() => drop(followed.insert(class)),
                Some(entry) => *forgotten = entry.forgets() && followed.contains(class),
                None => {}
            }
        }
        drop(followed);
        let mut new = Vec::with_capacity(runs.len());
        for ((class, kept, expected), forgotten) in runs.into_iter().zip(forgotten) {
            new.push(!forgotten && self.add(&class, kept, expected));
        }
        new
    }

    /// Returns the entry of a class.
    #[must_use]
    pub fn entry(&self, class: &Class) -> Option<&Entry> {
        self.collectives.iter().find(|one| one.class == *class)
    }

    /// Returns these runs and those of `other`.
    #[must_use]
    pub fn with(mut self, other: &Self) -> Self {
        for entry in &other.collectives {
            let earlier = self.entry(&entry.class);
            let counted = earlier.map_or((0, BTreeMap::new()), |one| {
                (one.total, one.failures.clone())
            });
            for kept in &entry.runs {
                self.add(&entry.class, kept.clone(), kept.model.clone());
            }
            let (total, mut failures) = counted;
            for (&reason, count) in &entry.failures {
                *failures.entry(reason).or_default() += count;
            }
            let merged = self
                .collectives
                .iter_mut()
                .find(|one| one.class == entry.class);
            if let Some(merged) = merged {
                merged.total = total + entry.total;
                merged.failures = failures;
                let expected = merged.expected_bytes_per_second;
                merged.expected_bytes_per_second = expected.or(entry.expected_bytes_per_second);
            }
        }
        self
    }

    /// Returns the runs from which bandwidths follow. All-reduce is what the constants are for:
    /// its bus bandwidth is that of the bottleneck. Over several nodes, the network limits it.
    pub fn measured(&self) -> impl Iterator<Item = calibration::Run> {
        let measures = |entry: &&Entry| {
            let class = &entry.class;
            class.collective == Collective::AllReduce && class.nodes == Some(1)
        };
        let entries = self.collectives.iter().filter(measures);
        entries.flat_map(|entry| entry.runs.iter().filter_map(|kept| entry.measured(kept)))
    }

    /// Puts entries into order: a file may have been edited.
    pub(super) fn sort(&mut self) {
        self.collectives.sort_by(|a, b| a.class.cmp(&b.class));
        for entry in &mut self.collectives {
            entry.runs.sort_by(Kept::order);
        }
    }

    fn shrink(&mut self) {
        while self.collectives.len() > KEPT_CLASSES {
            let last = |entry: &Entry| entry.runs.last().map(|run| run.at);
            let oldest = self.collectives.iter().enumerate();
            let Some((at, _)) = oldest.min_by_key(|(_, entry)| last(entry)) else {
                return;
            };
            self.collectives.remove(at);
        }
    }
}

impl Kept {
    /// Reports whether the output ended before the run did.
    fn is_part(&self) -> bool {
        let failure = self.failure.as_ref();
        failure.is_some_and(|failure| failure.reason == Reason::Truncated)
    }

    /// Reports whether both are readings of one run.
    fn is_same(&self, other: &Self) -> bool {
        let same_start = self.first.is_some() && self.first == other.first;
        self.id == other.id || (same_start && (self.is_part() || other.is_part()))
    }

    fn order(&self, other: &Self) -> std::cmp::Ordering {
        let key = |one: &Self| (one.at, one.index);
        key(self)
            .cmp(&key(other))
            .then_with(|| self.id.cmp(&other.id))
    }
}

/// Returns `nvls` of a run of which nothing says whether it used it.
fn of_topology(nvls: Nvls) -> Nvls {
    Nvls {
        expected: Known::new(true, Origin::Topology),
        ..nvls
    }
}

impl Entry {
    fn new(class: Class) -> Self {
        Self {
            class,
            expected_bytes_per_second: None,
            runs: Vec::new(),
            total: 0,
            failures: BTreeMap::new(),
            unknown: Map::new(),
        }
    }

    fn add(&mut self, kept: Kept, expected: Option<Expected>) -> bool {
        self.expect(expected.as_ref());
        let measured = kept.levels.contains_key(&SizeClass::Large);
        let model = expected.or_else(|| self.model());
        let model = model.filter(|_| measured);
        let kept = Kept { model, ..kept };
        if let Some(at) = self.find(&kept) {
            let completes = self.runs[at].is_part() && !kept.is_part();
            if completes {
                self.count(&kept);
                self.runs[at] = kept;
                self.runs.sort_by(Kept::order);
            }
            return completes;
        }
        let full = self.runs.len() >= KEPT_RUNS;
        let is_old = self
            .runs
            .first()
            .is_some_and(|first| kept.order(first).is_lt());
        if full && is_old {
            return false;
        }
        self.total += 1;
        self.count(&kept);
        self.runs.push(kept);
        self.runs.sort_by(Kept::order);
        let extra = self.runs.len().saturating_sub(KEPT_RUNS);
        self.runs.drain(..extra);
        true
    }

    /// Notes what the model says of a new run. Runs that earlier versions kept were compared with
    /// rings, and what the switches add is the same for all runs of a class.
    fn expect(&mut self, expected: Option<&Expected>) {
        let Some(expected) = expected else { return };
        let of_rings = self.expected_bytes_per_second;
        let before = self.model().unwrap_or_else(|| Expected {
            bytes_per_second: of_rings.unwrap_or(expected.bytes_per_second),
            nvls: expected.nvls.clone().map(of_topology),
        });
        let measured = |run: &&mut Kept| run.levels.contains_key(&SizeClass::Large);
        for run in self.runs.iter_mut().filter(measured) {
            run.model.get_or_insert_with(|| before.clone());
        }
        self.expected_bytes_per_second = Some(expected.of_run());
    }

    /// Returns what the model says of its runs, for one that does not show its place.
    fn model(&self) -> Option<Expected> {
        let model = self.runs.iter().rev().find_map(|run| run.model.clone())?;
        Some(Expected {
            nvls: model.nvls.map(of_topology),
            ..model
        })
    }

    fn count(&mut self, kept: &Kept) {
        if let Some(failure) = &kept.failure {
            *self.failures.entry(failure.reason).or_default() += 1;
        }
    }

    /// Returns the Unix time of the end of the latest kept run that failed for `reason`.
    #[must_use]
    pub fn failed_at(&self, reason: Reason) -> Option<u64> {
        let of_reason = |run: &&Kept| run.failure.as_ref().is_some_and(|one| one.reason == reason);
        self.runs.iter().rev().find(of_reason).map(|run| run.at)
    }

    /// Returns where the run of which `kept` is a reading is among the runs that are kept.
    fn find(&self, kept: &Kept) -> Option<usize> {
        self.runs.iter().position(|one| one.is_same(kept))
    }

    /// Reports whether there were runs that are no longer kept.
    fn forgets(&self) -> bool {
        self.total > self.runs.len() as u64
    }

    /// Returns what `kept` says about bandwidths of paths, if anything.
    fn measured(&self, kept: &Kept) -> Option<calibration::Run> {
        let measured = kept.levels.get(&SizeClass::Large)?.bytes_per_second;
        let of_earlier_version = || {
            Some(Expected {
                bytes_per_second: self.expected_bytes_per_second?,
                nvls: None,
            })
        };
        let model = kept.model.clone().or_else(of_earlier_version)?;
        Some(calibration::Run {
            model: self.class.model.clone()?,
            path: self.class.path?,
            gpus: self.class.gpus,
            factor: ratio(measured, model.bytes_per_second),
            gain: model.gain(measured),
            ended_at: kept.at,
        })
    }

    /// Returns the result of the latest run; `None` if it failed.
    #[must_use]
    pub fn latest(&self, class: SizeClass) -> Option<&Level> {
        self.runs.last()?.levels.get(&class)
    }

    /// Returns the median of the runs before the latest one.
    #[must_use]
    pub fn baseline(&self, class: SizeClass) -> Option<u64> {
        self.baseline_before(&self.runs.last()?.id, class)
    }

    /// Returns the median bus bandwidth of the good runs before the run `id`, bytes per
    /// second; `None` with fewer than [`BASELINE_RUNS`].
    #[must_use]
    pub(crate) fn baseline_before(&self, id: &str, class: SizeClass) -> Option<u64> {
        let before = self.runs.iter().take_while(|one| one.id != id);
        let levels = before.filter_map(|one| one.levels.get(&class));
        let mut all: Vec<u64> = levels.map(|level| level.bytes_per_second).collect();
        all.sort_unstable();
        (all.len() >= BASELINE_RUNS).then(|| median(&all))
    }
}

/// Returns the median of sorted numbers, of which there is at least one.
fn median(sorted: &[u64]) -> u64 {
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[middle],
        _ => sorted[middle - 1].midpoint(sorted[middle]),
    }
}

/// Returns a number that two readings of the same run share: from its processes and from all
/// of its measurements, which no other run repeats.
fn identity(run: &Run, name: &str) -> u64 {
    let mut hash = Hash::of_processes(run);
    run.rows.iter().for_each(|row| hash.add_row(row));
    if run.rows.is_empty() {
        hash.add(&format!("{name} {}", run.line));
    }
    if let Some(failure) = &run.failure {
        hash.add(failure.reason.as_str());
    }
    hash.0
}

/// Returns a number that a run shares with a reading of it that ends early: from its processes
/// and its first measurement.
fn first(run: &Run) -> Option<u64> {
    let mut hash = Hash::of_processes(run);
    hash.add_row(run.rows.first()?);
    Some(hash.0)
}

/// FNV-1a, because it must stay the same from version to version.
struct Hash(u64);

impl Hash {
    fn of_processes(run: &Run) -> Self {
        let mut hash = Self(0xcbf2_9ce4_8422_2325);
        for device in &run.devices {
            hash.add(&format!("{} {} {}", device.rank, device.pid, device.host));
        }
        if let Some(collective) = &run.collective {
            hash.add(collective.value.as_str());
        }
        hash
    }

    fn add_row(&mut self, row: &Row) {
        self.add(&format!(
            "{} {:?} {:?}",
            row.size, row.out_of_place, row.in_place
        ));
    }

    fn add(&mut self, text: &str) {
        for byte in text.bytes().chain([0]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
