//! Output of `preview`.

use std::fmt::Write;

use serde_json::{Value, json};
use similar::TextDiff;

use super::Change;
use crate::{args::Output, yaml};

/// Lines around a change.
const CONTEXT: usize = 3;

pub(super) fn render(changes: &[Change], output: Output) -> anyhow::Result<String> {
    let after = || changes.iter().map(|change| change.after.clone());
    Ok(match output {
        Output::Yaml => yaml::write(&after().collect::<Vec<_>>())?,
        Output::Json => {
            let document = match changes {
                [one] => one.after.clone(),
                _ => {
                    json!({"apiVersion": "v1", "kind": "List", "items": after().collect::<Vec<_>>()})
                }
            };
            format!("{document:#}\n")
        }
        Output::Patch => changes
            .iter()
            .map(|change| format!("{:#}\n", json!(change.patch)))
            .collect(),
        Output::Diff => diff(changes)?,
    })
}

fn diff(changes: &[Change]) -> anyhow::Result<String> {
    let mut page = String::new();
    for change in changes {
        let text = |document: &Value| yaml::write(std::slice::from_ref(document));
        let (before, after) = (text(&change.before)?, text(&change.after)?);
        let diff = TextDiff::from_lines(&before, &after);
        write!(
            page,
            "{}",
            diff.unified_diff()
                .context_radius(CONTEXT)
                .header("before", "after")
        )?;
    }
    Ok(page)
}
