//! The watches that keep the mirror of the page.

use std::collections::HashSet;

use k8s_openapi::api::core::v1;
use kube::{
    Api, Client, ResourceExt,
    core::{Object, PartialObjectMeta},
    runtime::watcher,
};
use nvlink_runtime::{
    supervise::{Supervisor, Weight},
    topology,
    watch::{self, Key},
};
use nvlink_topology::{NodeTopologySpec, labels};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

use super::{
    mirror::{Mirror, Pod},
    node::{Marks, Status},
};

/// A part of an object that is parsed alone: one malformed object among a thousand must
/// not stop the others.
#[derive(Clone, Debug)]
struct Lenient<T>(Result<T, String>);

impl<T: Default> Default for Lenient<T> {
    fn default() -> Self {
        Self(Ok(T::default()))
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let parsed = serde_path_to_error::deserialize(value);
        Ok(Self(parsed.map_err(|error| error.to_string())))
    }
}

/// The spec of a NodeTopology, parsed alone, and the marks in it.
#[derive(Clone, Debug)]
struct Spec {
    spec: Result<NodeTopologySpec, String>,
    marks: Marks,
}

impl<'de> Deserialize<'de> for Spec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let marks = Marks::deserialize(&value).unwrap_or_default();
        let spec = serde_path_to_error::deserialize(value);
        let spec = spec.map_err(|error| format!("spec.{error}"));
        Ok(Self { spec, marks })
    }
}

struct Topologies(Mirror);

impl watch::Mirror for Topologies {
    type Object = Object<Spec, Lenient<Status>>;
    const KIND: &'static str = "NodeTopology";
    const UNKNOWN: &'static str = ": install the CRDs of `nvlink-webhook crds`";

    fn set(&mut self, object: Self::Object) {
        let name = object.name_any();
        let Spec { spec, marks } = object.spec;
        let status = object.status.map(|status| status.0).transpose();
        let status = status.map_err(|error| format!("status.{error}"));
        let allocations = status.map(|status| status.unwrap_or_default().allocations);
        self.0.set_node(
            &name,
            spec.as_ref().map_err(Clone::clone),
            marks,
            allocations,
        );
    }

    fn remove(&mut self, (_, name): &Key) {
        self.0.remove_node(name);
    }

    fn retain(&mut self, keys: &HashSet<Key>) {
        self.0
            .all_nodes(|name| keys.contains(&(String::new(), name.to_owned())));
    }

    fn follows(&mut self, follows: bool) {
        self.0.nodes_follow(follows);
    }
}

struct Pods(Mirror);

impl watch::Mirror for Pods {
    type Object = PartialObjectMeta<v1::Pod>;
    const KIND: &'static str = "Pod";
    const UNKNOWN: &'static str = "";
    const FORBIDDEN: &'static str = ", so the page shows no classes and projects";

    fn set(&mut self, object: Self::Object) {
        let name = (object.namespace().unwrap_or_default(), object.name_any());
        self.0.set_pod(name, pod(&object));
    }

    fn remove(&mut self, key: &Key) {
        self.0.remove_pod(key);
    }

    fn retain(&mut self, keys: &HashSet<Key>) {
        self.0.all_pods(|name| keys.contains(name));
    }

    fn follows(&mut self, follows: bool) {
        self.0.pods_follow(follows);
    }
}

/// Returns what the webhook wrote into a pod.
fn pod(object: &PartialObjectMeta<v1::Pod>) -> Pod {
    #[derive(Deserialize)]
    struct Decision {
        pattern: String,
    }
    let label = |key: &str| object.labels().get(key).cloned();
    let decision = object.annotations().get(labels::DECISION);
    let decision = decision.and_then(|text| serde_json::from_str::<Decision>(text).ok());
    Pod {
        class: label(labels::CLASS),
        project: label(labels::PROJECT),
        pattern: decision.and_then(|decision| decision.pattern.parse().ok()),
    }
}

/// Starts the watches.
pub fn start(client: &Client, mirror: &Mirror, supervisor: &Supervisor) {
    let topologies = Api::all_with(client.clone(), &topology::resource());
    let of_topologies = mirror.clone();
    supervisor.keep("the page's watch of topologies", Weight::Minor, move || {
        // A NodeTopology has 20 KiB.
        let config = watcher::Config::default().page_size(100);
        watch::follow(
            topologies.clone(),
            config,
            Topologies(of_topologies.clone()),
        )
    });
    let pods = Api::all(client.clone());
    let of_pods = mirror.clone();
    supervisor.keep("the page's watch of pods", Weight::Minor, move || {
        // Other pods have nothing that the page shows.
        let config = watcher::Config::default()
            .labels(labels::CLASS)
            .page_size(100);
        watch::follow(pods.clone(), config, Pods(of_pods.clone()))
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(mirror: &Mirror, object: Value) {
        let object = serde_json::from_value(object).unwrap();
        watch::Mirror::set(&mut Topologies(mirror.clone()), object);
    }

    #[test]
    fn a_malformed_topology_is_shown_with_its_reason() {
        let mirror = Mirror::default();
        let object = |spec: Value, status: Value| {
            json!({
                "apiVersion": nvlink_topology::API_VERSION, "kind": nvlink_topology::KIND,
                "metadata": {"name": "a"}, "spec": spec, "status": status,
            })
        };
        let spec = json!({"source": {"kind": "nvml"}, "gpus": [{"index": 0}]});
        let reason = || match &**mirror.state().nodes.get("a").unwrap() {
            Ok(node) => format!("{:?}", node.allocations.as_ref().map(Vec::len)),
            Err(reason) => reason.clone(),
        };
        set(&mirror, object(spec.clone(), json!({})));
        assert_eq!(reason(), "None", "an empty status says nothing");
        set(&mirror, object(spec.clone(), json!({"allocations": []})));
        assert_eq!(reason(), "Some(0)");
        set(&mirror, object(json!({"gpus": 7}), json!({})));
        assert!(
            reason().starts_with("spec.gpus: invalid type"),
            "{}",
            reason()
        );
        set(&mirror, object(spec.clone(), json!({"allocations": [1]})));
        assert!(reason().starts_with("status.allocations"), "{}", reason());
    }

    #[test]
    fn marks_of_broken_gpus_are_read_where_they_exist() {
        let object = |spec: Value| {
            json!({
                "apiVersion": nvlink_topology::API_VERSION, "kind": nvlink_topology::KIND,
                "metadata": {"name": "a"}, "spec": spec,
            })
        };
        let broken = |spec: Value| {
            let mirror = Mirror::default();
            set(&mirror, object(spec));
            match &**mirror.state().nodes.get("a").unwrap() {
                Ok(node) => format!("{:?} {}", node.gpus[0].broken(), node.lost.len()),
                Err(reason) => reason.clone(),
            }
        };
        let marked = json!({
            "source": {"kind": "nvml"}, "gpus": [{"index": 0, "faults": ["xid-74"]}, {"index": 1}],
            "lost": [{"index": 2, "uuid": "GPU-2"}],
        });
        assert_eq!(broken(marked), "[\"xid-74\"] 1");
        let odd = json!({"source": {"kind": "nvml"}, "gpus": [{"index": 0}], "lost": 7});
        assert_eq!(
            broken(odd),
            "spec.lost: invalid type: integer `7`, expected a sequence"
        );
    }

    #[test]
    fn a_pod_has_what_the_webhook_wrote() {
        let object = |annotation: &str| {
            let object = json!({"metadata": {
                "name": "p", "namespace": "n",
                "labels": {labels::CLASS: "high", labels::PROJECT: "gitlab.42"},
                "annotations": {labels::DECISION: annotation},
            }});
            pod(&serde_json::from_value(object).unwrap())
        };
        let full = object(r#"{"class": "high", "pattern": "tp=4,pp=2"}"#);
        assert_eq!(full.class.as_deref(), Some("high"));
        assert_eq!(full.project.as_deref(), Some("gitlab.42"));
        assert_eq!(full.pattern, "tp=4,pp=2".parse().ok());
        assert_eq!(object("{").pattern, None);
    }
}
