//! A pod as the mirror keeps it: what the webhook wrote into it, and where it is bound.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use nvlink_topology::{Pattern, Scope, labels};
use serde::Deserialize;
use serde_json::Value;

use nvlink_api::{class::GPU, pod};

use crate::kinds::PodObject;

/// A pod of a class, or one that requests devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Distinguishes it from others with the same name.
    pub uid: Option<String>,
    pub class: Option<String>,
    pub project: Option<String>,
    /// The communication pattern of its job.
    pub pattern: Option<Pattern>,
    /// How close its GPUs must be.
    pub scope: Option<Scope>,
    /// Number of whole GPUs that it requests, if its containers are known.
    pub gpus: u32,
    /// Where it is bound or has ended, if its spec is known.
    pub stage: Stage,
    /// What it shows while it waits in the queue.
    pub queued: Option<Box<Queued>>,
}

/// The longest reason that is kept, characters.
const LONGEST: usize = 400;

/// What a pod shows while it waits in the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queued {
    /// Why: a word, a colon and a sentence.
    pub reason: String,
    /// Its position in its class, from 1.
    pub position: Option<u32>,
    /// When it is expected to start.
    pub eta: Option<Timestamp>,
    /// When it was created.
    pub since: Option<Timestamp>,
    /// The UID of its controller.
    pub owner: Option<String>,
}

/// How far a pod has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Not bound to a node, or only its metadata are known.
    #[default]
    Unbound,
    /// Bound to this node.
    Bound(String),
    /// Succeeded or failed: it holds no device any more.
    Ended,
}

/// The part of the annotation `decision` that is read.
#[derive(Deserialize)]
struct Decision {
    pattern: Option<String>,
    scope: Option<String>,
    gpus: Option<u32>,
}

impl Pod {
    /// Returns what the webhook wrote into the pod.
    #[must_use]
    pub fn of_metadata(metadata: &ObjectMeta) -> Self {
        let label = |key: &str| metadata.labels.as_ref()?.get(key).cloned();
        let annotation = |key: &str| metadata.annotations.as_ref()?.get(key);
        let class = label(labels::CLASS);
        let decision = annotation(labels::DECISION).filter(|_| class.is_some());
        let decision = decision.and_then(|text| serde_json::from_str::<Decision>(text).ok());
        let word = |of: fn(&Decision) -> &Option<String>| of(decision.as_ref()?).as_deref();
        Self {
            uid: metadata.uid.clone(),
            project: label(labels::PROJECT),
            pattern: word(|one| &one.pattern).and_then(|word| word.parse().ok()),
            scope: word(|one| &one.scope).and_then(|word| word.parse().ok()),
            gpus: decision.as_ref().and_then(|one| one.gpus).unwrap_or(0),
            class,
            stage: Stage::Unbound,
            queued: Queued::of(metadata).map(Box::new),
        }
    }

    /// Returns the pod; `None` if all of it is known, it has no class, and it requests no device.
    #[must_use]
    pub fn of(object: &PodObject) -> Option<Self> {
        let this = Self::of_metadata(&object.metadata);
        let Some(document) = &object.document else {
            return Some(this);
        };
        if this.class.is_none() && !pod::has_devices(document) {
            return None;
        }
        let text = |path: &[&str]| pod::at(document, path).and_then(Value::as_str);
        let node = text(&["spec", "nodeName"]).filter(|node| !node.is_empty());
        Some(Self {
            gpus: match this.gpus {
                0 => pod::request(&pod::containers(document), GPU).unwrap_or(0),
                // Of the resource of its class.
                gpus => gpus,
            },
            stage: match (text(&["status", "phase"]), node) {
                (Some("Succeeded" | "Failed"), _) => Stage::Ended,
                (_, Some(node)) => Stage::Bound(node.to_owned()),
                (_, None) => Stage::Unbound,
            },
            ..this
        })
    }

    /// Returns what it shows while it waits in the queue; `None` if it shows nothing.
    #[must_use]
    pub fn waits(&self) -> Option<&Queued> {
        self.queued
            .as_deref()
            .filter(|_| self.class.is_some() && self.stage == Stage::Unbound)
    }

    /// Returns the node that it is bound to, unless it has ended.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        match &self.stage {
            Stage::Bound(node) => Some(node),
            Stage::Unbound | Stage::Ended => None,
        }
    }
}

impl Queued {
    fn of(metadata: &ObjectMeta) -> Option<Self> {
        let annotation = |key: &str| metadata.annotations.as_ref()?.get(key);
        let reason = annotation(labels::QUEUE_REASON)?;
        // The API server's clock may have been set since it stamped the pod.
        let since = annotation(labels::QUEUE_SINCE).and_then(|text| text.parse().ok());
        let mut owners = metadata.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true));
        Some(Self {
            reason: reason.chars().take(LONGEST).collect(),
            position: annotation(labels::QUEUE_POSITION).and_then(|text| text.parse().ok()),
            eta: annotation(labels::QUEUE_ETA).and_then(|text| text.parse().ok()),
            since: since.or(metadata.creation_timestamp.as_ref().map(|time| time.0)),
            owner: owner.map(|owner| owner.uid.clone()),
        })
    }

    /// Returns the reason as a word.
    #[must_use]
    pub fn word(&self) -> &str {
        self.reason.split_once(": ").map_or("", |(word, _)| word)
    }

    /// Returns the reason as a sentence.
    #[must_use]
    pub fn sentence(&self) -> &str {
        self.reason
            .split_once(": ")
            .map_or(&self.reason, |(_, sentence)| sentence)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metadata(labels: Value, decision: &str) -> ObjectMeta {
        serde_json::from_value(json!({
            "name": "p", "namespace": "n", "uid": "u", "labels": labels,
            "annotations": {labels::DECISION: decision},
        }))
        .unwrap()
    }

    #[test]
    fn a_pod_has_what_the_webhook_wrote() {
        let object = |decision: &str| {
            let labels = json!({labels::CLASS: "high", labels::PROJECT: "gitlab.42"});
            Pod::of_metadata(&metadata(labels, decision))
        };
        let full = object(
            r#"{"class": "high", "pattern": "tp=4,pp=2", "scope": "nvlink-domain", "gpus": 8}"#,
        );
        assert_eq!(full.class.as_deref(), Some("high"));
        assert_eq!(full.project.as_deref(), Some("gitlab.42"));
        assert_eq!(full.pattern, "tp=4,pp=2".parse().ok());
        assert_eq!((full.scope, full.gpus), (Some(Scope::NvlinkDomain), 8));
        for odd in ["{", r#"{"pattern": "?", "scope": "universe"}"#] {
            let odd = object(odd);
            assert_eq!((odd.pattern, odd.scope, odd.gpus), (None, None, 0));
        }
        let forged = Pod::of_metadata(&metadata(json!({}), r#"{"gpus": 8}"#));
        assert_eq!(forged.gpus, 0, "only the webhook's decision counts");
    }

    #[test]
    fn a_pod_shows_that_it_waits_until_it_is_bound() {
        let metadata = json!({
            "name": "p", "namespace": "n", "creationTimestamp": "2026-08-01T10:00:00Z",
            "labels": {labels::CLASS: "high"},
            "annotations": {
                labels::QUEUE_REASON: "Insufficient: it needs 8 GPUs: none is free",
                labels::QUEUE_POSITION: "3", labels::QUEUE_ETA: "soon",
            },
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Job", "name": "j", "uid": "7", "controller": true},
            ],
        });
        let metadata: ObjectMeta = serde_json::from_value(metadata).unwrap();
        let pod = Pod::of_metadata(&metadata);
        let shown = pod.waits().unwrap();
        assert_eq!((shown.word(), shown.position), ("Insufficient", Some(3)));
        assert_eq!(shown.sentence(), "it needs 8 GPUs: none is free");
        assert_eq!((shown.eta, shown.owner.as_deref()), (None, Some("7")));
        assert!(shown.since.is_some());
        let document = json!({"spec": {"nodeName": "a"}, "status": {"phase": "Pending"}});
        let document = Some(document);
        let bound = Pod::of(&PodObject { metadata, document }).unwrap();
        assert_eq!(bound.waits(), None);
    }

    #[test]
    fn pods_with_devices_are_kept_with_their_node() {
        let pod = |spec: Value, phase: &str| {
            let metadata = metadata(json!({}), "{}");
            let document = Some(json!({"spec": spec, "status": {"phase": phase}}));
            let pod = Pod::of(&PodObject { metadata, document })?;
            Some((pod.gpus, pod.stage))
        };
        let limits = |name: &str| {
            let container = json!({"name": "c", "resources": {"limits": {name: "2"}}});
            json!({"nodeName": "a", "containers": [container]})
        };
        let bound = || Stage::Bound("a".to_owned());
        assert_eq!(pod(limits("cpu"), "Running"), None);
        assert_eq!(pod(limits("nvidia.com/gpu"), "Running"), Some((2, bound())));
        assert_eq!(
            pod(limits("nvidia.com/gpu"), "Failed"),
            Some((2, Stage::Ended))
        );
        assert_eq!(pod(limits("volcano.sh/vgpu"), ""), Some((0, bound())));
        let claims = json!({"resourceClaims": [{"name": "gpu"}], "containers": [{"name": "c"}]});
        assert_eq!(pod(claims, "Pending"), Some((0, Stage::Unbound)));
        assert_eq!(pod(json!(7), "Running"), None);
    }
}
