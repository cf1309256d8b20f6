//! What an Alertmanager with the project's routes tells of alerts that fire.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    thread,
    time::{Duration, Instant},
};

use nvlink_tests::{Alertmanager, Message, Receiver};
use serde_json::{Value, json};

use super::firing::Firing;

/// When an alert ends that fires, and one that does not.
const NEVER: &str = "2100-01-01T00:00:00Z";
const PAST: &str = "2000-01-01T00:00:00Z";

/// Lets the alerts fire and end, a minute in `60 s / factor`, and returns the messages by receiver and group. It waits for
/// `tail` minutes after the last change.
pub(super) fn told(firings: &[Firing], factor: u32, tail: u32) -> Vec<Message> {
    let Some(begin) = firings.iter().map(|firing| firing.from).min() else {
        return Vec::new();
    };
    let receiver = Receiver::start().unwrap();
    let alertmanager = Alertmanager::faster(&receiver, factor).unwrap();
    let changes = firings
        .iter()
        .flat_map(|firing| [Some(firing.from), firing.to]);
    let changes: BTreeSet<u32> = changes.flatten().collect();
    let start = Instant::now();
    let wait = |minute: u32| {
        let at = start + (minute - begin) * Duration::from_secs(60) / factor;
        thread::sleep(at.saturating_duration_since(Instant::now()));
    };
    for minute in &changes {
        wait(*minute);
        let news = firings.iter().filter_map(|firing| change(firing, *minute));
        alertmanager.post(&news.collect()).unwrap();
    }
    wait(changes.last().map_or(begin, |last| last + tail));
    let mut messages = receiver.messages();
    messages.sort_by_key(|message| (message.receiver.clone(), message.group_labels.clone()));
    messages
}

/// Returns what Prometheus sends of an alert that changes at that minute.
fn change(firing: &Firing, minute: u32) -> Option<Value> {
    let end = match minute {
        _ if firing.from == minute => NEVER,
        _ if firing.to == Some(minute) => PAST,
        _ => return None,
    };
    Some(json!({"labels": firing.labels, "annotations": firing.annotations, "endsAt": end}))
}

/// Returns a text with each message: its receiver and group, and what it says of each alert.
pub(super) fn text(messages: &[Message]) -> String {
    let mut out = String::new();
    if messages.is_empty() {
        out += "Nobody is told anything.\n";
    }
    for same in messages.chunk_by(|a, b| of(a) == of(b)) {
        let (receiver, group) = of(&same[0]);
        let _ = writeln!(out, "{receiver}, {group}");
        for (number, message) in (1..).zip(same) {
            let _ = writeln!(out, "  message {number}, {}", message.status);
            let alerts = message.alerts.iter().map(|alert| {
                let (name, said) = (alert.label("alertname"), &alert.annotations["summary"]);
                format!("    {} {name}: {said}\n", alert.status)
            });
            let alerts: BTreeSet<String> = alerts.collect();
            out.extend(alerts);
        }
    }
    out
}

fn of(message: &Message) -> (&str, String) {
    let labels = message.group_labels.iter();
    let labels: Vec<String> = labels
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    let group = if labels.is_empty() {
        "of no node".to_owned()
    } else {
        labels.join(", ")
    };
    (&message.receiver, group)
}
