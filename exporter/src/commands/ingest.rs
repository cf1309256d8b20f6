//! `ingest`.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use nvlink_runtime::signals;
use nvlink_topology::NodeTopologySpec;
use tokio::task::spawn_blocking;

use super::{print, runtime, warn};
use crate::{
    args::{IngestArgs, IngestFormat, LogFormat, PlaceFlags},
    collective::{
        Given, Run, State,
        input::{self, InputError},
        placement,
        state::{Class, Kept},
        store, summary,
        verdict::{Gate, Report, Verdict, gigabytes},
        watch::Watched,
    },
    log,
    output::collectives,
};

/// The maximum number of runs of one call: a table of more is of no use.
const MOST_RUNS: usize = 4096;
/// What `-` means in messages.
const STDIN: &str = "standard input";

pub(super) fn ingest(args: &IngestArgs) -> anyhow::Result<()> {
    let scene = Scene::new(&args.place)?;
    if let (Some(directory), Some(state)) = (&args.watch, &args.state) {
        log::start(LogFormat::Text);
        let (directory, state) = (directory.clone(), state.clone());
        let follower = Follower {
            watched: Watched::new(directory, args.settle),
            scene,
            state,
        };
        return runtime()?.block_on(follow(follower, args.interval));
    }
    let mut problems = Vec::new();
    let mut reports = Vec::new();
    for path in inputs(&args.files)? {
        let (runs, problem) = read(&path, MOST_RUNS.saturating_sub(reports.len()))?;
        problems.extend(problem);
        reports.extend(scene.reports(&name(&path), runs, ended_at(&path)));
    }
    if let Some(directory) = &args.state {
        keep(directory, &mut reports)?
            .into_iter()
            .for_each(|text| warn(&text));
    }
    print(&match args.output {
        IngestFormat::Table => collectives::table(&reports),
        IngestFormat::Json => collectives::json(&reports)?,
    })?;
    if let Some(path) = &args.summary {
        let text = summary::write(&reports);
        fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    problems.extend(reports.iter().filter_map(failure));
    if let Some(gate) = args.gate() {
        problems.extend(judge(&gate, &reports));
    }
    conclude(problems)
}

/// What is known about the place of all runs.
struct Scene {
    given: Given,
    node: Option<NodeTopologySpec>,
}

impl Scene {
    fn new(flags: &PlaceFlags) -> anyhow::Result<Self> {
        let node = match &flags.source {
            None => None,
            Some(source) => {
                let reading = source.open(None)?.read(Duration::ZERO)?;
                reading.warnings.iter().for_each(|warning| warn(warning));
                if !reading.topology.spec.calibration.is_empty() {
                    bail!(
                        "{source}: its bandwidths are measured ones, and measurements compared with themselves say nothing; record it without --calibration"
                    );
                }
                Some(reading.topology.spec)
            }
        };
        let given = flags.given();
        Ok(Self { given, node })
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
            let files = crate::collective::watch::files(path);
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
fn keep(directory: &Path, reports: &mut [Report]) -> anyhow::Result<Vec<String>> {
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

fn failure(report: &Report) -> Option<String> {
    let failure = report.placed.run.failure.as_ref()?;
    let told = collectives::told(failure);
    Some(format!("{} failed: {told}", report.name()))
}

/// Judges the runs that did not fail and have measurements. Returns what is wrong.
fn judge(gate: &Gate, reports: &[Report]) -> Vec<String> {
    let judged = |one: &&Report| {
        let run = &one.placed.run;
        run.failure.is_none() && !run.rows.is_empty()
    };
    let mut problems = Vec::new();
    let judged = reports.iter().filter(judged);
    for report in judged {
        match gate.judge(report) {
            Verdict::Passed => {}
            Verdict::First(text) => warn(&text),
            Verdict::Refused(text) => problems.push(text),
        }
    }
    if reports.iter().all(|one| one.placed.run.rows.is_empty()) {
        problems.push("no bandwidth was measured, so --min-ratio cannot be judged".to_owned());
    }
    problems
}

/// Fails if there are problems. All are printed, the last one as the error.
fn conclude(mut problems: Vec<String>) -> anyhow::Result<()> {
    let Some(last) = problems.pop() else {
        return Ok(());
    };
    problems.iter().for_each(|problem| warn(problem));
    bail!(last)
}

/// Follows a directory.
struct Follower {
    watched: Watched,
    scene: Scene,
    state: PathBuf,
}

async fn follow(mut follower: Follower, interval: Duration) -> anyhow::Result<()> {
    let mut signals = signals::install()?;
    loop {
        let looked = spawn_blocking(move || {
            let result = follower.look();
            (follower, result)
        });
        let result;
        (follower, result) = looked.await?;
        if let Err(error) = result {
            tracing::warn!(error = format!("{error:#}"), "looking again later");
        }
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            signal = signals.received() => {
                tracing::info!("received {signal}, stopping");
                return Ok(());
            }
        }
    }
}

impl Follower {
    /// Reads what has changed, and keeps new runs.
    fn look(&mut self) -> anyhow::Result<()> {
        for found in self.watched.look(SystemTime::now())? {
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
        Some(failure) => tracing::warn!("{run} failed: {}", collectives::told(failure)),
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
