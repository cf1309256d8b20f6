//! Output of `preview`.

use std::fmt::Write;

use nvlink_api::{pod, yaml};
use serde_json::{Value, json};
use similar::TextDiff;

use super::{Change, verdict::Verdict};
use crate::args::Output;

/// Lines of context around a change.
const CONTEXT: usize = 3;

/// Returns the documents, or their changes, in the format `output`.
pub(super) fn documents(changes: &[Change], output: Output) -> anyhow::Result<String> {
    let after = || changes.iter().map(|change| change.after.clone());
    Ok(match output {
        Output::Json => {
            let document = match changes {
                [one] => one.after.clone(),
                _ => {
                    json!({"apiVersion": "v1", "kind": "List", "items": after().collect::<Vec<_>>()})
                }
            };
            format!("{document:#}\n")
        }
        Output::Patch => {
            let patches = changes.iter().map(|change| {
                let verdicts = change.verdicts.iter();
                let patch: Vec<_> = verdicts.flat_map(|verdict| &verdict.patch.0).collect();
                format!("{:#}\n", json!(patch))
            });
            patches.collect()
        }
        Output::Diff => diff(changes)?,
        Output::Yaml | Output::Text | Output::Report => yaml::write(&after().collect::<Vec<_>>())?,
    })
}

fn diff(changes: &[Change]) -> anyhow::Result<String> {
    let mut page = String::new();
    for change in changes {
        let text = |document: &Value| yaml::write(std::slice::from_ref(document));
        let (before, after) = (text(&change.before)?, text(&change.after)?);
        let diff = TextDiff::from_lines(&before, &after);
        let title = title(change);
        write!(
            page,
            "{}",
            diff.unified_diff()
                .context_radius(CONTEXT)
                .header(&format!("{title} before"), &format!("{title} after"))
        )?;
    }
    Ok(page)
}

/// Returns the kind and name of the document and the namespace of its pods, for the header of a
/// diff.
fn title(change: &Change) -> String {
    let kind = change.before.get("kind").and_then(Value::as_str);
    let name = pod::display_name(&change.before);
    let mut title = kind.unwrap_or("document").to_owned();
    if !name.is_empty() {
        title = format!("{title}/{name}");
    }
    let mut namespaces: Vec<_> = change.verdicts.iter().map(|it| &*it.namespace).collect();
    namespaces.dedup();
    if !namespaces.is_empty() {
        title = format!("{title} in namespace {}", namespaces.join(", "));
    }
    title
}

/// Returns the verdicts, for people.
pub(super) fn text(verdicts: &[&Verdict]) -> String {
    let mut page = String::new();
    for verdict in verdicts {
        for (index, line) in lines(verdict).iter().enumerate() {
            let start = match index {
                0 => format!("{}: ", verdict.name),
                _ => "  ".to_owned(),
            };
            page.push_str(&format!("{start}{line}\n"));
        }
    }
    page
}

/// Returns the lines of a verdict; the first line follows the name of the pods.
fn lines(verdict: &Verdict) -> Vec<String> {
    let mut lines = Vec::new();
    if let (Some(rule), Some(message)) = (verdict.rule, &verdict.message) {
        let mut message = message.lines();
        let first = message.next().unwrap_or_default();
        lines.push(format!("refused by rule {rule}: {first}"));
        // Commands to copy, each on its own line.
        lines.extend(message.map(str::to_owned));
    }
    let mut warnings = verdict.warnings.iter();
    if verdict.allowed {
        let unchanged = || match verdict.notes.first() {
            Some(note) if note.starts_with("not checked") => "admitted".to_owned(),
            _ => "admitted, not changed: no class applies".to_owned(),
        };
        lines.push(warnings.next().cloned().unwrap_or_else(unchanged));
    }
    if let Some(decision) = &verdict.decision {
        lines.push(format!("why: {}", decision.why));
        lines.push(format!("pattern: {}", decision.pattern_from));
        if let Some(from) = decision.bandwidth_from {
            lines.push(format!("bandwidth: {from}"));
        }
        if !decision.kept.is_empty() {
            let kept = decision.kept.join(", ");
            lines.push(format!("not changed, because the pod sets them: {kept}"));
        }
    }
    if let Some(nodes) = &verdict.nodes {
        let (count, all) = (nodes.fitting.len(), nodes.all);
        let list = match count {
            0 => "none".to_owned(),
            _ => nodes.fitting.join(", "),
        };
        lines.push(format!("nodes that fit: {list} ({count} of {all})"));
    }
    let notes = warnings.chain(&verdict.notes);
    lines.extend(notes.map(|note| format!("note: {note}")));
    lines
}
