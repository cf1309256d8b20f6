//! The list of cases: who may do what to a pod, and which rule refuses it.
//!
//! Tests run the cases of `access.json` and the pods of `legitimate.json` against the pure
//! decision, against the running webhook, and against the policies alone.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

/// The list of cases, and the objects that they share.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    pub namespaces: BTreeMap<String, Namespace>,
    /// The specs of the classes, by name.
    pub classes: BTreeMap<String, Value>,
    /// The labels of nodes, by name.
    pub nodes: BTreeMap<String, BTreeMap<String, String>>,
    pub grants: Vec<Grant>,
    /// The pods that the cases are based on.
    pub pods: BTreeMap<String, Value>,
    pub cases: Vec<Case>,
}

/// A namespace.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Namespace {
    /// The class of its GPU pods that name no class.
    pub default: Option<String>,
    /// No rule applies in it.
    #[serde(default)]
    pub exempt: bool,
}

/// A right to classes of a user, a group or a service account (`namespace/name`).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    pub user: Option<String>,
    pub group: Option<String>,
    pub account: Option<String>,
    pub verb: String,
    /// Absent: all.
    pub class: Option<String>,
    /// Absent: all.
    pub namespace: Option<String>,
}

/// A user's operation on a pod, and the expected answer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,
    /// The way around the rules that it tries, one of [`WAYS`].
    pub row: Option<String>,
    #[serde(default = "alice")]
    pub by: String,
    #[serde(default)]
    pub groups: Vec<String>,
    #[serde(default = "team", rename = "in")]
    pub namespace: String,
    #[serde(default = "gpu")]
    base: String,
    #[serde(default)]
    meta: Value,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    main: Value,
    /// The change of an existing pod; absent: the pod is created.
    pub change: Option<Change>,
    /// `allowed`, or the rule that denies it.
    pub expect: String,
    /// Another broken rule, which the policies may name instead: the API server may evaluate any
    /// policy first. For a pod from which the webhook hides GPUs: the policies' answer if the
    /// webhook did not hide them, unless it is `visible-devices`.
    pub or: Option<String>,
    /// Containers from which the webhook hides GPUs.
    #[serde(default)]
    pub hidden: Vec<String>,
    /// Only the webhook can see that a rule is broken, because the policies do not know the pod's
    /// node.
    #[serde(default)]
    pub unseen: bool,
    /// The rule by which the policies refuse a pod that the webhook changes or admits.
    pub policies: Option<String>,
    /// The class that the webhook gives to the pod; empty: none.
    given: Option<String>,
    /// Whether the admitted pod waits behind the queue's gate; absent: either.
    queued: Option<bool>,
    /// Texts that the refusal must contain.
    #[serde(default)]
    pub told: Vec<String>,
}

/// Pods of real clusters, which do not try to bypass a rule.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Legitimate {
    pods: Vec<Real>,
}

/// A pod of a real cluster.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Real {
    name: String,
    #[serde(default = "daemon_set_controller")]
    by: String,
    /// The answer in an ordinary namespace: `allowed`, or the rule that refuses the pod.
    team: String,
    /// The answer in a namespace whose daemons the classes admit to their nodes.
    platform: Option<String>,
    /// As in [`Case`].
    or: Option<String>,
    #[serde(default)]
    hidden: Vec<String>,
    /// Texts that its refusals must contain; absent: how to exempt its namespace from the rules.
    told: Option<Vec<String>>,
    pod: Value,
}

/// The ways around the rules. Each of them has a case that is refused.
pub const WAYS: [&str; 37] = [
    "tolerates the taint exactly",
    "tolerates with Exists and an empty key",
    "tolerates without an effect",
    "tolerates the taint of no class yet",
    "nodeName",
    "node selector",
    "affinity term",
    "adds a toleration",
    "changes an image",
    "removes our gate",
    "adds our gate",
    "claims of the queue",
    "past the queue",
    "forged state of the queue",
    "changes labels",
    "changes annotations",
    "ephemeral containers",
    "pods/resize",
    "visible devices: all",
    "visible devices: UUIDs",
    "visible devices: valueFrom",
    "visible devices: envFrom",
    "visible devices: of the image",
    "privileged",
    "hostPath to device nodes",
    "hostPath to driver libraries",
    "runtimeClassName",
    "forged decision",
    "forged project",
    "forged GitLab annotations",
    "forgeable GitLab labels",
    "pods of a Deployment",
    "pods of a Job",
    "pods of a CronJob",
    "a service account of another namespace",
    "impersonation",
    "static pods",
];

/// Requests that are admitted, although they resemble what a rule refuses.
pub const PASSES: [&str; 4] = [
    "a namespace that is excluded",
    "copies of pods",
    "everyday pods",
    "pods on other nodes",
];

/// A change of an existing pod.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    pub action: Action,
    /// Of equal tolerations in a row, only one is kept: the added ones replace the others, so that
    /// the list does not become longer.
    #[serde(default)]
    replaces: bool,
    #[serde(default)]
    meta: Value,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    main: Value,
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    Update,
    Debug,
    Resize,
    Status,
}

fn alice() -> String {
    "alice".to_owned()
}

fn team() -> String {
    "team".to_owned()
}

fn gpu() -> String {
    "gpu".to_owned()
}

fn daemon_set_controller() -> String {
    "system:serviceaccount:kube-system:daemon-set-controller".to_owned()
}

/// Reads the list.
pub fn read() -> List {
    let mut list: List =
        serde_json::from_str(include_str!("access.json")).expect("the list of cases");
    let real: Legitimate =
        serde_json::from_str(include_str!("legitimate.json")).expect("the legitimate pods");
    for real in real.pods {
        list.cases.extend(real.cases());
        let mut pod = real.pod;
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        list.pods.insert(real.name, pod);
    }
    list
}

/// Part of the command that exempts a namespace from all rules.
const EXEMPTION: &str = "nvlink-domains.io/webhook=ignore";
/// Part of the command that admits the daemons of a namespace to the nodes of a class.
const LISTING: &str = "/spec/access/daemonNamespaces/-";

impl Real {
    /// Returns the cases of the pod: in an ordinary namespace, in one for daemons, and, if the pod
    /// is refused in both, in an exempt one.
    fn cases(&self) -> Vec<Case> {
        let allowed = |expect: Option<&str>| expect == Some("allowed");
        let (team, platform) = (Some(self.team.as_str()), self.platform.as_deref());
        let exempt = (!allowed(team) && !allowed(platform)).then_some("allowed");
        let namespaces = [("team", team), ("platform", platform), ("exempt", exempt)];
        let expected = namespaces.into_iter();
        let expected = expected.filter_map(|(namespace, expect)| Some((namespace, expect?)));
        expected
            .map(|(namespace, expect)| {
                let helps = [EXEMPTION, LISTING];
                let count = 1 + usize::from(allowed(platform));
                let told = self.told.clone();
                let told =
                    told.unwrap_or_else(|| helps[..count].iter().map(<_>::to_string).collect());
                Case {
                    name: format!("{}, in {namespace}", self.name),
                    row: None,
                    by: self.by.clone(),
                    groups: Vec::new(),
                    namespace: namespace.to_owned(),
                    base: self.name.clone(),
                    meta: Value::Null,
                    spec: Value::Null,
                    main: Value::Null,
                    change: None,
                    expect: expect.to_owned(),
                    or: self.or.clone(),
                    hidden: match allowed(Some(expect)) && namespace != "exempt" {
                        true => self.hidden.clone(),
                        false => Vec::new(),
                    },
                    unseen: false,
                    policies: None,
                    given: None,
                    queued: None,
                    told,
                }
            })
            .collect()
    }
}

impl List {
    /// Returns the pod of a case as the webhook changes it: with GPUs hidden from the containers in
    /// `hidden`.
    pub fn shielded(&self, case: &Case) -> Value {
        let mut pod = self.pod(case);
        for list in ["initContainers", "containers"] {
            let containers = pod["spec"][list].as_array_mut().into_iter().flatten();
            for container in containers {
                let name = container["name"].as_str().unwrap_or_default();
                if case.hidden.iter().any(|hidden| hidden == name) {
                    let mut env = container["env"].as_array().cloned().unwrap_or_default();
                    env.push(void());
                    container["env"] = json!(env);
                }
            }
        }
        pod
    }

    /// Returns the pod of a case, before any change.
    pub fn pod(&self, case: &Case) -> Value {
        let mut pod = self.pods[&case.base].clone();
        pod["metadata"]["namespace"] = json!(case.namespace);
        put(&mut pod, &case.meta, &case.spec, &case.main);
        pod
    }
}

impl Change {
    /// Applies the change. Tolerations are added to the existing ones, because a pod cannot lose
    /// any.
    pub fn apply(&self, pod: &mut Value) {
        let before = pod["spec"]["tolerations"].take();
        put(pod, &self.meta, &self.spec, &self.main);
        let mut all = before.as_array().cloned().unwrap_or_default();
        if self.replaces {
            all.dedup();
        }
        if let Some(added) = pod["spec"]["tolerations"].as_array() {
            all.extend(added.iter().cloned());
        }
        pod["spec"]["tolerations"] = json!(all);
    }
}

fn put(pod: &mut Value, meta: &Value, spec: &Value, main: &Value) {
    merge(&mut pod["metadata"], meta);
    merge(&mut pod["spec"], spec);
    merge(&mut pod["spec"]["containers"][0], main);
}

/// Applies a JSON merge patch; a null at the top changes nothing.
fn merge(target: &mut Value, patch: &Value) {
    match patch {
        Value::Null => {}
        Value::Object(entries) => {
            if !target.is_object() {
                *target = json!({});
            }
            for (key, value) in entries {
                if value.is_null() {
                    target.as_object_mut().unwrap().remove(key);
                } else {
                    merge(&mut target[key], value);
                }
            }
        }
        other => *target = other.clone(),
    }
}

impl Case {
    /// Reports whether `pod`, which the webhook admitted and which was `before`, is as the case
    /// expects.
    pub fn is_as_wanted(&self, before: &Value, pod: &Value) -> bool {
        let told = hidden(before);
        let hidden = hidden(pod).into_iter();
        let hidden: Vec<_> = hidden.filter(|name| !told.contains(name)).collect();
        let class = pod["metadata"]["labels"]["nvlink-domains.io/class"].as_str();
        let gates = pod["spec"]["schedulingGates"].as_array();
        let gates = gates.into_iter().flatten();
        let ours = gates.filter(|gate| gate["name"] == "nvlink-domains.io/queue");
        let ours = ours.count();
        (self.change.is_some() || !has_state(pod))
            && hidden == self.hidden
            && self.queued.is_none_or(|queued| ours == usize::from(queued))
            && self
                .given
                .as_ref()
                .is_none_or(|given| class.unwrap_or_default() == given)
    }
}

/// Returns the containers of `pod` from which GPUs are hidden.
fn hidden(pod: &Value) -> Vec<&str> {
    let lists = ["initContainers", "containers"];
    let containers = lists.iter().filter_map(|list| pod["spec"][list].as_array());
    let told = |container: &&Value| {
        let mut env = container["env"].as_array().into_iter().flatten();
        env.any(|entry| entry == &void())
    };
    let told = containers.flatten().filter(told);
    told.filter_map(|container| container["name"].as_str())
        .collect()
}

/// Reports whether the pod has annotations in which the queue keeps its state.
fn has_state(pod: &Value) -> bool {
    let annotations = pod["metadata"]["annotations"].as_object();
    let mut keys = annotations.into_iter().flat_map(serde_json::Map::keys);
    keys.any(|key| key.starts_with("nvlink-domains.io/queue-"))
}

fn void() -> Value {
    json!({"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"})
}
