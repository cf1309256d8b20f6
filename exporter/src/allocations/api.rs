//! Data of the Kubernetes API about the pods and devices of this node.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::{api::core::v1, apimachinery::pkg::apis::meta::v1::Time};
use kube::{
    Api, Client, ResourceExt,
    core::{ApiResource, Object},
    runtime::watcher,
};
use nvlink_collectives::{Inbox, follow::Message};
use nvlink_kubelet::slices::{DRIVER, Nothing, SliceObject, Slices};
use nvlink_runtime::watch::{self, Mirror};
use nvlink_topology::{Pattern, labels};
use serde::Deserialize;

use super::holdings::PodName;

/// Seconds of a watch. Longer than the default: there is an exporter on each node, and
/// a frozen connection only delays the pattern of a job.
const ROUND: u32 = 240;
/// How long the first look waits for the slices, and how often it checks.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

/// The current data. The watches write it, the collector reads it. Empty without an
/// API.
#[derive(Clone, Debug, Default)]
pub(super) struct Cluster(Arc<Mutex<Facts>>);

/// The data at one moment.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pods: HashMap<PodName, Pod>,
    pub(super) slices: Slices,
    /// All slices of the node have been read once.
    slices_read: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pod {
    uid: Option<String>,
    pattern: Option<Pattern>,
    class: Option<String>,
    project: Option<String>,
    gang: Option<String>,
    ready: bool,
    ended: bool,
}

impl Facts {
    /// Returns the pattern that the webhook chose.
    pub(super) fn pattern(&self, pod: &PodName) -> Option<Pattern> {
        self.pods.get(pod)?.pattern
    }

    /// Returns the class and the project that the webhook wrote into the pod's labels.
    pub(super) fn labels(&self, pod: &PodName) -> (Option<String>, Option<String>) {
        let pod = self.pods.get(pod);
        pod.map_or((None, None), |pod| (pod.class.clone(), pod.project.clone()))
    }

    /// Returns the gang that the webhook found the pod to belong to.
    pub(super) fn gang(&self, pod: &PodName) -> Option<String> {
        self.pods.get(pod)?.gang.clone()
    }

    /// Reports whether the pod is ready; `None` if the pod is not known.
    pub(super) fn is_ready(&self, pod: &PodName) -> Option<bool> {
        Some(self.pods.get(pod)?.ready)
    }

    /// Returns the UID, which distinguishes the pod from others of the same name.
    pub(super) fn uid(&self, pod: &PodName) -> Option<String> {
        self.pods.get(pod)?.uid.clone()
    }

    /// Reports whether the pod has ended and holds nothing, even if the kubelet still
    /// lists it.
    pub(super) fn has_ended(&self, pod: &PodName) -> bool {
        self.pods.get(pod).is_some_and(|pod| pod.ended)
    }

    /// Forgets the pods that have ended and that the kubelet does not list: whatever it lists under
    /// their names later is another pod, which the watch may not have shown yet.
    pub(super) fn forget_ended(&mut self, is_listed: impl Fn(&PodName) -> bool) {
        self.pods.retain(|name, pod| !pod.ended || is_listed(name));
    }
}

impl Cluster {
    pub(super) fn read(&self) -> MutexGuard<'_, Facts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the slices of the node have been read, but not for long: a cluster may have none.
    pub(super) async fn slices_are_read(&self) {
        let start = Instant::now();
        while !self.read().slices_read && start.elapsed() < PATIENCE {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Watches the pods of `node`. Never ends.
    pub(super) async fn watch_pods(self, client: Client, node: String, benchmarks: Benchmarks) {
        let api = Api::<PodObject>::all_with(client, &ApiResource::erase::<v1::Pod>(&()));
        let fields = format!("spec.nodeName={node}");
        let config = watcher::Config::default().fields(&fields).timeout(ROUND);
        let pods = Pods {
            cluster: self,
            benchmarks,
        };
        watch::follow(api, config, pods).await;
    }

    /// Watches the ResourceSlices of NVIDIA's DRA driver on `node`. Never ends.
    pub(super) async fn watch_slices(self, client: Client, node: String) {
        let api = Api::<SliceObject>::all_with(client, &nvlink_kubelet::slices::resource());
        let fields = format!("spec.nodeName={node},spec.driver={DRIVER}");
        let config = watcher::Config::default().fields(&fields).timeout(ROUND);
        watch::follow(api, config, SlicesOfNode(self)).await;
    }
}

/// Reports whether an API server accepts `text` as the value of a label. Nothing else becomes part
/// of a metric.
fn is_value(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let ends = [text.bytes().next(), text.bytes().last()];
    text.len() <= 63
        && text.bytes().all(inner)
        && ends.iter().flatten().all(u8::is_ascii_alphanumeric)
}

/// Reports whether `text` can be the name of a gang in a metric: such as `JobSet train/workers`.
fn is_gang(text: &str) -> bool {
    let inner = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    matches!(text.len(), 1..=200) && text.bytes().all(inner)
}

/// Whose termination messages are results of benchmarks: pods with the label
/// [`labels::BENCHMARK`] in the exporter's own namespace, where only administrators create
/// pods. Others could forge results.
pub(super) struct Benchmarks {
    pub(super) namespace: String,
    pub(super) inbox: Inbox,
}

struct Pods {
    cluster: Cluster,
    benchmarks: Benchmarks,
}

struct SlicesOfNode(Cluster);

/// The parts of a Pod that are read.
type PodObject = Object<Nothing, Status>;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    phase: Option<String>,
    #[serde(default)]
    container_statuses: Vec<ContainerStatus>,
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ContainerStatus {
    name: String,
    #[serde(default)]
    state: ContainerState,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ContainerState {
    terminated: Option<Terminated>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Terminated {
    message: Option<String>,
    finished_at: Option<Time>,
}

impl Benchmarks {
    /// Passes on the messages of a benchmark's containers that have ended.
    fn receive(&self, object: &PodObject) {
        let labelled = object.labels().get(labels::BENCHMARK);
        let is_benchmark = labelled.is_some_and(|value| value == "true");
        let own = object
            .namespace()
            .is_some_and(|name| name == self.namespace);
        let (Some(uid), true) = (object.uid(), is_benchmark && own) else {
            return;
        };
        let statuses = object.status.iter().flat_map(|one| &one.container_statuses);
        for container in statuses {
            let ended = container.state.terminated.as_ref();
            let message = ended.and_then(|ended| {
                let at = ended.finished_at.as_ref()?.0.as_second();
                Some(Message {
                    at: u64::try_from(at).ok()?,
                    text: ended.message.clone().filter(|text| !text.is_empty())?,
                })
            });
            if let Some(message) = message {
                self.inbox.put(format!("{uid}/{}", container.name), message);
            }
        }
    }
}

/// The part of the webhook's decision that is read, and of where its queue put the pod.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Decision {
    pattern: Option<String>,
    /// The gang; of the queue, also one that no annotation names.
    gang: Option<String>,
}

impl Decision {
    fn of(object: &PodObject, key: &str) -> Self {
        let text = object.annotations().get(key);
        text.and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }
}

impl Mirror for Pods {
    type Object = PodObject;
    const KIND: &'static str = "Pod";
    const UNKNOWN: &'static str = " of this version, so all-reduce is assumed for all jobs";
    const FORBIDDEN: &'static str = ", so all-reduce is assumed for all jobs";

    fn set(&mut self, object: PodObject) {
        self.benchmarks.receive(&object);
        let decision = Decision::of(&object, labels::DECISION);
        let queued = Decision::of(&object, labels::QUEUE_PLACEMENT);
        // The queue calls it the same, unless it is longer than 63 characters.
        let named = decision.gang.map(|gang| format!("gang {gang}"));
        let gang = queued.gang.or(named);
        let status = object.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        let mut conditions = status.into_iter().flat_map(|status| &status.conditions);
        let ready = conditions.any(|one| one.kind == "Ready" && one.status == "True");
        let ended = matches!(phase, Some("Succeeded" | "Failed"));
        let label = |name| {
            object
                .labels()
                .get(name)
                .cloned()
                .filter(|value| is_value(value))
        };
        let pod = Pod {
            uid: object.uid(),
            pattern: decision.pattern.and_then(|pattern| pattern.parse().ok()),
            class: label(labels::CLASS),
            project: label(labels::PROJECT),
            gang: gang.filter(|gang| is_gang(gang)),
            ready,
            ended,
        };
        let name = (object.namespace().unwrap_or_default(), object.name_any());
        self.cluster.read().pods.insert(name, pod);
    }

    fn remove(&mut self, name: &PodName) {
        self.cluster.read().pods.remove(name);
    }

    fn retain(&mut self, names: &HashSet<PodName>) {
        self.cluster
            .read()
            .pods
            .retain(|name, _| names.contains(name));
    }
}

impl Mirror for SlicesOfNode {
    type Object = SliceObject;
    const KIND: &'static str = "ResourceSlice";
    const UNKNOWN: &'static str =
        " of this version, so the GPUs of DRA devices are known only if their names contain UUIDs";
    const FORBIDDEN: &'static str =
        ", so the GPUs of DRA devices are known only if their names contain UUIDs";

    fn set(&mut self, object: SliceObject) {
        self.0.read().slices.apply(object);
    }

    fn remove(&mut self, (_, name): &PodName) {
        self.0.read().slices.remove(name);
    }

    fn retain(&mut self, names: &HashSet<PodName>) {
        let names: HashSet<&str> = names.iter().map(|(_, name)| &**name).collect();
        let mut facts = self.0.read();
        facts.slices.retain(|name| names.contains(name));
        facts.slices_read = true;
    }
}

#[cfg(test)]
mod tests;
