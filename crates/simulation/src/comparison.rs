//! What one policy, or one cluster, gains and loses against others, in words.

use crate::{
    scheduler::Policy,
    summary::{OfSize, Report, Summary, Waits},
    words::{counted, duration, percent, short},
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
        .map(|other| own.rejected.saturating_sub(other.rejected));
    if let Some(rejected) = less.max().filter(|&rejected| rejected > 0) {
        sentences.push(format!(
            "{} rejects {} that others run: its figures do not count them.",
            own.name,
            counted(rejected, "job")
        ));
    }
    sentences
}

fn against(own: &Summary, other: &Summary) -> Option<String> {
    let times = own.communication_seconds.zip(other.communication_seconds);
    let communication = times.map(|(own, other)| {
        let change = own.mean / other.mean - 1.0;
        match percent(change.abs()) {
            same if same == percent(0.0) => "communication takes as long".to_owned(),
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
        (true, false) => format!("jobs wait shorter: {shorter}"),
        (false, false) => format!("some wait longer: {longer}; others shorter: {shorter}"),
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

/// Returns a table that compares clusters under [`Policy::NvlinkDomains`], a line for each.
#[must_use]
pub fn clusters(reports: &[Report]) -> String {
    let name = Policy::NvlinkDomains.into_str();
    let width = reports
        .iter()
        .map(|one| one.cluster.len())
        .max()
        .unwrap_or(0);
    let line = |first: &str, cells: [&str; 6]| {
        let cells = cells.map(|cell| format!(" {cell:>9}")).concat();
        let separator = if width > 20 {
            "\n".to_owned() + &" ".repeat(20)
        } else {
            " ".repeat(20 - first.len())
        };
        format!(
            "{first}{}{cells}\n",
            if first.is_empty() {
                " ".repeat(20)
            } else {
                separator
            }
        )
    };
    let heads = ["GPUs", "in use", "wait", "95 %", "longest", "1 GiB"];
    let mut text = format!("Under {name}:\n{}", line("", heads));
    for report in reports {
        let summaries = report.summaries();
        let Some(own) = summaries.iter().find(|one| one.name == name) else {
            continue;
        };
        let none = || "-".to_owned();
        let wait = |value: fn(&Waits) -> f64| {
            own.wait_seconds
                .as_ref()
                .map_or_else(none, |waits| duration(value(waits)))
        };
        let cells = [
            report.gpus.to_string(),
            own.utilization.map_or_else(none, percent),
            wait(|waits| waits.mean),
            wait(|waits| waits.p95),
            wait(|waits| waits.max),
            own.communication_seconds
                .map_or_else(none, |time| short(time.mean)),
        ];
        text += &line(&report.cluster, cells.each_ref().map(String::as_str));
    }
    text
}
