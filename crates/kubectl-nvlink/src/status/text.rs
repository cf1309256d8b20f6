//! Reports as text for a terminal.

use nvlink_planner::Millis;

use super::{
    report::{ClassRow, DomainRow, HolderRow, Status},
    table::{Column, table, wrap},
    waiting::QueueRow,
    words,
};

/// Returns a cell whose value may be unknown.
fn known<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

impl Status {
    /// Returns the tables, at most `width` columns wide; `None`: nothing is cut, and reasons are
    /// sentences.
    #[must_use]
    pub fn text(&self, width: Option<usize>) -> String {
        let mut parts = Vec::new();
        if let Some(classes) = &self.classes {
            parts.push(match classes[..] {
                [] => "There is no class.\n".to_owned(),
                _ => class_table(classes, width),
            });
        }
        if let Some(domains) = &self.domains {
            parts.push(match domains[..] {
                [] => "No node publishes NVLink domains.\n".to_owned(),
                _ => domain_table(domains, None, width) + &more(self.more_domains, "domain"),
            });
        }
        if let Some(queue) = &self.queue {
            parts.push(match (&queue[..], &self.namespace) {
                ([], Some(namespace)) => {
                    format!(
                        "No pod of namespace {} waits in the queue.\n",
                        words::clean(namespace)
                    )
                }
                ([], None) => "No pod waits in the queue.\n".to_owned(),
                _ => self.queue_table(queue, width) + &more(self.more_jobs, "job"),
            });
        }
        if !self.elsewhere.is_empty() {
            let more = more(self.more_elsewhere, "pod");
            parts.push(self.elsewhere_table(width) + &more);
        }
        if !self.notes.is_empty() {
            parts.push(notes(&self.notes, width));
        }
        parts.join("\n")
    }

    fn queue_table(&self, rows: &[QueueRow], width: Option<usize>) -> String {
        let now = Self::now(&self.time);
        let columns = [
            Column::Name("POD"),
            Column::Name("PROJECT"),
            // The position is that in the class, so it follows the class.
            Column::Name("CLASS"),
            Column::Number("POS"),
            Column::Number("GPUS"),
            Column::Number("WAITED"),
            Column::Number("ETA"),
            if width.is_some() {
                Column::Word("REASON")
            } else {
                Column::Text("REASON")
            },
        ];
        let lines = rows.iter().map(|row| {
            let more = match row.pods {
                0 | 1 => String::new(),
                pods => format!(" +{}", pods - 1),
            };
            let pod = self.pod(&row.namespace, &row.pod) + &more;
            let reason = match width {
                Some(_) => row.reason.chars().take(12).collect(),
                None => row.message.clone(),
            };
            vec![
                pod,
                row.project.clone(),
                row.class.clone(),
                known(row.position),
                row.gpus.to_string(),
                waited(row.waited_seconds),
                row.starts(now),
                reason,
            ]
        });
        table(&columns, &lines.collect::<Vec<_>>(), width)
    }

    /// Returns the pods that wait, but not in the queue.
    fn elsewhere_table(&self, width: Option<usize>) -> String {
        let columns = [
            Column::Name("POD"),
            Column::Name("PROJECT"),
            Column::Name("CLASS"),
            Column::Number("GPUS"),
            Column::Number("WAITED"),
            Column::Text("WAITS ELSEWHERE"),
        ];
        let lines = self.elsewhere.iter().map(|row| {
            vec![
                self.pod(&row.namespace, &row.pod),
                row.project.clone(),
                known(row.class.as_ref()),
                row.gpus.to_string(),
                waited(row.waited_seconds),
                row.waits.clone(),
            ]
        });
        table(&columns, &lines.collect::<Vec<_>>(), width)
    }

    /// Returns the name of a pod, with its namespace unless all are of one.
    fn pod(&self, namespace: &str, name: &str) -> String {
        match self.namespace {
            Some(_) => name.to_owned(),
            None => format!("{namespace}/{name}"),
        }
    }

    fn now(time: &str) -> Millis {
        let time: Option<k8s_openapi::jiff::Timestamp> = time.parse().ok();
        time.map_or(0, k8s_openapi::jiff::Timestamp::as_millisecond)
    }
}

fn waited(seconds: Option<i64>) -> String {
    known(seconds.map(|seconds| words::span(seconds * 1000)))
}

/// Returns how long it takes until a job is expected to start.
fn more(number: usize, what: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    match number {
        0 => String::new(),
        _ => format!("and {number} more {what}{s}: --limit 0 shows all\n"),
    }
}

/// Returns notes on what is missing.
pub(super) fn notes(notes: &[String], width: Option<usize>) -> String {
    let lines = notes.iter().map(|note| wrap("Note:", note, 6, width));
    lines.collect()
}

fn class_table(rows: &[ClassRow], width: Option<usize>) -> String {
    let columns = [
        Column::Name("CLASS"),
        Column::Number("NODES"),
        Column::Number("GPUS"),
        Column::Number("FREE"),
        Column::Number("WAITING"),
        Column::Number("LARGEST FREE DOMAIN"),
        Column::Text(""),
    ];
    let lines = rows.iter().map(|row| {
        vec![
            row.name.clone(),
            known(row.nodes),
            known(row.gpus),
            known(row.free),
            known(row.waiting),
            known(row.largest_free),
            match (&row.broken, &row.no_driver) {
                (Some(why), _) => format!("broken: {why}"),
                (None, Some(why)) => format!("no pod gets a GPU: {why}"),
                (None, None) => String::new(),
            },
        ]
    });
    table(&columns, &lines.collect::<Vec<_>>(), width)
}

/// Returns domains as a table. With `now`, it shows when pods are expected to end.
pub(super) fn domain_table(
    rows: &[DomainRow],
    now: Option<Millis>,
    width: Option<usize>,
) -> String {
    let columns = [
        Column::Name("NODE"),
        Column::Name("DOMAIN"),
        Column::Number("GPUS"),
        Column::Number("FREE"),
        Column::Text("HELD BY"),
    ];
    let lines = rows.iter().map(|row| {
        let mut held: Vec<String> = row.held_by.iter().map(|one| holder(one, now)).collect();
        if row.broken > 0 {
            held.insert(0, format!("{} broken", row.broken));
        }
        if row.unavailable > 0 {
            held.insert(0, format!("{} that no job can get", row.unavailable));
        }
        if row.out {
            held.insert(0, "out of service".to_owned());
        }
        vec![
            row.node.clone(),
            domain(row),
            row.gpus.to_string(),
            known(row.free),
            held.join(", "),
        ]
    });
    table(&columns, &lines.collect::<Vec<_>>(), width)
}

/// Returns the id of a domain without the name of its node.
fn domain(row: &DomainRow) -> String {
    let Some(id) = &row.domain else {
        return "no NVLink".to_owned();
    };
    let short = id
        .strip_prefix(&row.node)
        .and_then(|rest| rest.strip_prefix('.'));
    short.unwrap_or(id).to_owned()
}

fn holder(row: &HolderRow, now: Option<Millis>) -> String {
    let ends = now.zip(row.until).map(|(now, until)| match until - now {
        ..1 => ", about to end".to_owned(),
        left => format!(", ends in {}", words::span(left)),
    });
    format!("{} ({}{})", row.pod, row.gpus, ends.unwrap_or_default())
}
