//! What `ingest` does: it reads inputs, keeps their runs, compares and judges them.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use nvlink_topology::NodeTopologySpec;

use crate::{
    Given, Run, State,
    input::{self, InputError},
    placement, report,
    state::{Class, Kept},
    store,
    verdict::{Gate, Report, Verdict, gigabytes},
    watch::{self, Watched},
};

/// The maximum number of runs of one call: a table of more is of no use.
const MOST_RUNS: usize = 4096;
/// What `-` means in messages.
const STDIN: &str = "standard input";

/// What is known about the place of all runs.
#[derive(Clone, Debug, Default)]
pub struct Scene {
    /// What the user says.
    pub given: Given,
    /// A node on which they took place, with constants as its bandwidths.
    pub node: Option<NodeTopologySpec>,
}

/// What one call has read.
#[derive(Debug, Default)]
pub struct Ingested {
    /// The runs, in the order of the inputs.
    pub reports: Vec<Report>,
    /// Why inputs, or parts of them, cannot be read.
    pub problems: Vec<String>,
}

/// What a gate says about all runs.
#[derive(Debug, Default)]
pub struct Judgement {
    /// Runs that it cannot judge yet.
    pub warnings: Vec<String>,
    /// Runs that it refuses.
    pub problems: Vec<String>,
}

impl Scene {
    /// Reads files, and directories of them; `-` is standard input.
    ///
    /// # Errors
    /// When a file cannot be opened, or there are too many runs.
    pub fn read(&self, paths: &[PathBuf]) -> anyhow::Result<Ingested> {
        let mut all = Ingested::default();
        for path in inputs(paths)? {
            let (runs, problem) = read(&path, MOST_RUNS.saturating_sub(all.reports.len()))?;
            all.problems.extend(problem);
            let name = name(&path);
            all.reports
                .extend(self.reports(&name, runs, ended_at(&path)));
        }
        Ok(all)
    }

    fn reports(&self, name: &str, runs: Vec<Run>, at: u64) -> impl Iterator<Item = Report> {
        (0..).zip(runs).map(move |(index, run)| Report {
            input: name.to_owned(),
            kept: Kept::new(&run, name, index, at),
            placed: placement::place(run, &self.given, self.node.as_ref()),
            baseline: Default::default(),
        })
    }
}

/// Returns the inputs: directories are replaced by the files in them.
fn inputs(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut inputs = Vec::new();
    for path in paths {
        if path.is_dir() {
            let files = watch::files(path);
            let files = files.with_context(|| path.display().to_string())?;
            if files.is_empty() {
                bail!("{}: the directory has no files", path.display());
            }
            inputs.extend(files.into_iter().map(|(path, _)| path));
        } else {
            inputs.push(path.clone());
        }
    }
    Ok(inputs)
}

fn name(path: &Path) -> String {
    match path.as_os_str() == "-" {
        true => STDIN.to_owned(),
        false => path.display().to_string(),
    }
}

/// Reads one input: its runs, at most `most`, and why the rest of it cannot be read.
fn read(path: &Path, most: usize) -> anyhow::Result<(Vec<Run>, Option<String>)> {
    let name = name(path);
    let input: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(io::stdin().lock()),
        false => Box::new(File::open(path).with_context(|| name.clone())?),
    };
    let (mut runs, mut left_out) = (Vec::new(), 0_u64);
    let result = input::read(input, &mut |run| match runs.len() < most {
        true => runs.push(run),
        false => left_out += 1,
    });
    let problem = result
        .err()
        .map(|error: InputError| format!("{name}: {error}"));
    if left_out > 0 {
        bail!("{name}: {left_out} runs too many: one call takes {MOST_RUNS}, so split the input");
    }
    Ok((runs, problem))
}

/// Returns the Unix time at which a run ended: that of the file, or now.
fn ended_at(path: &Path) -> u64 {
    let file = fs::metadata(path).and_then(|metadata| metadata.modified());
    ended_by(file.unwrap_or_else(|_| SystemTime::now()))
}

/// Returns the Unix time at which the runs of a file that was changed at `modified` ended: not
/// after now, whatever the clock was that wrote it.
fn ended_by(modified: SystemTime) -> u64 {
    seconds(modified.min(SystemTime::now()))
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Adds the runs of one input, in its order. Returns the new ones, and those that cannot be
/// kept because their class is not known.
fn add<'a>(state: &mut State, reports: &'a [Report]) -> Vec<&'a Report> {
    let class = |one: &&Report| Class::of(&one.placed).is_some();
    let (known, mut told): (Vec<_>, Vec<_>) = reports.iter().partition(class);
    let runs = known.iter().filter_map(|one| {
        let class = Class::of(&one.placed)?;
        Some((class, one.kept.clone(), one.placed.expected.clone()))
    });
    let new = state.add_input(runs.collect());
    told.extend(
        known
            .into_iter()
            .zip(new)
            .filter(|(_, new)| *new)
            .map(|(one, _)| one),
    );
    told
}

/// Keeps the runs, and compares them with those that were kept before. Returns warnings.
///
/// # Errors
/// When the state in `directory` cannot be read or written.
pub fn keep(directory: &Path, reports: &mut [Report]) -> anyhow::Result<Vec<String>> {
    let mut warnings = Vec::new();
    let updated = store::update(directory, |state| {
        for input in reports.chunk_by(|one, next| one.input == next.input) {
            add(state, input);
        }
    })?;
    let unknown = reports
        .iter()
        .filter(|one| Class::of(&one.placed).is_none());
    warnings.extend(unknown.map(|report| {
        format!(
            "{} is not kept, because its collective or its number of GPUs is not known: name them with --collective and --gpus",
            report.name()
        )
    }));
    for report in reports {
        report.compare(&updated.state);
    }
    warnings.extend(updated.warning);
    Ok(warnings)
}

/// Returns why a run failed, if it did.
#[must_use]
pub fn failure(report: &Report) -> Option<String> {
    let failure = report.placed.run.failure.as_ref()?;
    let told = report::told(failure);
    Some(format!("{} failed: {told}", report.name()))
}

/// Returns what to do about a run that did not fail and whose rows have no bandwidth, if it is one. What
/// has no rows, such as a log of NCCL, is no benchmark.
#[must_use]
pub fn unmeasured(report: &Report) -> Option<String> {
    let run = &report.placed.run;
    let nothing = run.failure.is_none() && !run.rows.is_empty() && !run.is_measured();
    nothing.then(|| {
        format!(
            "{}: no row has a time and bandwidth that can be used, so nothing can be compared",
            report.name()
        )
    })
}

/// Judges the runs that did not fail and have measurements.
#[must_use]
pub fn judge(gate: &Gate, reports: &[Report]) -> Judgement {
    let judged = |one: &&Report| {
        let run = &one.placed.run;
        run.failure.is_none() && run.is_measured()
    };
    let mut all = Judgement::default();
    for report in reports.iter().filter(judged) {
        match gate.judge(report) {
            Verdict::Passed => {}
            Verdict::First(text) => all.warnings.push(text),
            Verdict::Refused(text) => all.problems.push(text),
        }
    }
    if !reports.iter().any(|one| one.placed.run.is_measured()) {
        let reason = "no bandwidth was measured, so --min-ratio cannot be judged";
        all.problems.push(reason.to_owned());
    }
    all
}

/// Follows a directory, and keeps its runs in another one.
#[derive(Debug)]
pub struct Follower {
    watched: Watched,
    scene: Scene,
    state: PathBuf,
}

impl Follower {
    /// Returns a follower of the files that `watched` finds. Runs are kept in `state`.
    #[must_use]
    pub fn new(watched: Watched, scene: Scene, state: PathBuf) -> Self {
        Self {
            watched,
            scene,
            state,
        }
    }

    /// Reads what has changed, and keeps and logs new runs.
    ///
    /// # Errors
    /// When the directory cannot be read, or the runs cannot be kept.
    pub fn look(&mut self) -> anyhow::Result<()> {
        for found in self.watched.look(Instant::now(), SystemTime::now())? {
            let name = found.path.display().to_string();
            if let Some(problem) = &found.problem {
                tracing::warn!(file = name, "{problem}");
            }
            let at = ended_by(found.modified);
            let reports: Vec<_> = self.scene.reports(&name, found.runs, at).collect();
            self.keep(&reports)?;
        }
        Ok(())
    }

    fn keep(&self, reports: &[Report]) -> anyhow::Result<()> {
        if reports.is_empty() {
            return Ok(());
        }
        let updated = store::update(&self.state, |state| add(state, reports))?;
        if let Some(warning) = updated.warning {
            tracing::warn!("{warning}");
        }
        updated.result.into_iter().for_each(tell);
        Ok(())
    }
}

/// Logs a new run.
fn tell(report: &Report) {
    let run = name_and_level(report);
    match &report.placed.run.failure {
        None => tracing::info!("{run}"),
        Some(failure) => tracing::warn!("{run} failed: {}", report::told(failure)),
    }
    if Class::of(&report.placed).is_none() {
        let reason = "the run is not kept: name it with --collective and --gpus";
        tracing::warn!(run = report.name(), "{reason}");
    }
}

fn name_and_level(report: &Report) -> String {
    let level = report.levels().last();
    let level = level.map(|(_, level)| format!(" {}", gigabytes(level.bytes_per_second)));
    report.name() + &level.unwrap_or_default()
}
