//! The report as a table for people.

use crate::{
    summary::{Report, Summary},
    words::{counted, duration, number, percent, short},
};

/// Columns of a terminal.
const WIDTH: usize = 80;

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
        text += &format!("; {rejected} never ran: too large");
    }
    text += "\n\n";
    text += &row("", &summaries, |one| Some(one.name.to_owned()));
    for (name, value) in rows() {
        text += &row(name, &summaries, value);
    }
    text += "\n";
    for sentence in comparison(&summaries) {
        text += &wrapped(&sentence);
    }
    text
}

type Value = fn(&Summary) -> Option<String>;

fn rows() -> [(&'static str, Value); 12] {
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
        ("1 GiB, mean", |one| {
            one.communication_seconds.map(|time| short(time.mean))
        }),
        ("1 GiB, 95 % within", |one| {
            one.communication_seconds.map(|time| short(time.p95))
        }),
        ("quality, mean", |one| {
            one.quality.map(|quality| format!("{:.2}", quality.mean))
        }),
        ("quality, 5 % below", |one| {
            one.quality.map(|quality| format!("{:.2}", quality.p5))
        }),
        ("across domains", |one| Some(number(one.cross_domain_jobs))),
        ("rejected", |one| Some(number(one.rejected))),
        ("GPUs in use", |one| one.utilization.map(percent)),
        ("makespan", |one| one.makespan_seconds.map(duration)),
    ]
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

/// Says what the first policy gains and loses against each of the others.
fn comparison(summaries: &[Summary]) -> Vec<String> {
    let Some((own, others)) = summaries.split_first() else {
        return Vec::new();
    };
    let against = |other: &Summary| {
        let times = own.communication_seconds.zip(other.communication_seconds);
        let communication = times.map(|(own, other)| {
            let change = own.mean / other.mean - 1.0;
            match percent(change.abs()) {
                same if same == percent(0.0) => "communication takes as long".to_owned(),
                share if change < 0.0 => format!("communication takes {share} less time"),
                share => format!("communication takes {share} more time"),
            }
        });
        let waits = own.wait_seconds.zip(other.wait_seconds);
        let waits = waits.map(|(own, other)| {
            let (within, instead) = (duration(own.p95), duration(other.p95));
            match within == instead {
                true => format!("95 % of jobs start within {within} under both"),
                false => format!("95 % of jobs start within {within} instead of {instead}"),
            }
        });
        let parts: Vec<String> = communication.into_iter().chain(waits).collect();
        let (own, other) = (own.name, other.name);
        (!parts.is_empty()).then(|| format!("{own} against {other}: {}.", parts.join(", ")))
    };
    others.iter().filter_map(against).collect()
}

/// Breaks a sentence into lines.
fn wrapped(sentence: &str) -> String {
    let mut text = String::new();
    let mut width = 0;
    for word in sentence.split(' ') {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > WIDTH {
            text.push('\n');
            width = 0;
        } else if width > 0 {
            text.push(' ');
            width += 1;
        }
        text += word;
        width += length;
    }
    text + "\n"
}
