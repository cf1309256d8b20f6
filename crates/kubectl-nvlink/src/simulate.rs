//! The queue on a trace of jobs, next to what clusters do without it.

use std::{
    fs::{self, File},
    io::{self, BufReader, IsTerminal, Write},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use nvlink_api::{class::Class, crd::domain_class::Order};
use nvlink_runtime::stdout::print;
use nvlink_simulation::{self as simulation, Cluster, Options, Progress, Report, Rules, Trace};
use serde_json::json;

use crate::{
    args::{ReportFormat, SimulateArgs},
    preview::read_class,
};

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
    ensure!(
        args.plot.is_none() || args.nodes.len() == 1,
        "--plot draws one cluster: give --nodes once"
    );
    let class = args.class_file.as_deref().map(read_class).transpose()?;
    let options = Options {
        seed: args.seed,
        communication_share: args.communication_share,
        rules: class.as_ref().map(rules).transpose()?.unwrap_or_default(),
    };
    let trace = read(&args.trace)?;
    let reports = replay(args, &trace, &options)?;
    if let (Some(path), Some(report)) = (&args.plot, reports.first()) {
        let written = fs::write(path, simulation::plot(report));
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    let mut notes = notes(&trace);
    notes.extend(class.map(|class| {
        let name = class.name;
        format!(
            "note: all jobs have class {name}: its placement, access.maxGpusPerProject and \
             environment.mnnvl count, nothing else"
        )
    }));
    match args.output {
        ReportFormat::Table => {
            let notes = notes.iter().map(|note| format!("{note}\n"));
            print(&(tables(&reports) + &notes.collect::<String>()))?;
        }
        ReportFormat::Json => {
            notes.iter().for_each(|note| eprintln!("{note}"));
            let clusters: Vec<_> = reports.iter().map(Report::document).collect();
            let json = serde_json::to_string_pretty(&json!({ "clusters": clusters }));
            print(&(json.context("cannot write JSON")? + "\n"))?;
        }
    }
    Ok(())
}

/// Replays the trace on each cluster.
fn replay(args: &SimulateArgs, trace: &Trace, options: &Options) -> anyhow::Result<Vec<Report>> {
    let mut meter = Meter::new();
    let mut reports = Vec::with_capacity(args.nodes.len());
    for spec in &args.nodes {
        let cluster = Cluster::new(spec).context("cannot build the cluster")?;
        let name = (args.nodes.len() > 1).then(|| spec.to_string());
        let report = simulation::run(trace, &cluster, options, &mut |progress| {
            meter.show(name.as_deref(), progress);
        });
        meter.clear();
        reports.push(report?);
    }
    Ok(reports)
}

/// Returns the table of each cluster and, of several, one that compares them.
fn tables(reports: &[Report]) -> String {
    if let [report] = reports {
        return simulation::table(report);
    }
    let mut text = String::new();
    for report in reports {
        text += &format!("{}: {}\n", report.cluster, simulation::table(report));
    }
    text + &simulation::clusters(reports)
}

/// Returns what the queue does with the jobs of a class.
fn rules(class: &Class) -> anyhow::Result<Rules> {
    let queue = class.queue.as_ref().with_context(|| {
        format!(
            "class {} does not queue: set spec.placement.whenUnavailable to Queue",
            class.name
        )
    })?;
    let then = nvlink_queue::on_timeout(queue.on_timeout);
    let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    Ok(Rules {
        class: nvlink_queue::rules(class),
        fair_share: queue.order == Order::FairShare,
        scope: class.scope,
        gang_scope: class.gang_scope,
        timeout: queue.timeout.map(|timeout| (millis(timeout), then)),
    })
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

    fn show(&mut self, cluster: Option<&str>, progress: Progress) {
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
        let on = cluster.map(|cluster| format!(" on {cluster}"));
        let on = on.unwrap_or_default();
        let text = format!("{}{on}: {ended} of {jobs} jobs", policy.into_str());
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
