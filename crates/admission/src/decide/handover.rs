//! Pods that another scheduler places, and classes that hand their pods over to it.
//!
//! Nothing that the scheduler's own webhook set in such a pod is changed. The class's node affinity
//! is always written: each of these schedulers obeys it, and none of their own requests describes
//! which nodes are fast enough. A class with an integration writes the scheduler's own request
//! instead of our pod affinity, but only where that scheduler reads it. Otherwise nothing would
//! keep the pods of a job together.

use nvlink_api::{
    crd::domain_class::{Integration, Scheduler as Settled},
    patch::Editor,
    pod,
};
use nvlink_topology::{Scope, labels};
use serde_json::Value;

use super::{Chosen, Settings, gate, refusal::Refusal};

/// A scheduler other than the cluster's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(const_into_str)]
enum Scheduler {
    Kueue,
    #[strum(serialize = "KAI")]
    Kai,
    Volcano,
    Koordinator,
    #[strum(serialize = "HAMi")]
    Hami,
}

/// Schedulers by the pod's `schedulerName`.
const NAMES: &[(&str, Scheduler)] = &[
    ("kai-scheduler", Scheduler::Kai),
    ("volcano", Scheduler::Volcano),
    ("koord-scheduler", Scheduler::Koordinator),
    ("hami-scheduler", Scheduler::Hami),
];
/// Prefix of Kueue's labels and gates.
const KUEUE: &str = "kueue.x-k8s.io/";
/// Names the LocalQueue of Kueue in which the pod waits.
const KUEUE_QUEUE: &str = "kueue.x-k8s.io/queue-name";
/// Kueue's gates: until it admits a pod, and until its topology-aware scheduling has chosen the node. Its
/// pod webhook adds both to each new pod that no controller made; a pod of a Job that it has admitted with
/// a topology has the second alone (pkg/controller/jobs/pod/pod_webhook.go and pkg/podset/podset.go).
const ADMISSION: &str = "kueue.x-k8s.io/admission";
const TOPOLOGY: &str = "kueue.x-k8s.io/topology";
const KUEUE_REQUIRED: &str = "kueue.x-k8s.io/podset-required-topology";
const KUEUE_PREFERRED: &str = "kueue.x-k8s.io/podset-preferred-topology";
/// No topology is requested. In pods of a Job that requests none, Kueue writes it itself.
const KUEUE_UNCONSTRAINED: &str = "kueue.x-k8s.io/podset-unconstrained-topology";
const KAI_TOPOLOGY: &str = "kai.scheduler/topology";
const KAI_REQUIRED: &str = "kai.scheduler/topology-required-placement";
const KAI_PREFERRED: &str = "kai.scheduler/topology-preferred-placement";
const KAI_QUEUE: &str = "kai.scheduler/queue";
const VOLCANO_MODE: &str = "volcano.sh/network-topology-mode";
const VOLCANO_TIER: &str = "volcano.sh/network-topology-highest-tier";
/// Names the Volcano group of a pod. Volcano reads the group's request, not the pod's.
const VOLCANO_GROUP: &str = "scheduling.k8s.io/group-name";
/// Annotations by which a pod requests its topology. If it has one of them, the class adds none.
const REQUESTS: &[(Scheduler, &[&str])] = &[
    (
        Scheduler::Kueue,
        &[
            KUEUE_REQUIRED,
            KUEUE_PREFERRED,
            KUEUE_UNCONSTRAINED,
            "kueue.x-k8s.io/podset-slice-required-topology",
        ],
    ),
    (
        Scheduler::Kai,
        &[
            KAI_REQUIRED,
            KAI_PREFERRED,
            "kai.scheduler/segment-topology-required-placement",
            "kai.scheduler/segment-topology-preferred-placement",
        ],
    ),
    (Scheduler::Volcano, &[VOLCANO_MODE, VOLCANO_TIER]),
];

impl Scheduler {
    /// Returns the field or label that selects this scheduler.
    fn how(self) -> &'static str {
        match self {
            Self::Kueue => "label kueue.x-k8s.io/queue-name",
            Self::Kai => "schedulerName kai-scheduler",
            Self::Volcano => "schedulerName volcano",
            Self::Koordinator => "schedulerName koord-scheduler",
            Self::Hami => "schedulerName hami-scheduler",
        }
    }

    /// Returns the scheduler of `pod`; `None` for the cluster's own or an unknown one.
    fn of(pod: &Value) -> Option<Self> {
        let mut labels = pod::entries(pod, &["metadata", "labels"]);
        if labels.any(|(key, _)| key.starts_with(KUEUE))
            || gated(pod, |gate| gate.starts_with(KUEUE))
        {
            return Some(Self::Kueue);
        }
        let name = pod::at(pod, &["spec", "schedulerName"])?.as_str()?;
        let (_, scheduler) = NAMES.iter().find(|(known, _)| *known == name)?;
        Some(*scheduler)
    }
}

/// The scheduler of a pod, and what it takes over.
#[derive(Debug, Default)]
pub(super) struct Handover {
    /// The scheduler, if it is not the cluster's own.
    pub(super) scheduler: Option<&'static str>,
    /// What keeps the pods of a job together.
    pub(super) keeper: Keeper,
    /// Why the scheduler does not, for the user.
    pub(super) warning: Option<String>,
}

/// What keeps the pods of a job together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Keeper {
    /// Our pod affinity.
    #[default]
    Affinity,
    /// Our pod affinity as a preference: the scheduler may have chosen the nodes already, and a pod that
    /// may not go to its node would be Pending while the others hold their GPUs.
    Preference,
    /// The scheduler, which was asked to.
    Scheduler,
    /// Nothing: the scheduler has chosen the nodes without being asked to.
    Nobody,
}

/// Returns the scheduler other than the cluster's own that places the pod.
pub(super) fn placer(pod: &Value) -> Option<&'static str> {
    Scheduler::of(pod).map(Into::into)
}

/// Returns where a pod without a node waits, or for what, if not in the queue of its class: `in Kueue's
/// queue ml`, `for the scheduling gate example.com/quota`; `None` if the scheduler may bind it now.
#[must_use]
pub fn elsewhere(pod: &Value) -> Option<String> {
    if gate::is_queued(pod) {
        return None;
    }
    let scheduler = Scheduler::of(pod);
    let queue = match scheduler {
        Some(Scheduler::Kueue) => pod::metadata(pod, "labels", KUEUE_QUEUE),
        Some(Scheduler::Kai) => pod::metadata(pod, "labels", KAI_QUEUE),
        _ => None,
    };
    let queue = queue.and_then(Value::as_str);
    let queue = queue.map_or_else(String::new, |queue| format!(" {queue}"));
    let foreign = gate::gates(pod).find(|gate| !gate.starts_with(KUEUE));
    match (scheduler, foreign) {
        (_, Some(gate)) => Some(format!("for the scheduling gate {gate}")),
        // Kueue has admitted a pod without its gate.
        (Some(Scheduler::Kueue), None) if gate::gates(pod).next().is_none() => None,
        (scheduler, None) => {
            let name = scheduler?.into_str();
            Some(format!("in {name}'s queue{queue}"))
        }
    }
}

/// Hands the pod over, if its class has an integration and its scheduler reads the request.
pub(super) fn hand_over(
    editor: &mut Editor,
    chosen: &Chosen,
    settings: &Settings,
) -> Result<Handover, Refusal> {
    let settled = &chosen.class.scheduler;
    let placer = Scheduler::of(editor.document());
    let kept = |keeper, warning| Handover {
        scheduler: placer.map(Into::into),
        keeper,
        warning,
    };
    let wanted = match settled.integration {
        Integration::Gate | Integration::None => {
            let (keeper, warning) = beside_kueue(editor.document(), chosen, settings);
            return Ok(kept(keeper, warning));
        }
        Integration::Kueue => Scheduler::Kueue,
        Integration::KAI => Scheduler::Kai,
        Integration::Volcano => Scheduler::Volcano,
    };
    let (class, name) = (&chosen.class.name, wanted.into_str());
    if placer != Some(wanted) {
        let warning = format!(
            "class {class:?} leaves its pods to {name}, but {name} does not place this pod, so it gets affinity instead; to use {name}, set {}",
            wanted.how()
        );
        return Ok(kept(Keeper::Affinity, Some(warning)));
    }
    let request = request(wanted, settled, chosen, settings);
    let pod = editor.document();
    if wanted == Scheduler::Kueue && is_placed(pod) && !request.is_empty() {
        let (keeper, warning) = placed(pod, &request);
        return Ok(kept(keeper, warning));
    }
    if said(pod, wanted) || request.is_empty() {
        set_queue(editor, settled)?;
        return Ok(kept(Keeper::Scheduler, None));
    }
    if reads_elsewhere(pod, wanted) {
        let warning = unread(name, &request);
        return Ok(kept(Keeper::Affinity, Some(warning)));
    }
    for (key, value) in request {
        editor.insert(pod::ANNOTATIONS, key, value.into())?;
    }
    set_queue(editor, settled)?;
    Ok(kept(Keeper::Scheduler, None))
}

/// Reports whether Kueue's topology-aware scheduling has the job of this pod admitted, and so knows the
/// nodes of its pods.
fn is_placed(pod: &Value) -> bool {
    gated(pod, |gate| gate == TOPOLOGY) && !gated(pod, |gate| gate == ADMISSION)
}

/// Returns what keeps the pods of a job together that Kueue has placed.
fn placed(pod: &Value, request: &[(&str, String)]) -> (Keeper, Option<String>) {
    let asked = |key: &&&str| **key != KUEUE_UNCONSTRAINED && has(pod, key);
    let keys = REQUESTS
        .iter()
        .filter(|(known, _)| *known == Scheduler::Kueue);
    if keys.flat_map(|(_, keys)| *keys).any(|key| asked(&key)) {
        return (Keeper::Scheduler, None);
    }
    let warning = format!(
        "Kueue has chosen the nodes of this job without a topology, so nothing keeps its pods together, and pod affinity would only keep some of them Pending: annotate the pod template of the job with {}",
        annotations(request)
    );
    (Keeper::Nobody, Some(warning))
}

/// Returns what keeps the pods of a job together whose class does not use Kueue, though Kueue has them.
fn beside_kueue(pod: &Value, chosen: &Chosen, settings: &Settings) -> (Keeper, Option<String>) {
    let Some((need, level)) = level(chosen, settings)
        .filter(|_| !chosen.is_queued() && gated(pod, |gate| gate == TOPOLOGY))
    else {
        return (Keeper::Affinity, None);
    };
    let request = kueue(need, level);
    if is_placed(pod) {
        return placed(pod, &request);
    }
    let warning = format!(
        "Kueue may choose the node of this pod by its topology-aware scheduling, so it gets pod affinity as a preference only: set scheduler.integration of class {:?} to Kueue, or annotate the pod with {}",
        chosen.class.name,
        annotations(&request)
    );
    (
        Keeper::Preference,
        Some(warning).filter(|_| !said(pod, Scheduler::Kueue)),
    )
}

fn kueue(need: Need, level: &str) -> Vec<(&'static str, String)> {
    let key = match need {
        Need::Required => KUEUE_REQUIRED,
        Need::Preferred => KUEUE_PREFERRED,
    };
    vec![(key, level.to_owned())]
}

/// Returns a request as text.
fn annotations(request: &[(&str, String)]) -> String {
    let request = request.iter().map(|(key, value)| format!("{key}: {value}"));
    request.collect::<Vec<_>>().join(", ")
}

/// Returns the warning that the scheduler would not read the request on the pod.
fn unread(name: &str, request: &[(&str, String)]) -> String {
    format!(
        "{name} reads the request from the owner or group of this pod, not from the pod, so the pod gets affinity instead; to use {name}, annotate the owner or group with {}",
        annotations(request)
    )
}

/// Returns the request as annotations; empty for a pod that needs none.
fn request(
    scheduler: Scheduler,
    settled: &Settled,
    chosen: &Chosen,
    settings: &Settings,
) -> Vec<(&'static str, String)> {
    let Some((need, level)) = level(chosen, settings) else {
        return Vec::new();
    };
    let (kai, volcano) = match need {
        Need::Required => (KAI_REQUIRED, "hard"),
        Need::Preferred => (KAI_PREFERRED, "soft"),
    };
    match scheduler {
        Scheduler::Kueue => kueue(need, level),
        Scheduler::Kai => {
            let topology = settled.topology.clone();
            let topology = topology.map(|name| (KAI_TOPOLOGY, name));
            topology
                .into_iter()
                .chain([(kai, level.to_owned())])
                .collect()
        }
        Scheduler::Volcano => {
            let tier = settled
                .highest_tier
                .map(|tier| (VOLCANO_TIER, tier.to_string()));
            let tier = tier.filter(|_| need == Need::Required);
            [(VOLCANO_MODE, volcano.to_owned())]
                .into_iter()
                .chain(tier)
                .collect()
        }
        Scheduler::Koordinator | Scheduler::Hami => Vec::new(),
    }
}

/// Whether pods of a job must be together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Required,
    /// The scheduler takes the closest level that has room.
    Preferred,
}

/// Returns the node label whose value must be the same for all pods of the job, or should be.
///
/// A single pod runs on one node, and node affinity selects that node, so it needs no request. A
/// label that is missing on some nodes would keep the pod off them: KAI does not place pods with a
/// required level on nodes without the level's label
/// (<https://github.com/NVIDIA/KAI-Scheduler/blob/main/docs/topology/README.md>), and Kueue uses
/// only nodes with the labels of all levels
/// (<https://github.com/kubernetes-sigs/kueue/tree/main/keps/2724-topology-aware-scheduling>).
/// Only a gang needs one domain or node for several pods. A node whose GPUs are in several domains
/// has no label for them, because it is unknown which domain a pod's GPUs will be in: the gang must
/// not run on such nodes.
fn level<'a>(chosen: &Chosen, settings: &'a Settings) -> Option<(Need, &'a str)> {
    if !chosen.spans {
        return None;
    }
    let level: &str = match chosen.gang_scope {
        Scope::NvlinkDomain => labels::DOMAIN,
        Scope::Gpu | Scope::Node => "kubernetes.io/hostname",
        Scope::Rack => &settings.rack_label,
        Scope::Zone => &settings.zone_label,
        Scope::Cluster => return Some((Need::Preferred, labels::DOMAIN)),
    };
    Some((Need::Required, level))
}

/// Writes the class's queue into a pod of KAI, unless the pod has one.
fn set_queue(editor: &mut Editor, settled: &Settled) -> Result<(), Refusal> {
    let Some(queue) = &settled.queue else {
        return Ok(());
    };
    if pod::metadata(editor.document(), "labels", KAI_QUEUE).is_none() {
        editor.insert(pod::LABELS, KAI_QUEUE, queue.clone().into())?;
    }
    Ok(())
}

/// Reports whether the pod itself requests its topology.
fn said(pod: &Value, scheduler: Scheduler) -> bool {
    let keys = REQUESTS.iter().filter(|(known, _)| *known == scheduler);
    keys.flat_map(|(_, keys)| *keys).any(|key| has(pod, key))
}

fn has(pod: &Value, annotation: &str) -> bool {
    pod::metadata(pod, "annotations", annotation).is_some()
}

/// Reports whether the scheduler reads the request from another object than the pod.
fn reads_elsewhere(pod: &Value, scheduler: Scheduler) -> bool {
    match scheduler {
        Scheduler::Volcano => pod::metadata(pod, "annotations", VOLCANO_GROUP).is_some(),
        _ => {
            let controls = |owner: &Value| owner.get("controller") == Some(&Value::Bool(true));
            pod::list(pod, &["metadata", "ownerReferences"]).any(controls)
        }
    }
}

fn gated(pod: &Value, is: impl Fn(&str) -> bool) -> bool {
    gate::gates(pod).any(is)
}
