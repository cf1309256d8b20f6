//! Compares runs with the model and with earlier runs.

use std::collections::BTreeMap;

use super::{
    model::{Expected, ratio},
    placement::Placed,
    run::{Level, SizeClass},
    state::{Class, Kept, State},
};

/// A run, and what it is compared with.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The file, or `standard input`.
    pub input: String,
    pub placed: Placed,
    pub kept: Kept,
    /// Median bus bandwidth of earlier runs, bytes per second, by size class.
    pub baseline: BTreeMap<SizeClass, u64>,
}

/// What a bandwidth is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Against {
    /// What the model says for large messages.
    Model,
    /// The median of earlier runs of the same placement class, in each size class.
    Baseline,
}

/// The least ratio of a measured bandwidth to the one it is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    pub min_ratio: f64,
    pub against: Against,
}

/// What a gate says about a run that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    /// There is nothing to compare with yet.
    First(String),
    /// It is too slow, or cannot be judged.
    Refused(String),
}

impl Report {
    /// Returns the results by size class.
    pub fn levels(&self) -> impl Iterator<Item = (SizeClass, Level)> {
        let run = &self.placed.run;
        let levels = SizeClass::ALL.into_iter();
        levels.filter_map(|class| Some((class, run.level(class)?)))
    }

    /// Returns what the model expects of messages of `class`: it leaves out latency, so it
    /// says something about large ones only.
    #[must_use]
    pub fn expected(&self, class: SizeClass) -> Option<u64> {
        let large = class == SizeClass::Large;
        let expected = self.placed.expected.as_ref().filter(|_| large);
        expected.map(Expected::of_run)
    }

    /// Says which of two expectations the run is compared with, and what the other one is; `None`
    /// where there is only one.
    #[must_use]
    pub fn chosen(&self) -> Option<String> {
        let expected = self.placed.expected.as_ref()?;
        let nvls = expected.nvls.as_ref()?;
        let from = nvls.expected.from.words();
        Some(match nvls.expected.value {
            true => format!(
                "the model expects NVLS (from {from}); without, {}",
                gigabytes(expected.bytes_per_second)
            ),
            false => format!(
                "the model expects no NVLS (from {from}); with it, {}",
                gigabytes(nvls.bytes_per_second)
            ),
        })
    }

    /// Adds the baselines of a state that contains the run.
    pub fn compare(&mut self, state: &State) {
        let class = Class::of(&self.placed);
        let Some(entry) = class.and_then(|class| state.entry(&class)) else {
            return;
        };
        let before = |class| Some((class, entry.baseline_before(&self.kept.id, class)?));
        self.baseline = SizeClass::ALL.into_iter().filter_map(before).collect();
    }

    /// Names the run in messages.
    #[must_use]
    pub fn name(&self) -> String {
        let run = &self.placed.run;
        let collective = run.collective.as_ref();
        let collective = collective.map_or("the run", |known| known.value.as_str());
        format!("{}, line {}: {collective}", self.input, run.line)
    }
}

impl Gate {
    /// Judges a run.
    #[must_use]
    pub fn judge(&self, report: &Report) -> Verdict {
        match self.against {
            Against::Model => self.against_model(report),
            Against::Baseline => self.against_baseline(report),
        }
    }

    fn against_model(&self, report: &Report) -> Verdict {
        let name = report.name();
        let Some(level) = report.placed.run.level(SizeClass::Large) else {
            return Verdict::Refused(format!(
                "{name} has no message of 256 MiB or more, for which the model holds: run it with -e 1G, or use --against baseline"
            ));
        };
        let Some(expected) = report.expected(SizeClass::Large) else {
            return Verdict::Refused(format!(
                "{name} cannot be compared with the model: name what it does not say itself, the topology of its node with --source and the number of nodes with --nodes, or use --against baseline"
            ));
        };
        let verdict = self.compare(&name, level, expected, "the model says");
        match (verdict, report.chosen()) {
            (Verdict::Refused(reason), Some(chosen)) => {
                Verdict::Refused(format!("{reason}; {chosen} (see --nvls)"))
            }
            (verdict, _) => verdict,
        }
    }

    /// Compares the largest size class: latency makes small messages vary.
    fn against_baseline(&self, report: &Report) -> Verdict {
        let name = report.name();
        let Some((class, level)) = report.levels().last() else {
            return Verdict::Refused(format!(
                "{name} has no time and bandwidth that can be used, so it cannot be compared"
            ));
        };
        if Class::of(&report.placed).is_none() {
            return Verdict::Refused(format!(
                "{name} can have no baseline, because its collective or its number of GPUs is not known: name them with --collective and --gpus"
            ));
        }
        match report.baseline.get(&class) {
            Some(&baseline) => self.compare(&name, level, baseline, "the baseline is"),
            None => Verdict::First(format!(
                "{name} has no baseline yet: it needs {} earlier runs in --state",
                super::state::BASELINE_RUNS
            )),
        }
    }

    fn compare(&self, name: &str, level: Level, reference: u64, of: &str) -> Verdict {
        let ratio = ratio(level.bytes_per_second, reference);
        if ratio >= self.min_ratio {
            return Verdict::Passed;
        }
        Verdict::Refused(format!(
            "{name} of {} reaches {} and {of} {}: the ratio {ratio:.3} is below {}",
            size(level.size),
            gigabytes(level.bytes_per_second),
            gigabytes(reference),
            self.min_ratio
        ))
    }
}

/// Formats a bandwidth with the digits that benchmarks print: `386.56 GB/s`.
#[must_use]
pub fn gigabytes(bytes_per_second: u64) -> String {
    format!("{:.2} GB/s", bytes_per_second as f64 / 1e9)
}

/// Formats a message size: `512 KiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (bits, unit) in units {
        let one = 1_u64 << bits;
        if bytes >= one {
            let tenths = u128::from(bytes) * 10 / u128::from(one);
            return match tenths % 10 {
                0 => format!("{} {unit}", tenths / 10),
                tenth => format!("{}.{tenth} {unit}", tenths / 10),
            };
        }
    }
    format!("{bytes} B")
}
