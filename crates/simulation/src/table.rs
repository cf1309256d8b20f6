//! The report as a table for people.

use crate::{
    comparison::policies,
    summary::{Report, Summary},
    words::{counted, duration, number, percent, short, wrapped},
};

/// Returns the report as a table with a column for each policy, and in words what the first
/// policy gains and loses against the others. No line is wider than 80 columns.
#[must_use]
pub fn table(report: &Report) -> String {
    let summaries = report.summaries();
    let mut text = format!(
        "{} on {} of {}",
        counted(report.jobs, "job"),
        counted(report.gpus, "GPU"),
        counted(report.nodes, "node")
    );
    if report.rejected > 0 {
        let rejected = number(report.rejected);
        text += &format!("; {rejected} rejected: too large");
    }
    text += "\n\n";
    text += &row("", &summaries, |one| Some(one.name.to_owned()));
    let late = summaries.iter().any(|one| one.timed_out > 0);
    let timed_out: (_, Value) = ("timed out", |one| Some(number(one.timed_out)));
    let shares = summaries.iter().any(|one| one.lost_gpu_hours > 0.0);
    let rows = rows().into_iter().chain(late.then_some(timed_out));
    for (name, value) in rows.chain(of_shares().into_iter().filter(|_| shares)) {
        text += &row(name, &summaries, value);
    }
    text += "\n";
    text += &by_size(&summaries);
    for sentence in policies(&summaries) {
        text += &wrapped(&sentence);
    }
    text
}

type Value = fn(&Summary) -> Option<String>;

fn rows() -> [(&'static str, Value); 13] {
    [
        ("wait, mean", |one| {
            one.wait_seconds.map(|wait| duration(wait.mean))
        }),
        ("wait, median", |one| {
            one.wait_seconds.map(|wait| duration(wait.p50))
        }),
        ("wait, 95 % within", |one| {
            one.wait_seconds.map(|wait| duration(wait.p95))
        }),
        ("wait, 99 % within", |one| {
            one.wait_seconds.map(|wait| duration(wait.p99))
        }),
        ("wait, longest", |one| {
            one.wait_seconds.map(|wait| duration(wait.max))
        }),
        ("1 GiB, mean", |one| {
            one.communication_seconds.map(|time| short(time.mean))
        }),
        ("1 GiB, 95 % within", |one| {
            one.communication_seconds.map(|time| short(time.p95))
        }),
        ("quality, mean", |one| {
            one.quality.map(|quality| format!("{:.2}", quality.mean))
        }),
        ("quality, 95 % above", |one| {
            one.quality.map(|quality| format!("{:.2}", quality.p5))
        }),
        ("across domains", |one| Some(number(one.cross_domain_jobs))),
        ("rejected", |one| Some(number(one.rejected))),
        ("GPUs in use", |one| one.utilization.map(percent)),
        ("makespan", |one| one.makespan_seconds.map(duration)),
    ]
}

/// Rows of what depends on how long jobs communicate.
fn of_shares() -> [(&'static str, Value); 4] {
    [
        ("to the end, mean", |one| {
            one.turnaround_seconds.map(|time| duration(time.mean))
        }),
        ("to the end, 95 %", |one| {
            one.turnaround_seconds.map(|time| duration(time.p95))
        }),
        ("GPU-hours used", |one| Some(hours(one.gpu_hours))),
        ("GPU-hours lost", |one| Some(hours(one.lost_gpu_hours))),
    ]
}

fn hours(hours: f64) -> String {
    if hours < 100.0 {
        return format!("{hours:.2}");
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // positive, saturates
    number(hours.round() as usize)
}

/// Returns waits and communication by the size of jobs, if they have several sizes.
fn by_size(summaries: &[Summary]) -> String {
    let sizes = summaries.first().map_or(&[][..], |one| &one.by_size);
    if sizes.len() < 2 {
        return String::new();
    }
    let mut text = String::new();
    for size in sizes {
        let gpus = if size.gpus == "1" { "GPU" } else { "GPUs" };
        let of = |one: &Summary| {
            one.by_size
                .iter()
                .find(|one| one.gpus == size.gpus)
                .cloned()
        };
        let name = |what: &str| format!("{} {gpus}, {what}", size.gpus);
        text += &row(&name("wait"), summaries, |one| {
            Some(duration(of(one)?.wait_seconds.mean))
        });
        text += &row(&name("95 %"), summaries, |one| {
            Some(duration(of(one)?.wait_seconds.p95))
        });
        text += &row(&name("longest"), summaries, |one| {
            Some(duration(of(one)?.wait_seconds.max))
        });
        if size.communication_seconds.is_some() {
            text += &row(&name("1 GiB"), summaries, |one| {
                Some(short(of(one)?.communication_seconds?.mean))
            });
        }
    }
    text + "\n"
}

fn row(name: &str, summaries: &[Summary], value: impl Fn(&Summary) -> Option<String>) -> String {
    let cells = summaries
        .iter()
        .map(|one| value(one).unwrap_or_else(|| "-".to_owned()));
    let cells: Vec<String> = cells.map(|cell| format!(" {cell:>14}")).collect();
    format!("{name:<19}{}", cells.concat())
        .trim_end()
        .to_owned()
        + "\n"
}
