//! Somebody who changes the configuration again and again, such as a replica
//! with other flags. Each repair is undone, so they are made less and less often.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

/// So many repairs are made at once: somebody's hand, or a rollout.
const PATIENCE: u32 = 3;
/// The longest wait before a repair.
const LONGEST: Duration = Duration::from_secs(60);
/// After so long without a repair all is well again.
const PEACE: Duration = Duration::from_secs(300);
/// Fields that are named.
const NAMED: usize = 3;

/// What was repaired lately.
#[derive(Debug, Default)]
pub(super) struct Quarrel {
    repairs: u32,
    last: Option<Instant>,
}

impl Quarrel {
    /// Counts a repair. How long to leave the next change as it is; none where
    /// it is to be put right at once.
    pub(super) fn repaired(&mut self, now: Instant) -> Option<Duration> {
        let over = self.last.is_none_or(|last| now - last > PEACE);
        self.repairs = if over { 1 } else { self.repairs + 1 };
        self.last = Some(now);
        let more = self.repairs.checked_sub(PATIENCE + 1)?;
        Some(Duration::from_secs(2 << more.min(6)).min(LONGEST))
    }
}

/// The fields in which `found` is not as `wanted`, for people.
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
    async fn repairs_become_rare_and_peace_comes_back() {
        let mut quarrel = Quarrel::default();
        let now = Instant::now();
        let waits: Vec<_> = (0..10).map(|_| quarrel.repaired(now)).collect();
        let seconds: Vec<_> = waits.iter().flatten().map(Duration::as_secs).collect();
        assert_eq!(seconds, [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(quarrel.repaired(now + 2 * PEACE), None);
    }

    #[test]
    fn what_differs_is_named() {
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
