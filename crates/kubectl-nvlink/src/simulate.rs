//! The queue on a trace of jobs, next to what clusters do without it.

use std::{
    fs::{self, File},
    io::{self, BufReader, IsTerminal, Write},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;
use nvlink_runtime::stdout::print;
use nvlink_simulation::{self as simulation, Cluster, Options, Progress, Trace};

use crate::args::{ReportFormat, SimulateArgs};

/// How long a simulation runs before it reports how far it is.
const QUIET: Duration = Duration::from_secs(2);
/// The time between two such reports on a terminal.
const PERIOD: Duration = Duration::from_millis(200);
/// The same elsewhere, where each is a line.
const SELDOM: Duration = Duration::from_secs(20);

/// Runs `simulate`.
///
/// # Errors
/// When the trace is invalid, or a file cannot be read or written.
pub(crate) fn run(args: &SimulateArgs) -> anyhow::Result<()> {
    let trace = read(&args.trace)?;
    let cluster = Cluster::new(&args.cluster).context("cannot build the cluster")?;
    let mut meter = Meter::new();
    let options = Options {
        seed: args.seed,
        communication_share: args.communication_share,
    };
    let report = simulation::run(&trace, &cluster, options, &mut |progress| {
        meter.show(progress);
    });
    meter.clear();
    let report = report?;
    if let Some(path) = &args.plot {
        let written = fs::write(path, simulation::plot(&report));
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    let notes = notes(&trace);
    match args.output {
        ReportFormat::Table => {
            let notes = notes.iter().map(|note| format!("{note}\n"));
            print(&(simulation::table(&report) + &notes.collect::<String>()))?;
        }
        ReportFormat::Json => {
            notes.iter().for_each(|note| eprintln!("{note}"));
            let json = serde_json::to_string_pretty(&report.document());
            print(&(json.context("cannot write JSON")? + "\n"))?;
        }
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Trace> {
    if path.as_os_str() == "-" {
        return Trace::read(io::stdin().lock()).context("stdin");
    }
    let name = || path.display().to_string();
    let file = File::open(path).with_context(name)?;
    Trace::read(BufReader::new(file)).with_context(name)
}

/// Says what was odd about the trace.
fn notes(trace: &Trace) -> Vec<String> {
    let mut notes = Vec::new();
    let mut count = |count: usize, what: &str| {
        if count > 0 {
            let jobs = if count == 1 { "job" } else { "jobs" };
            notes.push(format!("note: {count} {jobs} {what}"));
        }
    };
    count(
        trace.rounded,
        "with a fraction of a GPU, rounded up to whole GPUs",
    );
    count(trace.without_gpus, "without GPUs, left out");
    count(trace.unsorted, "out of order, sorted by time");
    if !trace.ignored.is_empty() {
        let columns = trace.ignored.join(", ");
        notes.push(format!("note: ignored columns: {columns}"));
    }
    notes
}

/// Reports how far a long simulation is: in place on a terminal, and by a line now and then elsewhere.
struct Meter {
    terminal: bool,
    next: Instant,
    shown: bool,
}

impl Meter {
    fn new() -> Self {
        let terminal = io::stderr().is_terminal();
        Self {
            terminal,
            next: Instant::now() + if terminal { QUIET } else { SELDOM },
            shown: false,
        }
    }

    fn show(&mut self, progress: Progress) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + if self.terminal { PERIOD } else { SELDOM };
        let Progress {
            policy,
            ended,
            jobs,
        } = progress;
        let text = format!("{}: {ended} of {jobs} jobs", policy.into_str());
        // A terminal that is gone needs no report.
        let _ = match self.terminal {
            true => write!(io::stderr(), "\r\x1b[K{text}"),
            false => writeln!(io::stderr(), "{text}"),
        };
        self.shown = self.terminal;
    }

    fn clear(&self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
