//! The latest decisions of this replica.

use k8s_openapi::jiff::Timestamp;
use nvlink_runtime::page::escape;
use nvlink_runtime::words::count;
use serde_json::{Value, json};

use super::find::{self, Query};
use crate::{
    metrics::Outcome,
    recent::{Decision, KEPT},
};

/// Renders the section, with `list` as its entries.
pub(super) fn section(list: &str) -> String {
    format!(
        "<section class=\"decisions\" id=\"decisions\" tabindex=\"-1\"><h2>Recent decisions</h2>\n\
         <p class=\"soft\">The last {KEPT} of this replica, since its start, in UTC. Each replica has \
         its own; dry runs are among them. The log has all.</p>\n\
         <p class=\"soft\" id=\"no-decisions\">None so far.</p>\n\
         <ol id=\"list\">\n{list}</ol></section>\n"
    )
}

/// Renders decisions as entries of the list.
pub(super) fn entries<'a>(decisions: impl Iterator<Item = &'a Decision>, query: &Query) -> String {
    decisions.map(|one| entry(one, query)).collect()
}

fn entry(decision: &Decision, query: &Query) -> String {
    let (mark, class) = match decision.outcome {
        Outcome::Mutated | Outcome::Unchanged => ("✓", "good"),
        Outcome::Untouched => ("·", "soft"),
        Outcome::Denied => ("✕", "bad"),
        Outcome::Invalid | Outcome::Overloaded => ("▲", "warning"),
    };
    let find = find::of_decision(decision);
    let hidden = if query.matches(&find) { "" } else { " hidden" };
    let time = time(decision);
    let pod = match (&*decision.namespace, &*decision.pod) {
        ("", "") => String::new(),
        (namespace, pod) => format!("<b>{}</b>", escape(&format!("{namespace}/{pod}"))),
    };
    let about = [
        decision
            .class
            .as_ref()
            .map(|class| format!("class {class}")),
        decision.gpus.map(|gpus| count(gpus as usize, "GPU")),
        decision
            .project
            .as_ref()
            .map(|one| format!("project {one}")),
        decision.rule.map(|rule| format!("rule {rule}")),
    ];
    let about: Vec<String> = about.into_iter().flatten().collect();
    format!(
        "<li id=\"decision-{number}\" data-find=\"{find}\"{hidden}><time datetime=\"{time}\">{shown}</time> \
         <span class=\"{class}\">{mark} {outcome}</span> {pod} <span class=\"soft\">{about}</span> \
         <span class=\"why\">{why}</span></li>\n",
        number = decision.number,
        find = escape(&find),
        shown = time.replace('T', " ").trim_end_matches('Z'),
        outcome = decision.outcome.into_str(),
        about = escape(&about.join(", ")),
        why = escape(&decision.reason),
    )
}

/// Returns the time in UTC, to the second.
fn time(decision: &Decision) -> String {
    let time = Timestamp::try_from(decision.time).unwrap_or(Timestamp::UNIX_EPOCH);
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns a decision as JSON. Keys that do not apply are absent.
pub(super) fn json(decision: &Decision) -> Value {
    let mut value = json!({
        "number": decision.number,
        "time": time(decision),
        "outcome": decision.outcome.into_str(),
        "reason": decision.reason,
    });
    let optional = [
        ("namespace", Some(decision.namespace.as_str())),
        ("pod", Some(decision.pod.as_str())),
        ("class", decision.class.as_deref()),
        ("project", decision.project.as_deref()),
        ("rule", decision.rule),
    ];
    for (key, text) in optional {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            value[key] = json!(text);
        }
    }
    if let Some(gpus) = decision.gpus {
        value["gpus"] = json!(gpus);
    }
    value
}
