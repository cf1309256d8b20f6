//! What became of a plan: the GPUs that the queue chose for a pod, and those that it got. Pure.
//!
//! A pod keeps its GPUs for its whole life, so they are compared once, when the exporter of its
//! node first reports them. The pod's condition [`labels::PLACED`] has the result: a later leader
//! reads it, and neither counts the pod again nor says the same twice.

use std::fmt;

use nvlink_api::{crd::domain_class::Mapping, pod};
use nvlink_planner::Millis;
use nvlink_runtime::words::gpus;
use nvlink_topology::labels;
use serde_json::{Value, json};

use super::{Placement, words};

/// Costs whose ratio differs from 1 by less are the same.
const SAME: f64 = 1e-9;

/// What became of the plan of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It has the planned GPUs.
    AsPlanned,
    /// It has other GPUs of the planned node, which are as fast.
    Equivalent,
    /// It has other GPUs of the planned node, which are slower, or nobody knows how fast they are.
    OtherGpus,
    /// It is on another node.
    OtherNode,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::AsPlanned,
        Self::Equivalent,
        Self::OtherGpus,
        Self::OtherNode,
    ];

    /// Returns the word used in label values.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::AsPlanned => "as-planned",
            Self::Equivalent => "equivalent",
            Self::OtherGpus => "other-gpus",
            Self::OtherNode => "other-node",
        }
    }

    /// Returns the reason of the condition.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::AsPlanned => "AsPlanned",
            Self::Equivalent => "Equivalent",
            Self::OtherGpus => "OtherGpus",
            Self::OtherNode => "OtherNode",
        }
    }

    /// Returns what a leader wrote into the condition of `pod`.
    #[must_use]
    pub fn told(pod: &Value) -> Option<Self> {
        let reason = condition(pod)?.get("reason")?.as_str()?;
        Self::ALL.into_iter().find(|one| one.word() == reason)
    }
}

/// Returns the text of the condition of `pod`.
#[must_use]
pub fn message(pod: &Value) -> Option<&str> {
    condition(pod)?.get("message")?.as_str()
}

fn condition(pod: &Value) -> Option<&Value> {
    let mut conditions = pod::list(pod, &["status", "conditions"]);
    conditions.find(|one| one.get("type").and_then(Value::as_str) == Some(labels::PLACED))
}

/// GPUs of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpus {
    /// The node.
    pub node: String,
    /// Their indices, ascending; empty if they are not known.
    pub indices: Vec<u32>,
}

impl Gpus {
    fn new(node: &str, indices: &[u32]) -> Self {
        let mut indices = indices.to_vec();
        indices.sort_unstable();
        indices.dedup();
        Self {
            node: node.to_owned(),
            indices,
        }
    }
}

impl fmt::Display for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = &self.node;
        match self.indices.len() {
            0 => write!(f, "node {node}"),
            _ => write!(f, "{} of node {node}", gpus(&self.indices)),
        }
    }
}

/// Where a pod is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// The node to which it is bound.
    pub node: &'a str,
    /// The indices of the GPUs that the node's exporter reports for it; empty while it reports none.
    pub gpus: Vec<u32>,
    /// Indices of planned GPUs that the same report gives to other pods.
    pub taken: Vec<u32>,
    /// The other pods of its gang, if NCCL takes all of them for one host: they reach each other over the
    /// links of this node.
    pub mates: Vec<Mate>,
}

/// Another pod of a gang on the same node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mate {
    /// The indices of the GPUs that the queue chose.
    pub planned: Vec<u32>,
    /// The indices of the GPUs that the node's exporter reports for it; empty while it reports none.
    pub actual: Vec<u32>,
}

/// The plan of a pod compared with what it got.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// What became of the plan.
    pub outcome: Outcome,
    /// The GPUs that the queue chose.
    pub planned: Gpus,
    /// The GPUs that it has.
    pub actual: Gpus,
    /// Time of the communication over that with the planned GPUs, each set in its best order: no
    /// report has the order. Above 1 is slower; `None` if it is not known. Of a gang of one host, it is
    /// that between the GPUs of all of its pods. Of another gang, it is that of the slowest GPU of all
    /// if the other pods have what was planned: the network between pods may be slower than any path
    /// inside one.
    pub slowdown: Option<f64>,
    /// Best possible cost on empty nodes of the class over the cost on its GPUs, in (0, 1]; `None`
    /// if it is not known.
    pub quality: Option<f64>,
    /// What chose the GPUs.
    pub mapping: Mapping,
    /// Planned GPUs that other pods have.
    taken: Vec<u32>,
    /// The slowdown is that of a whole gang.
    gang: bool,
}

impl Compared {
    /// Compares `plan` with what was found. `cost` returns the cost of GPUs of a node in their best
    /// order, seconds per byte of payload. Returns `None` while the GPUs are not known, and for a
    /// plan that names none: the scheduler was to choose.
    #[must_use]
    pub fn new(
        plan: &Placement,
        mapping: Mapping,
        found: &Found<'_>,
        cost: impl Fn(&str, &[u32]) -> Option<f64>,
    ) -> Option<Self> {
        let planned = Gpus::new(plan.node.as_deref()?, &plan.gpus);
        let actual = Gpus::new(found.node, &found.gpus);
        let here = planned.node == actual.node;
        let [wanted, got] = [&planned, &actual].map(|one| one.indices.len());
        if wanted == 0 || here && got < wanted {
            return None;
        }
        let unreported = |mate: &Mate| mate.actual.len() < mate.planned.len();
        if here && found.mates.iter().any(unreported) {
            return None;
        }
        let gang = plan.is_of_gang();
        let slowdown = match planned == actual && found.mates.is_empty() {
            true => Some(1.0),
            // On another node, a pod of a gang reaches the others another way.
            false if wanted == got && (here || !gang) => slowdown(plan, found, cost),
            false => None,
        };
        let outcome = match slowdown {
            _ if !here => Outcome::OtherNode,
            _ if planned == actual => Outcome::AsPlanned,
            Some(slowdown) if slowdown <= 1.0 + SAME => Outcome::Equivalent,
            _ => Outcome::OtherGpus,
        };
        let possible = plan.quality.clamp(0.0, 1.0);
        Some(Self {
            outcome,
            slowdown,
            // A pod that has what was planned is not what is wrong with its gang.
            quality: match outcome {
                Outcome::AsPlanned => Some(possible),
                _ => slowdown.map(|slowdown| (possible / slowdown).min(1.0)),
            },
            mapping,
            taken: found.taken.clone(),
            gang,
            planned,
            actual,
        })
    }

    /// Returns the reason and the type of the Event; `None` if there is nothing to say.
    #[must_use]
    pub fn event(&self) -> Option<(&'static str, &'static str)> {
        match self.outcome {
            Outcome::AsPlanned => None,
            Outcome::Equivalent => Some(("PlacedOnOtherGpus", "Normal")),
            Outcome::OtherGpus => Some(("PlacedOnOtherGpus", "Warning")),
            Outcome::OtherNode => Some(("PlacedOnOtherNode", "Warning")),
        }
    }

    /// Returns the text of the condition and of the Event.
    #[must_use]
    pub fn message(&self) -> String {
        let (planned, actual) = (&self.planned, &self.actual);
        if self.outcome == Outcome::AsPlanned {
            return format!("the pod has {actual}, as planned");
        }
        let has = match actual.indices[..] {
            [] => "is on",
            _ => "has",
        };
        let planned = match self.outcome {
            Outcome::OtherNode => planned.to_string(),
            _ => gpus(&planned.indices),
        };
        let (speed, why) = (self.speed(), self.why());
        format!("the pod {has} {actual}, and the queue had planned {planned}: {speed}; {why}")
    }

    fn speed(&self) -> String {
        let whose = if self.gang { "its gang's" } else { "its" };
        match self.slowdown {
            None => "how much slower it communicates is not known".to_owned(),
            Some(times) if times <= 1.0 + SAME => {
                format!("{whose} communication takes no longer")
            }
            Some(times) if times < 1.995 => {
                let percent = ((times - 1.0) * 100.0).round().max(1.0);
                format!("{whose} communication takes {percent:.0} % longer")
            }
            Some(times) => format!("{whose} communication takes {times:.1} times as long"),
        }
    }

    /// Returns why the pod has others, as far as that is known.
    fn why(&self) -> String {
        if self.outcome == Outcome::OtherNode {
            return "the scheduler, or somebody else, bound it there".to_owned();
        }
        let taken = match self.taken[..] {
            [] => None,
            _ => Some(format!("other pods have {} of the plan", gpus(&self.taken))),
        };
        match (self.mapping, taken) {
            (Mapping::DevicePlugin, taken) => {
                let taken = taken.map(|taken| format!("{taken}, and "));
                format!(
                    "{}with devices.mapping DevicePlugin the node's device plugin chooses the GPUs; Claim holds to the plan, and Preferred gives the best that is free",
                    taken.unwrap_or_default()
                )
            }
            (_, Some(taken)) => taken,
            (Mapping::Preferred, None) => {
                "other pods had planned GPUs when it started, a larger init container had GPUs that the kubelet passed on, the node's graph was unknown or old, or the kubelet's Topology Manager chose".to_owned()
            }
            (Mapping::Claim, None) => {
                "its claim names other GPUs than the plan".to_owned()
            }
        }
    }

    /// Returns the strategic merge patch of the pod's status, which fails if the pod is another
    /// one, or of another version than `version`: another leader may have written the same.
    #[must_use]
    pub fn patch(&self, uid: &str, version: u64, now: Millis) -> Value {
        let status = match self.outcome {
            Outcome::AsPlanned => "True",
            _ => "False",
        };
        json!({
            "metadata": {"uid": uid, "resourceVersion": version.to_string()},
            "status": {"conditions": [{
                "type": labels::PLACED, "status": status, "reason": self.outcome.word(),
                "message": self.message(), "lastTransitionTime": words::stamp(now),
            }]},
        })
    }
}

/// Returns how much longer the communication of `plan` takes on the GPUs that were `found`.
fn slowdown(
    plan: &Placement,
    found: &Found<'_>,
    cost: impl Fn(&str, &[u32]) -> Option<f64>,
) -> Option<f64> {
    // The traffic between pods that are no host together takes as long as before.
    let least = match plan.is_of_gang() && found.mates.is_empty() {
        true => plan.cost,
        false => 0.0,
    };
    let mates = || found.mates.iter();
    let planned = mates().flat_map(|mate| &mate.planned).chain(&plan.gpus);
    let actual = mates().flat_map(|mate| &mate.actual).chain(&found.gpus);
    let planned = Gpus::new(plan.node.as_deref()?, &planned.copied().collect::<Vec<_>>());
    let actual = Gpus::new(found.node, &actual.copied().collect::<Vec<_>>());
    let cost = |one: &Gpus| Some(cost(&one.node, &one.indices)?.max(least));
    ratio(cost(&planned)?, cost(&actual)?)
}

/// Returns `actual` over `planned`; `None` if nothing is to be sent in only one of them.
fn ratio(planned: f64, actual: f64) -> Option<f64> {
    match (planned > 0.0, actual > 0.0) {
        (true, true) => Some(actual / planned),
        (false, false) => Some(1.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the plan of GPUs 0 and 1 of node n1.
    fn plan() -> Placement {
        let plan = json!({
            "plan": "1-1", "at": "2026-08-01T10:00:00Z", "node": "n1", "gpus": [1, 0],
            "quality": 0.8,
            "gang": "", "cost": 1e-8,
        });
        serde_json::from_value(plan).unwrap()
    }

    /// Pairs of GPUs are bridged; without a bridge, communication takes three times as long.
    fn cost(node: &str, gpus: &[u32]) -> Option<f64> {
        let bridged = gpus[0] / 2 == gpus[1] / 2;
        (node != "dark").then_some(if bridged { 1e-11 } else { 3e-11 })
    }

    fn compared(mapping: Mapping, node: &str, gpus: &[u32], taken: &[u32]) -> Option<Compared> {
        let found = Found {
            node,
            gpus: gpus.to_vec(),
            taken: taken.to_vec(),
            mates: vec![],
        };
        Compared::new(&plan(), mapping, &found, cost)
    }

    #[track_caller]
    fn check(compared: &Compared, outcome: Outcome, quality: Option<f64>, message: &str) {
        assert_eq!(compared.outcome, outcome);
        let near = match (compared.quality, quality) {
            (Some(is), Some(wanted)) => (is - wanted).abs() < 1e-9,
            (is, wanted) => is == wanted,
        };
        assert!(near, "{:?}", compared.quality);
        assert_eq!(compared.message(), message);
    }

    #[test]
    fn each_outcome_in_words() {
        let plugin = |gpus: &[u32]| compared(Mapping::DevicePlugin, "n1", gpus, &[]).unwrap();
        check(
            &plugin(&[0, 1]),
            Outcome::AsPlanned,
            Some(0.8),
            "the pod has GPUs 0,1 of node n1, as planned",
        );
        check(
            &plugin(&[2, 3]),
            Outcome::Equivalent,
            Some(0.8),
            "the pod has GPUs 2,3 of node n1, and the queue had planned GPUs 0,1: its communication takes no longer; with devices.mapping DevicePlugin the node's device plugin chooses the GPUs; Claim holds to the plan, and Preferred gives the best that is free",
        );
        check(
            &plugin(&[3, 1]),
            Outcome::OtherGpus,
            Some(0.8 / 3.0),
            "the pod has GPUs 1,3 of node n1, and the queue had planned GPUs 0,1: its communication takes 3.0 times as long; with devices.mapping DevicePlugin the node's device plugin chooses the GPUs; Claim holds to the plan, and Preferred gives the best that is free",
        );
        let preferred = |taken: &[u32]| compared(Mapping::Preferred, "n1", &[1, 2], taken);
        check(
            &preferred(&[0]).unwrap(),
            Outcome::OtherGpus,
            Some(0.8 / 3.0),
            "the pod has GPUs 1,2 of node n1, and the queue had planned GPUs 0,1: its communication takes 3.0 times as long; other pods have GPU 0 of the plan",
        );
        check(
            &preferred(&[]).unwrap(),
            Outcome::OtherGpus,
            Some(0.8 / 3.0),
            "the pod has GPUs 1,2 of node n1, and the queue had planned GPUs 0,1: its communication takes 3.0 times as long; other pods had planned GPUs when it started, a larger init container had GPUs that the kubelet passed on, the node's graph was unknown or old, or the kubelet's Topology Manager chose",
        );
        check(
            &compared(Mapping::Claim, "dark", &[0, 1], &[]).unwrap(),
            Outcome::OtherNode,
            None,
            "the pod has GPUs 0,1 of node dark, and the queue had planned GPUs 0,1 of node n1: how much slower it communicates is not known; the scheduler, or somebody else, bound it there",
        );
        check(
            &compared(Mapping::Claim, "n2", &[], &[]).unwrap(),
            Outcome::OtherNode,
            None,
            "the pod is on node n2, and the queue had planned GPUs 0,1 of node n1: how much slower it communicates is not known; the scheduler, or somebody else, bound it there",
        );
    }

    #[test]
    fn what_is_not_known_is_not_compared() {
        let plugin = |gpus: &[u32]| compared(Mapping::DevicePlugin, "n1", gpus, &[]);
        assert_eq!(plugin(&[]), None, "no report");
        assert_eq!(plugin(&[0]), None, "a report of a part");
        let found = Found {
            node: "n1",
            gpus: vec![0, 1],
            taken: vec![],
            mates: vec![],
        };
        let spread = Placement {
            gpus: vec![],
            ..plan()
        };
        let compared = Compared::new(&spread, Mapping::DevicePlugin, &found, cost);
        assert_eq!(compared, None, "the plan names no GPUs");
    }

    #[test]
    fn a_later_leader_reads_what_was_told() {
        let mut pod = json!({"metadata": {"uid": "7"}, "status": {"conditions": [
            {"type": "PodScheduled", "status": "True", "reason": "OtherGpus"},
        ]}});
        assert_eq!(Outcome::told(&pod), None);
        let other = compared(Mapping::DevicePlugin, "n1", &[0, 2], &[]).unwrap();
        let patch = other.patch("7", 12, 1_785_592_400_000);
        assert_eq!(
            patch["metadata"],
            json!({"uid": "7", "resourceVersion": "12"})
        );
        let condition = &patch["status"]["conditions"][0];
        assert_eq!(condition["status"], "False");
        assert_eq!(condition["lastTransitionTime"], "2026-08-01T13:53:20Z");
        let conditions = pod["status"]["conditions"].as_array_mut().unwrap();
        conditions.push(condition.clone());
        assert_eq!(Outcome::told(&pod), Some(Outcome::OtherGpus));
    }
}
