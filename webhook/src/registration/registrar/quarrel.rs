//! Slows repairs down when somebody keeps changing the configuration, such as a
//! replica with other flags, which undoes each repair.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

/// The number of repairs without a wait, enough for a manual change or a rollout.
const PATIENCE: u32 = 3;
/// The longest wait before a repair.
const LONGEST: Duration = Duration::from_secs(60);
/// After this time without a repair the count starts again.
const PEACE: Duration = Duration::from_secs(300);
/// The most fields that a message names.
const NAMED: usize = 3;

/// The count of recent repairs.
#[derive(Debug, Default)]
pub(super) struct Quarrel {
    repairs: u32,
    last: Option<Instant>,
}

impl Quarrel {
    /// Counts a repair. Returns how long to wait before repairing the next change;
    /// none if it should be repaired at once.
    pub(super) fn repaired(&mut self, now: Instant) -> Option<Duration> {
        let over = self.last.is_none_or(|last| now - last > PEACE);
        self.repairs = if over { 1 } else { self.repairs + 1 };
        self.last = Some(now);
        let more = self.repairs.checked_sub(PATIENCE + 1)?;
        Some(Duration::from_secs(2 << more.min(6)).min(LONGEST))
    }
}

/// Returns the fields in which `found` differs from `wanted`, for the log.
pub(super) fn differences(wanted: &Value, found: &Value) -> String {
    let mut fields = Vec::new();
    compare(String::new(), wanted, found, &mut fields);
    let more = fields.len().saturating_sub(NAMED);
    fields.truncate(NAMED);
    match more {
        0 => fields.join(", "),
        more => format!("{} and {more} more", fields.join(", ")),
    }
}

fn compare(path: String, wanted: &Value, found: &Value, fields: &mut Vec<String>) {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            let added = found.keys().filter(|key| !wanted.contains_key(*key));
            for key in wanted.keys().chain(added) {
                let dot = if path.is_empty() { "" } else { "." };
                let of = |map: &serde_json::Map<_, _>| map.get(key).cloned().unwrap_or_default();
                compare(format!("{path}{dot}{key}"), &of(wanted), &of(found), fields);
            }
        }
        (Value::Array(wanted), Value::Array(found)) if wanted.len() == found.len() => {
            for (index, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                compare(format!("{path}[{index}]"), wanted, found, fields);
            }
        }
        _ if wanted != found => fields.push(path),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_grow_and_start_again_after_a_quiet_time() {
        let mut quarrel = Quarrel::default();
        let now = Instant::now();
        let waits: Vec<_> = (0..10).map(|_| quarrel.repaired(now)).collect();
        let seconds: Vec<_> = waits.iter().flatten().map(Duration::as_secs).collect();
        assert_eq!(seconds, [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(quarrel.repaired(now + 2 * PEACE), None);
    }

    #[test]
    fn differing_fields_are_named() {
        let hook = |policy: &str, values: Value| json!({"webhooks": [{"name": "a", "failurePolicy": policy}, {"values": values}]});
        let wanted = hook("Fail", json!(["x"]));
        assert_eq!(differences(&wanted, &wanted), "");
        assert_eq!(
            differences(&wanted, &hook("Ignore", json!(["x", "y"]))),
            "webhooks[0].failurePolicy, webhooks[1].values"
        );
        assert_eq!(
            differences(&wanted, &json!({"a": 1, "b": 2, "c": 3})),
            "webhooks, a, b and 1 more"
        );
    }
}
