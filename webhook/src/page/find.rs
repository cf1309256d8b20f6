//! What the search finds: each node, each waiting pod and each decision has one text of fields such as
//! `node:gpu-1 pod:ci/train project:gitlab.42`, and every word of a query must be in it.
//! The script searches the same texts in the same way.

use std::fmt::Write;

use nvlink_cluster::mirror::{Pod, pod::Queued};

use super::{
    board::{Kind, Row},
    queue,
};
use crate::recent::Decision;

/// The longest query, in bytes; the rest is ignored.
const LONGEST: usize = 1000;

/// The words of a query, in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    text: String,
    words: Vec<String>,
}

impl Query {
    pub(super) fn new(text: &str) -> Self {
        let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
        let end = ends.take_while(|&end| end <= LONGEST).last().unwrap_or(0);
        let text = text[..end].trim().to_owned();
        let words = text.to_lowercase();
        let words = words.split_whitespace().map(str::to_owned).collect();
        Self { text, words }
    }

    /// Returns the query as it was typed.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Reports whether every word is in the text of a node or of a decision.
    pub(super) fn matches(&self, text: &str) -> bool {
        self.words.iter().all(|word| text.contains(word.as_str()))
    }
}

/// A text of fields, in lower case.
#[derive(Default)]
struct Fields(String);

impl Fields {
    fn add(&mut self, name: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        let space = if self.0.is_empty() { "" } else { " " };
        // Writing to a string never fails.
        let _ = write!(self.0, "{space}{name}:{}", value.to_lowercase());
    }

    fn pod(&mut self, namespace: &str, name: &str, pod: Option<&Pod>) {
        self.add("pod", &format!("{namespace}/{name}"));
        self.add(
            "project",
            pod.and_then(|pod| pod.project.as_deref())
                .unwrap_or_default(),
        );
        self.add(
            "class",
            pod.and_then(|pod| pod.class.as_deref()).unwrap_or_default(),
        );
    }
}

/// Returns the text of a tray of a group that is away.
pub(super) fn of_away(tray: u8, group: &Kind) -> String {
    let mut fields = Fields::default();
    fields.add("tray", &tray.to_string());
    if let Kind::Fabric(fabric) = group {
        fields.add("domain", &fabric.id());
    }
    fields.add("is", "away");
    fields.0
}

/// Returns the text of a node.
pub(super) fn of_row(row: &Row) -> String {
    let mut fields = Fields::default();
    fields.add("node", &row.name);
    fields.add("rack", row.place.rack.as_deref().unwrap_or_default());
    fields.add("zone", row.place.zone.as_deref().unwrap_or_default());
    let Some(node) = row.node() else {
        fields.add("is", "unreadable");
        return fields.0;
    };
    if let Some(tray) = &node.tray {
        fields.add("tray", &tray.index.to_string());
    }
    for model in node.models() {
        fields.add("model", model);
    }
    for domain in &node.domains {
        fields.add("domain", &domain.id);
    }
    for gpu in &node.gpus {
        fields.add("gpu", gpu.uuid.as_deref().unwrap_or_default());
    }
    let held = node.allocations.iter().flatten();
    for (held, job) in held.zip(&row.jobs) {
        fields.pod(&held.namespace, &held.pod, job.pod.as_deref());
    }
    match row.largest_free_set() {
        None => fields.add("is", "unknown"),
        Some(0) => fields.add("is", "full"),
        Some(_) => fields.add("is", "free"),
    }
    if !row.broken().is_empty() {
        fields.add("is", "broken");
    }
    if row.lacking().is_some() || row.unclear_size().is_some() {
        fields.add("is", "lacking");
    }
    if node.domains.iter().any(|one| !one.faults.is_empty()) {
        fields.add("is", "degraded");
    }
    if node.slow.is_some() {
        fields.add("is", "slow");
    }
    if row.poor().next().is_some() {
        fields.add("is", "poor");
    }
    fields.0
}

/// Returns the text of a pod that waits.
pub(super) fn of_waiting(namespace: &str, name: &str, pod: &Pod) -> String {
    let mut fields = Fields::default();
    fields.pod(namespace, name, Some(pod));
    fields.add("is", "waiting");
    if pod.waits().is_some_and(queue::is_stuck) {
        fields.add("is", "stuck");
    }
    fields.add("reason", pod.waits().map_or("", Queued::word));
    fields.0
}

/// Returns the text of a decision.
pub(super) fn of_decision(decision: &Decision) -> String {
    let mut fields = Fields::default();
    let Decision { namespace, pod, .. } = decision;
    if !pod.is_empty() {
        fields.add("pod", &format!("{namespace}/{pod}"));
    }
    fields.add("class", decision.class.as_deref().unwrap_or_default());
    fields.add("project", decision.project.as_deref().unwrap_or_default());
    fields.add("is", decision.outcome.into_str());
    fields.add("rule", decision.rule.unwrap_or_default());
    fields.0
}

#[cfg(test)]
mod tests {
    use super::Query;

    #[test]
    fn every_word_must_be_there_in_any_case() {
        let text = "node:gpu-1 pod:ci/train-1 project:gitlab.42";
        for found in ["", " ", "GPU-1", "gitlab.42 train", "pod:ci/"] {
            assert!(Query::new(found).matches(text), "{found}");
        }
        for missing in ["gpu-2", "gpu-1 other", "ci/train-12"] {
            assert!(!Query::new(missing).matches(text), "{missing}");
        }
        let long = Query::new(&"ü".repeat(600));
        assert_eq!(long.text().chars().count(), 500);
    }
}
