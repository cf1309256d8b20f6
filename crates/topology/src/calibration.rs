//! Bandwidths as collective benchmarks measured them, in place of the constants of
//! [`crate::bandwidth`].

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    API_VERSION, Edge, Gpu, Invalid, NodeTopologySpec, PathClass, bandwidth, generation::Generation,
};

pub use crate::model::{Measured, MeasuredSet};

/// `kind` of a [`Calibration`].
pub const KIND: &str = "Calibration";
/// Fewer runs than this say nothing: one of them may have shared the machine with another job.
pub const MIN_RUNS: usize = 3;
/// Runs that are older than this are left out: drivers and NCCL change. 180 days, in seconds.
pub const MAX_AGE: u64 = 180 * 24 * 3600;
/// Factors outside this range are errors of the measurement or of the model of the board, not
/// bandwidths.
const POSSIBLE: std::ops::RangeInclusive<f64> = 0.02..=4.0;
/// A run is an outlier if its modified z-score is larger (Iglewicz and Hoaglin, "How to Detect
/// and Handle Outliers", 1993).
const OUTLIER: f64 = 3.5;
/// What makes the median absolute deviation comparable with a standard deviation: 1 / Φ⁻¹(3/4).
const NORMAL: f64 = 1.4826;

/// What was measured, by GPU model and class of path. A file, or a key of a ConfigMap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Calibration {
    /// Always [`API_VERSION`].
    pub api_version: String,
    /// Always [`KIND`].
    pub kind: String,
    /// One entry for each model and class, ascending.
    pub entries: Vec<Measured>,
}

/// One run of a benchmark.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Product name of all its GPUs.
    pub model: String,
    /// The class of the slowest path between its GPUs.
    pub path: PathClass,
    /// Number of its GPUs.
    pub gpus: u32,
    /// Measured bus bandwidth divided by what the constants give.
    pub factor: f64,
    /// How many times as fast it should be because switches added up the data (NVLS); 1 without.
    /// See [`bandwidth::in_switch_gain`].
    pub gain: f64,
    /// When it ended, seconds since 1970.
    pub ended_at: u64,
}

impl Calibration {
    /// Sums up runs: the median of each model and class, without runs that are older than
    /// [`MAX_AGE`], without outliers, and without classes of fewer than [`MIN_RUNS`] runs.
    /// `now` is in seconds since 1970; runs that ended later count as if they ended now.
    #[must_use]
    pub fn of(runs: &[Run], now: u64) -> Self {
        let mut groups = BTreeMap::<(&str, PathClass), Vec<&Run>>::new();
        let young = |run: &&Run| now.saturating_sub(run.ended_at) <= MAX_AGE;
        for run in runs.iter().filter(young).filter(|run| is_possible(run)) {
            groups.entry((&run.model, run.path)).or_default().push(run);
        }
        let entries = groups.into_iter().filter_map(|((model, path), runs)| {
            let sum = Sum::of(&runs, Run::of_path)?;
            Some(Measured {
                model: model.to_owned(),
                path,
                factor: sum.factor,
                runs: sum.runs,
                measured_at: sum.latest.min(now),
                sets: sets(&runs),
            })
        });
        Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            entries: entries.collect(),
        }
    }

    /// Checks what was read from a file.
    ///
    /// # Errors
    /// Another kind, an impossible factor, or two entries for one model and class, with its place.
    pub fn check(&self) -> Result<(), Invalid> {
        if (&*self.api_version, &*self.kind) != (API_VERSION, KIND) {
            let found = format!("{} {}", self.api_version, self.kind);
            return Err(Invalid::new(
                "kind",
                format!("{found}; expected {API_VERSION} {KIND}"),
            ));
        }
        let mut seen = BTreeSet::new();
        for (n, entry) in self.entries.iter().enumerate() {
            let at = |key: &str| format!("entries[{n}].{key}");
            if !POSSIBLE.contains(&entry.factor) {
                let (least, most) = (POSSIBLE.start(), POSSIBLE.end());
                let reason = format!("{}; possible are {least} to {most}", entry.factor);
                return Err(Invalid::new(at("factor"), reason));
            }
            let impossible = |set: &&MeasuredSet| !POSSIBLE.contains(&set.factor);
            if let Some(set) = entry.sets.iter().find(impossible) {
                let reason = format!("{} for {} GPUs", set.factor, set.gpus);
                return Err(Invalid::new(at("sets"), reason));
            }
            if !seen.insert((&entry.model, entry.path)) {
                let path = entry.path.as_str();
                let reason = format!("a second entry for {path} of {}", entry.model);
                return Err(Invalid::new(at("path"), reason));
            }
        }
        Ok(())
    }

    /// Replaces the bandwidths of the paths between GPUs of measured models, and notes in the
    /// document which entries it used. No path becomes faster than the nominal rate of its links:
    /// entries of earlier versions include what switches gained. A document that notes some already
    /// stays as it is, so that a recording of a calibrated node is not calibrated twice.
    pub fn apply(&self, spec: &mut NodeTopologySpec) {
        if !spec.calibration.is_empty() {
            return;
        }
        let mut used = BTreeSet::new();
        let mut most = BTreeMap::new();
        for edge in &mut spec.edges {
            let pair = (edge.a, edge.b);
            if let Some(n) = self.find(&spec.gpus, pair, PathClass::Nvlink) {
                used.insert(n);
                most.insert(pair, most_of_edge(edge, &spec.gpus));
                let rate = scaled(edge.bytes_per_second, self.entries[n].factor, most[&pair]);
                // An edge has at least one byte per second for each link.
                edge.bytes_per_second = rate.max(edge.links.into());
            }
        }
        for path in &mut spec.paths {
            let pair = (path.a, path.b);
            if let Some(n) = self.find(&spec.gpus, pair, path.class) {
                used.insert(n);
                let most = match path.class {
                    _ if path.assumed => None,
                    PathClass::Nvlink => most.get(&pair).copied(),
                    class => Some(bandwidth::nominal_pcie(path.bytes_per_second, class)),
                };
                let most = most.unwrap_or(u64::MAX);
                path.bytes_per_second = scaled(path.bytes_per_second, self.entries[n].factor, most);
                path.assumed = false;
            }
        }
        spec.calibration = used.into_iter().map(|n| self.entries[n].clone()).collect();
    }

    /// Returns the place of the entry for a path between two GPUs; none if their models differ.
    fn find(&self, gpus: &[Gpu], pair: (u32, u32), path: PathClass) -> Option<usize> {
        let model = |index: u32| {
            let gpu = gpus.iter().find(|gpu| gpu.index == index)?;
            gpu.model.as_deref()
        };
        let one = model(pair.0).filter(|one| model(pair.1) == Some(one))?;
        let mut entries = self.entries.iter();
        entries.position(|entry| entry.model == one && entry.path == path)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "rates are below 2^50 and factors are positive"
)]
fn scaled(bytes_per_second: u64, factor: f64, most: u64) -> u64 {
    let rate = (bytes_per_second as f64 * factor) as u64;
    // The constants are below the nominal rate.
    rate.min(most.max(bytes_per_second)).max(1)
}

/// Returns the nominal rate of an edge's links: that of the data sheet, or the line rate where it
/// is lower or all that is known; without both, there is no limit.
fn most_of_edge(edge: &Edge, gpus: &[Gpu]) -> u64 {
    let ends = gpus
        .iter()
        .filter(|gpu| gpu.index == edge.a || gpu.index == edge.b);
    let links = ends.clone().flat_map(|gpu| gpu.links.iter().flatten());
    let line_rates = links.filter_map(|link| link.bytes_per_second);
    let generations = ends.filter_map(|gpu| Generation::of_model(gpu.model.as_deref()?));
    let nominal = generations.map(|one| one.nominal_bytes_per_second_per_link);
    let one = nominal.chain(line_rates).min();
    one.map_or(u64::MAX, |one| one.saturating_mul(edge.links.into()))
}

impl Run {
    /// Returns what it says about its paths: without what switches gained.
    fn of_path(&self) -> f64 {
        self.factor / self.gain
    }
}

/// Reports whether the factor of a run is that of a bandwidth.
pub(crate) fn is_possible(run: &Run) -> bool {
    POSSIBLE.contains(&run.factor) && POSSIBLE.contains(&run.of_path())
}

/// A group of runs in sum, without outliers.
struct Sum {
    factor: f64,
    runs: u32,
    /// When the latest one ended.
    latest: u64,
}

impl Sum {
    /// Sums up a factor of the runs. Returns `None` with fewer than [`MIN_RUNS`].
    fn of(runs: &[&Run], factor: impl Fn(&Run) -> f64) -> Option<Self> {
        let kept = without_outliers(runs, &factor);
        let latest = kept.iter().map(|run| run.ended_at).max()?;
        (kept.len() >= MIN_RUNS).then(|| Self {
            factor: median(kept.iter().map(|run| factor(run)).collect()),
            runs: u32::try_from(kept.len()).unwrap_or(u32::MAX),
            latest,
        })
    }
}

/// Sums up runs by the number of their GPUs.
fn sets(runs: &[&Run]) -> Vec<MeasuredSet> {
    let mut groups = BTreeMap::<u32, Vec<&Run>>::new();
    for run in runs {
        groups.entry(run.gpus).or_default().push(run);
    }
    let sets = groups.into_iter().filter_map(|(gpus, runs)| {
        let Sum { factor, runs, .. } = Sum::of(&runs, |run| run.factor)?;
        Some(MeasuredSet { gpus, factor, runs })
    });
    sets.collect()
}

/// Leaves out runs that are far from the median of their group.
fn without_outliers<'a>(runs: &[&'a Run], factor: impl Fn(&Run) -> f64) -> Vec<&'a Run> {
    let middle = median(runs.iter().map(|run| factor(run)).collect());
    let distance = |run: &Run| (factor(run) - middle).abs();
    let spread = NORMAL * median(runs.iter().map(|run| distance(run)).collect());
    // Equal runs have no spread; what differs by less than a percent of them is no outlier.
    let limit = (OUTLIER * spread).max(middle / 100.0);
    let near = |run: &&Run| distance(run) <= limit;
    runs.iter().copied().filter(near).collect()
}

/// Returns the median, 0 for no values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match (values.get(half), values.len() % 2) {
        (Some(middle), 1) => *middle,
        (Some(upper), _) => f64::midpoint(values[half - 1], *upper),
        (None, _) => 0.0,
    }
}
