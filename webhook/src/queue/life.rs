//! Where a pod is between its creation and its end.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::decide::{gate, pod};
use nvlink_topology::labels;

/// Where a pod is between its creation and its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// It has the gate of the queue.
    Waiting {
        /// The names of its other gates, which the queue never touches.
        others: Vec<String>,
    },
    /// It has gates, but not that of the queue.
    Gated {
        /// The names of its gates.
        others: Vec<String>,
    },
    /// It has no gate and no node: the scheduler may bind it at any moment.
    Released,
    /// It has a node, which has not started it.
    Bound {
        /// The node.
        node: String,
    },
    /// It runs.
    Running {
        /// The node.
        node: String,
        /// When the kubelet accepted it.
        since: Option<Timestamp>,
    },
    /// It has ended: its GPUs are free.
    Ended {
        /// It succeeded.
        succeeded: bool,
        /// How long it ran; `None` if it never did, or nobody wrote down when.
        ran: Option<Duration>,
    },
    /// It is being deleted. On a node, it holds its GPUs until it is gone.
    Deleting {
        /// The node, if it has one.
        node: Option<String>,
        /// How long it ran until its deletion was requested; `None` if it never did.
        ran: Option<Duration>,
    },
}

impl Life {
    /// Reads `pod`.
    #[must_use]
    pub fn of(pod: &Value) -> Self {
        let text = |path: &[&str]| pod::at(pod, path).and_then(Value::as_str);
        let node = text(&["spec", "nodeName"]).filter(|node| !node.is_empty());
        let since = time(pod, &["status", "startTime"]);
        let phase = text(&["status", "phase"]).unwrap_or_default();
        if matches!(phase, "Succeeded" | "Failed") {
            return Self::Ended {
                succeeded: phase == "Succeeded",
                ran: between(since, finished(pod)),
            };
        }
        if let Some(gone) = time(pod, &["metadata", "deletionTimestamp"]) {
            // The timestamp is the end of the grace period.
            let grace = pod::at(pod, &["metadata", "deletionGracePeriodSeconds"]);
            let grace = Duration::from_secs(grace.and_then(Value::as_u64).unwrap_or(0));
            let asked = gone.checked_sub(grace).ok();
            return Self::Deleting {
                node: node.map(str::to_owned),
                ran: between(since, asked).filter(|_| phase == "Running"),
            };
        }
        let others = gate::gates(pod).filter(|gate| *gate != labels::QUEUE_GATE);
        let others: Vec<_> = others.map(str::to_owned).collect();
        match node {
            _ if gate::is_queued(pod) => Self::Waiting { others },
            _ if !others.is_empty() => Self::Gated { others },
            None => Self::Released,
            Some(node) if phase == "Running" => Self::Running {
                node: node.to_owned(),
                since,
            },
            Some(node) => Self::Bound {
                node: node.to_owned(),
            },
        }
    }

    /// Returns the node whose GPUs the pod holds.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        match self {
            Self::Bound { node } | Self::Running { node, .. } => Some(node),
            Self::Deleting { node, .. } => node.as_deref(),
            Self::Waiting { .. } | Self::Gated { .. } | Self::Released | Self::Ended { .. } => None,
        }
    }

    /// Reports whether the pod may still start or run, as a member of its gang.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !matches!(self, Self::Ended { .. } | Self::Deleting { .. })
    }
}

/// Returns the time at `path`.
pub(super) fn time(value: &Value, path: &[&str]) -> Option<Timestamp> {
    pod::at(value, path)?.as_str()?.parse().ok()
}

fn between(from: Option<Timestamp>, to: Option<Timestamp>) -> Option<Duration> {
    Duration::try_from(to?.duration_since(from?)).ok()
}

/// Returns when the last container of the pod ended.
fn finished(pod: &Value) -> Option<Timestamp> {
    let containers = pod::list(pod, &["status", "containerStatuses"]);
    containers
        .filter_map(|one| time(one, &["state", "terminated", "finishedAt"]))
        .max()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const START: &str = "2026-08-01T10:00:00Z";

    fn at(seconds: i64) -> Option<Timestamp> {
        let start: Timestamp = START.parse().unwrap();
        Timestamp::from_second(start.as_second() + seconds).ok()
    }

    #[test]
    fn each_state_is_told_apart() {
        let ours = json!({"name": labels::QUEUE_GATE});
        let other = json!({"name": "example.com/quota"});
        let node = || "n1".to_owned();
        let ran = |seconds| Some(Duration::from_secs(seconds));
        let ended = json!([
            {"state": {"terminated": {"finishedAt": "2026-08-01T10:05:00Z"}}},
            {"state": {"terminated": {"finishedAt": "2026-08-01T10:04:00Z"}}}
        ]);
        let deleted = json!({
            "deletionTimestamp": "2026-08-01T10:01:30Z", "deletionGracePeriodSeconds": 30
        });
        let running = json!({"phase": "Running", "startTime": START});
        for (pod, life, holds) in [
            (
                json!({"spec": {"schedulingGates": [ours]}, "status": {"phase": "Pending"}}),
                Life::Waiting { others: vec![] },
                None,
            ),
            (
                json!({"spec": {"schedulingGates": [other, ours]}}),
                Life::Waiting {
                    others: vec!["example.com/quota".to_owned()],
                },
                None,
            ),
            (
                json!({"spec": {"schedulingGates": [other]}}),
                Life::Gated {
                    others: vec!["example.com/quota".to_owned()],
                },
                None,
            ),
            (
                json!({"spec": {"schedulingGates": []}}),
                Life::Released,
                None,
            ),
            (json!({"spec": {"nodeName": ""}}), Life::Released, None),
            (
                json!({"spec": {"nodeName": "n1"}, "status": {"phase": "Pending"}}),
                Life::Bound { node: node() },
                Some("n1"),
            ),
            (
                json!({"spec": {"nodeName": "n1"}, "status": running}),
                Life::Running {
                    node: node(),
                    since: at(0),
                },
                Some("n1"),
            ),
            (
                json!({
                    "spec": {"nodeName": "n1"},
                    "status": {"phase": "Succeeded", "startTime": START, "containerStatuses": ended}
                }),
                Life::Ended {
                    succeeded: true,
                    ran: ran(300),
                },
                None,
            ),
            (
                json!({"metadata": deleted, "status": {"phase": "Failed", "reason": "Evicted"}}),
                Life::Ended {
                    succeeded: false,
                    ran: None,
                },
                None,
            ),
            (
                json!({"metadata": deleted, "spec": {"nodeName": "n1"}, "status": running}),
                Life::Deleting {
                    node: Some(node()),
                    ran: ran(60),
                },
                Some("n1"),
            ),
            (
                json!({"metadata": deleted, "spec": {"schedulingGates": [ours]}}),
                Life::Deleting {
                    node: None,
                    ran: None,
                },
                None,
            ),
        ] {
            let read = Life::of(&pod);
            assert_eq!(read, life, "{pod}");
            assert_eq!(read.node(), holds, "{pod}");
        }
    }
}
