//! The watches that keep the mirror.

use std::{collections::HashSet, fmt::Debug, marker::PhantomData};

use k8s_openapi::api::core::v1;
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{ApiResource, Object, PartialObjectMeta},
    runtime::watcher,
};
use nvlink_api::node_topology;
use nvlink_runtime::{
    supervise::{Supervisor, Weight},
    watch::{self, Key},
};
use nvlink_topology::{NodeTopologySpec, labels};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

use super::{
    Kept, Mirror,
    node::{Marks, Status},
    pod::Pod,
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

/// Sets a NodeTopology in `mirror`, as its watch does.
///
/// # Errors
/// When the object has no metadata of an object.
pub fn set_topology(mirror: &Mirror, object: Value) -> Result<(), serde_json::Error> {
    let object = serde_json::from_value(object)?;
    watch::Mirror::set(&mut Topologies(mirror.clone()), object);
    Ok(())
}

/// Follows the topologies of all nodes, and tells of each change of a node after it: the node's
/// name, or `None` when all have been read.
pub async fn follow_topologies(
    client: &Client,
    mirror: Mirror,
    told: impl FnMut(Option<&str>) + Send,
) {
    let topologies = Api::all_with(client.clone(), &node_topology::resource());
    let config = watcher::Config::default().page_size(100);
    let inner = Topologies(mirror);
    watch::follow(topologies, config, Telling { inner, told }).await;
}

/// Tells of the changes of topologies.
struct Telling<F> {
    inner: Topologies,
    told: F,
}

impl<F: FnMut(Option<&str>) + Send> watch::Mirror for Telling<F> {
    type Object = <Topologies as watch::Mirror>::Object;
    const KIND: &'static str = Topologies::KIND;
    const UNKNOWN: &'static str = Topologies::UNKNOWN;

    fn set(&mut self, object: Self::Object) {
        let name = object.name_any();
        self.inner.set(object);
        (self.told)(Some(&name));
    }

    fn remove(&mut self, key: &Key) {
        self.inner.remove(key);
        (self.told)(Some(&key.1));
    }

    fn retain(&mut self, keys: &HashSet<Key>) {
        let before: Vec<String> = self.inner.0.read().nodes.keys().cloned().collect();
        self.inner.retain(keys);
        let gone = |name: &&String| !keys.contains(&(String::new(), (*name).clone()));
        before
            .iter()
            .filter(gone)
            .for_each(|name| (self.told)(Some(name)));
        (self.told)(None);
    }

    fn follows(&mut self, follows: bool) {
        self.inner.follows(follows);
    }
}

/// Applies the events of a watch of pods, of which `O` is what is read.
struct Pods<O>(Mirror, PhantomData<fn() -> O>);

/// What is read of a pod.
trait Read: Resource + Clone + Debug + DeserializeOwned + Send + 'static {
    const FORBIDDEN: &'static str;

    /// Returns the pod; `None` if the mirror does not keep it.
    fn pod(self) -> Option<Pod>;
}

impl Read for PartialObjectMeta<v1::Pod> {
    const FORBIDDEN: &'static str = ", so the page shows no classes and projects";

    fn pod(self) -> Option<Pod> {
        Some(Pod::of_metadata(self.meta()))
    }
}

/// The part of a pod's status that is read.
#[derive(Clone, Debug, Default, Deserialize)]
struct Phase {
    #[serde(default)]
    phase: String,
}

impl Read for Object<Value, Phase> {
    const FORBIDDEN: &'static str =
        ", so it is not known which pods are bound, and the page shows no classes and projects";

    fn pod(self) -> Option<Pod> {
        let phase = self.status.unwrap_or_default().phase;
        Pod::of_object(&self.metadata, self.spec, &phase)
    }
}

impl<O: Read> watch::Mirror for Pods<O> {
    type Object = O;
    const KIND: &'static str = "Pod";
    const UNKNOWN: &'static str = "";
    const FORBIDDEN: &'static str = O::FORBIDDEN;

    fn set(&mut self, object: O) {
        let name = (object.namespace().unwrap_or_default(), object.name_any());
        match object.pod() {
            Some(pod) => self.0.set_pod(name, pod),
            None => self.0.remove_pod(&name),
        }
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

/// Starts the watches.
pub fn start(client: &Client, mirror: &Mirror, kept: Kept, supervisor: &Supervisor) {
    mirror.keep(kept);
    let topologies = Api::all_with(client.clone(), &node_topology::resource());
    let of_topologies = mirror.clone();
    supervisor.keep(
        "the mirror's watch of topologies",
        Weight::Minor,
        move || {
            // A NodeTopology has 20 KiB.
            let config = watcher::Config::default().page_size(100);
            let topologies = topologies.clone();
            watch::follow(topologies, config, Topologies(of_topologies.clone()))
        },
    );
    const PODS: &str = "the mirror's watch of pods";
    let (client, mirror) = (client.clone(), mirror.clone());
    let config = watcher::Config::default().page_size(100);
    match kept {
        Kept::OfClasses => supervisor.keep(PODS, Weight::Minor, move || {
            let config = config.clone().labels(labels::CLASS);
            let pods: Api<PartialObjectMeta<v1::Pod>> = Api::all(client.clone());
            watch::follow(pods, config, Pods(mirror.clone(), PhantomData))
        }),
        Kept::WithDevices => supervisor.keep(PODS, Weight::Minor, move || {
            let resource = ApiResource::erase::<v1::Pod>(&());
            let pods: Api<Object<Value, Phase>> = Api::all_with(client.clone(), &resource);
            watch::follow(pods, config.clone(), Pods(mirror.clone(), PhantomData))
        }),
    }
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
        assert!(broken(odd).starts_with("spec.lost: invalid type"));
    }

    #[test]
    fn pods_are_found_by_their_node_until_they_end() {
        let mirror = Mirror::default();
        let mut pods = Pods::<Object<Value, Phase>>(mirror.clone(), PhantomData);
        let mut set = |node: &str, phase: &str, resource: &str| {
            let object = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "n", "name": "p"},
                "spec": {
                    "nodeName": node,
                    "containers": [{"name": "c", "resources": {"limits": {resource: 4}}}],
                },
                "status": {"phase": phase},
            });
            watch::Mirror::set(&mut pods, serde_json::from_value(object).unwrap());
            let state = mirror.read();
            let on = |node: &str| {
                state
                    .bound(node)
                    .map(|(_, pod)| pod.gpus)
                    .collect::<Vec<_>>()
            };
            (on("a"), state.pods.len())
        };
        const GPU: &str = "nvidia.com/gpu";
        assert_eq!(set("", "Pending", GPU), (vec![], 1));
        assert_eq!(set("a", "Pending", GPU), (vec![4], 1));
        assert_eq!(set("a", "Succeeded", GPU), (vec![], 1));
        assert_eq!(set("a", "Running", GPU), (vec![4], 1));
        assert_eq!(
            set("a", "Running", "cpu"),
            (vec![], 0),
            "another pod of this name"
        );
        set("a", "Running", GPU);
        mirror.all_pods(|_| false);
        assert_eq!(mirror.read().bound("a").count(), 0);
    }
}
