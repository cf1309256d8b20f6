//! Where a pod is between its creation and its end.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use nvlink_api::pod;
use nvlink_topology::labels;
use serde_json::Value;

use nvlink_admission::decide::gate;

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
        /// The end of its grace period.
        gone: Timestamp,
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
                gone,
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

/// Returns when the pod was created, by the clock that the API server has had since: a leader wrote it
/// down if that clock was set.
#[must_use]
pub fn created(pod: &Value) -> Option<Timestamp> {
    let told = pod::metadata(pod, "annotations", labels::QUEUE_SINCE);
    let told = told.and_then(|told| told.as_str()?.parse().ok());
    told.or_else(|| time(pod, &["metadata", "creationTimestamp"]))
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

    #[track_caller]
    fn check(pod: &Value, life: &Life, holds: Option<&str>) {
        let read = Life::of(pod);
        assert_eq!(read, *life, "{pod}");
        assert_eq!(read.node(), holds, "{pod}");
    }

    fn others() -> Vec<String> {
        vec!["example.com/quota".to_owned()]
    }

    #[test]
    fn pods_without_a_node() {
        let ours = json!({"name": labels::QUEUE_GATE});
        let other = json!({"name": "example.com/quota"});
        let waiting = |others| Life::Waiting { others };
        let alone = json!({"spec": {"schedulingGates": [ours]}, "status": {"phase": "Pending"}});
        check(&alone, &waiting(vec![]), None);
        let both = json!({"spec": {"schedulingGates": [other, ours]}});
        check(&both, &waiting(others()), None);
        let gated = Life::Gated { others: others() };
        check(&json!({"spec": {"schedulingGates": [other]}}), &gated, None);
        let free = json!({"spec": {"schedulingGates": [], "nodeName": ""}});
        check(&free, &Life::Released, None);
        let deleted = json!({
            "metadata": {"deletionTimestamp": START}, "spec": {"schedulingGates": [ours]}
        });
        let gone = Life::Deleting {
            node: None,
            ran: None,
            gone: START.parse().unwrap(),
        };
        check(&deleted, &gone, None);
    }

    #[test]
    fn pods_on_a_node() {
        let node = || "n1".to_owned();
        let running = json!({"phase": "Running", "startTime": START});
        let on = |status: &Value| json!({"spec": {"nodeName": "n1"}, "status": status});
        let bound = Life::Bound { node: node() };
        check(&on(&json!({"phase": "Pending"})), &bound, Some("n1"));
        let runs = Life::Running {
            node: node(),
            since: START.parse().ok(),
        };
        check(&on(&running), &runs, Some("n1"));
        let mut deleted = on(&running);
        deleted["metadata"] = json!({
            "deletionTimestamp": "2026-08-01T10:01:30Z", "deletionGracePeriodSeconds": 30
        });
        let leaving = Life::Deleting {
            node: Some(node()),
            ran: Some(Duration::from_secs(60)),
            gone: "2026-08-01T10:01:30Z".parse().unwrap(),
        };
        check(&deleted, &leaving, Some("n1"));
    }

    #[test]
    fn pods_that_have_ended_hold_nothing() {
        let containers = json!([
            {"state": {"terminated": {"finishedAt": "2026-08-01T10:05:00Z"}}},
            {"state": {"terminated": {"finishedAt": "2026-08-01T10:04:00Z"}}}
        ]);
        let ended = |succeeded, ran: Option<u64>| Life::Ended {
            succeeded,
            ran: ran.map(Duration::from_secs),
        };
        let status = json!({
            "phase": "Succeeded", "startTime": START, "containerStatuses": containers
        });
        let pod = json!({"spec": {"nodeName": "n1"}, "status": status});
        check(&pod, &ended(true, Some(300)), None);
        let evicted = json!({
            "metadata": {"deletionTimestamp": START}, "spec": {"nodeName": "n1"},
            "status": {"phase": "Failed", "reason": "Evicted"}
        });
        check(&evicted, &ended(false, None), None);
    }
}
