//! What one policy, or one cluster, gains and loses against others, in words.

use crate::{
    scheduler::Policy,
    summary::{OfSize, Report, Summary, Waits},
    words::{counted, duration, number, percent, short},
};

/// Says what the first policy gains and loses against each of the others.
pub(crate) fn policies(summaries: &[Summary]) -> Vec<String> {
    let Some((own, others)) = summaries.split_first() else {
        return Vec::new();
    };
    let mut sentences: Vec<String> = others
        .iter()
        .filter_map(|other| against(own, other))
        .collect();
    let less = others
        .iter()
        .map(|other| own.never_ran().saturating_sub(other.never_ran()));
    if let Some(jobs) = less.max().filter(|&jobs| jobs > 0) {
        sentences.push(format!(
            "{} does not run {} that others run; its figures leave them out.",
            own.name,
            counted(jobs, "job")
        ));
    }
    sentences
}

fn against(own: &Summary, other: &Summary) -> Option<String> {
    let times = own.communication_seconds.zip(other.communication_seconds);
    let communication = times.map(|(own, other)| {
        let change = own.mean / other.mean - 1.0;
        match percent(change.abs()) {
            same if same == percent(0.0) => "communication takes the same time".to_owned(),
            share if change < 0.0 => format!("communication takes {share} less time"),
            share => format!("communication takes {share} more time"),
        }
    });
    let both = own.wait_seconds.zip(other.wait_seconds);
    let waits = both.map(|(own, other)| waits(&own, &other));
    let worse: Vec<String> = own
        .by_size
        .iter()
        .filter_map(|size| {
            let other = other.by_size.iter().find(|one| one.gpus == size.gpus)?;
            worse(size, other)
        })
        .collect();
    let sizes = (own.by_size.len() > 1 && !worse.is_empty())
        .then(|| format!("worse for {}", worse.join(", for ")));
    let parts: Vec<String> = communication
        .into_iter()
        .chain(waits)
        .chain(sizes)
        .collect();
    let (own, other) = (own.name, other.name);
    (!parts.is_empty()).then(|| format!("{own} against {other}: {}.", parts.join("; ")))
}

/// Says which waits are shorter and which are longer than others.
fn waits(own: &Waits, other: &Waits) -> String {
    let list = |is: fn(f64, f64) -> bool| {
        let some = figures(own, other)
            .into_iter()
            .filter(|(_, own, other)| differ(*own, *other) && is(*own, *other));
        some.map(instead).collect::<Vec<_>>().join(", ")
    };
    let longer = list(|own, other| own > other);
    let shorter = list(|own, other| own < other);
    match (longer.is_empty(), shorter.is_empty()) {
        (true, true) => "jobs wait as long".to_owned(),
        (false, true) => format!("jobs wait longer: {longer}"),
        (true, false) => format!("jobs wait less: {shorter}"),
        (false, false) => format!("some wait longer: {longer}; others less: {shorter}"),
    }
}

fn figures(own: &Waits, other: &Waits) -> [(&'static str, f64, f64); 5] {
    [
        ("on average", own.mean, other.mean),
        ("median", own.p50, other.p50),
        ("95 % within", own.p95, other.p95),
        ("99 % within", own.p99, other.p99),
        ("longest", own.max, other.max),
    ]
}

/// Reports whether a reader would see that two waits differ.
fn differ(own: f64, other: f64) -> bool {
    duration(own) != duration(other)
}

fn instead((what, own, other): (&str, f64, f64)) -> String {
    format!("{what} {} instead of {}", duration(own), duration(other))
}

/// Says what is worse for jobs of one size; `None` if nothing is.
fn worse(own: &OfSize, other: &OfSize) -> Option<String> {
    let waits = figures(&own.wait_seconds, &other.wait_seconds)
        .into_iter()
        .filter(|(_, own, other)| own > other && differ(*own, *other));
    let mut parts: Vec<String> = waits.map(instead).collect();
    let times = own.communication_seconds.zip(other.communication_seconds);
    let slower = times.map(|(own, other)| own.mean / other.mean - 1.0);
    if let Some(slower) = slower.filter(|&slower| percent(slower.max(0.0)) != percent(0.0)) {
        parts.push(format!("communication takes {} more time", percent(slower)));
    }
    let gpus = if own.gpus == "1" { "GPU" } else { "GPUs" };
    (!parts.is_empty()).then(|| format!("{} {gpus} ({})", own.gpus, parts.join(", ")))
}

/// The policies in a comparison of clusters: the planner, and kube-scheduler where it keeps nodes
/// free for large jobs.
const COMPARED: [Policy; 2] = [Policy::NvlinkDomains, Policy::Packed];

/// Returns a table that compares clusters: for each a heading, and a line for
/// [`Policy::NvlinkDomains`] and for [`Policy::Packed`].
#[must_use]
pub fn clusters(reports: &[Report]) -> String {
    let heads = ["in use", "wait", "95 %", "longest", "1 GiB", "never ran"];
    let mut text = "The clusters compared:\n".to_owned() + &line("", &heads.map(str::to_owned));
    for report in reports {
        text += &format!("{}: {}\n", report.cluster, counted(report.gpus, "GPU"));
        let compared = report.outcomes.iter();
        for outcome in compared.filter(|one| COMPARED.contains(&one.policy)) {
            let summary = report.summary(outcome);
            text += &line(summary.name, &cells(&summary));
        }
    }
    text
}

fn cells(one: &Summary) -> [String; 6] {
    let none = || "-".to_owned();
    let wait = |value: fn(Waits) -> f64| {
        let wait = one.wait_seconds.map(|waits| duration(value(waits)));
        wait.unwrap_or_else(none)
    };
    let communication = one.communication_seconds.map(|time| short(time.mean));
    [
        one.utilization.map_or_else(none, percent),
        wait(|waits| waits.mean),
        wait(|waits| waits.p95),
        wait(|waits| waits.max),
        communication.unwrap_or_else(none),
        number(one.never_ran()),
    ]
}

fn line(name: &str, cells: &[String; 6]) -> String {
    let cells = cells.iter().map(|cell| format!(" {cell:>9}"));
    format!("  {name:<18}{}\n", cells.collect::<String>())
}
