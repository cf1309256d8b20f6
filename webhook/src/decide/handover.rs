//! Pods that another scheduler places, and classes that hand them over to it.
//!
//! Of such a pod nothing is changed that its scheduler's own webhook set. The
//! class's node affinity is written in any case, because each of these
//! schedulers obeys it, and no request of theirs says which nodes are fast
//! enough. A class with an integration writes the scheduler's own request in
//! place of our pod affinity, but only where that scheduler will read it:
//! otherwise the pods of a job would be held together by nobody's rule.

use nvlink_topology::{Scope, labels};
use serde_json::Value;

use super::{Chosen, Settings, refusal::Refusal};
use crate::{
    crd::domain_class::{Integration, Scheduler as Settled},
    decide::patch::Editor,
    decide::pod,
};

/// A scheduler that is not the cluster's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheduler {
    Kueue,
    Kai,
    Volcano,
    Koordinator,
    Hami,
}

/// Schedulers by the name that a pod asks for.
const NAMES: &[(&str, Scheduler)] = &[
    ("kai-scheduler", Scheduler::Kai),
    ("volcano", Scheduler::Volcano),
    ("koord-scheduler", Scheduler::Koordinator),
    ("hami-scheduler", Scheduler::Hami),
];
/// What Kueue's labels and gates start with.
const KUEUE: &str = "kueue.x-k8s.io/";
/// Kueue's gate on a pod that has its place already.
const PLACED: &str = "kueue.x-k8s.io/topology";
const KUEUE_REQUIRED: &str = "kueue.x-k8s.io/podset-required-topology";
const KAI_TOPOLOGY: &str = "kai.scheduler/topology";
const KAI_REQUIRED: &str = "kai.scheduler/topology-required-placement";
const KAI_QUEUE: &str = "kai.scheduler/queue";
const VOLCANO_MODE: &str = "volcano.sh/network-topology-mode";
const VOLCANO_TIER: &str = "volcano.sh/network-topology-highest-tier";
/// Names the group that a pod of Volcano's is in, whose request counts.
const VOLCANO_GROUP: &str = "scheduling.k8s.io/group-name";
/// Annotations by which a pod says where it wants to be: one of them, and the class says nothing.
const REQUESTS: &[(Scheduler, &[&str])] = &[
    (
        Scheduler::Kueue,
        &[
            KUEUE_REQUIRED,
            "kueue.x-k8s.io/podset-preferred-topology",
            "kueue.x-k8s.io/podset-unconstrained-topology",
            "kueue.x-k8s.io/podset-slice-required-topology",
        ],
    ),
    (
        Scheduler::Kai,
        &[
            KAI_REQUIRED,
            "kai.scheduler/topology-preferred-placement",
            "kai.scheduler/segment-topology-required-placement",
            "kai.scheduler/segment-topology-preferred-placement",
        ],
    ),
    (Scheduler::Volcano, &[VOLCANO_MODE, VOLCANO_TIER]),
];

impl Scheduler {
    fn name(self) -> &'static str {
        match self {
            Self::Kueue => "Kueue",
            Self::Kai => "KAI",
            Self::Volcano => "Volcano",
            Self::Koordinator => "Koordinator",
            Self::Hami => "HAMi",
        }
    }

    /// What makes a pod one of its own.
    fn how(self) -> &'static str {
        match self {
            Self::Kueue => "label kueue.x-k8s.io/queue-name",
            Self::Kai => "schedulerName kai-scheduler",
            Self::Volcano => "schedulerName volcano",
            Self::Koordinator => "schedulerName koord-scheduler",
            Self::Hami => "schedulerName hami-scheduler",
        }
    }

    /// Who places `pod`; `None`: the cluster's own scheduler, or one unknown.
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

/// Who places a pod.
#[derive(Debug, Default)]
pub(super) struct Handover {
    /// Another scheduler than the cluster's own.
    pub(super) scheduler: Option<&'static str>,
    /// It holds the pods of a job together, in place of our pod affinity.
    pub(super) done: bool,
    /// Why not, for the user.
    pub(super) warning: Option<String>,
}

/// Hands the pod over, if its class says so and its scheduler will see it.
pub(super) fn hand_over(
    editor: &mut Editor,
    chosen: &Chosen,
    settings: &Settings,
) -> Result<Handover, Refusal> {
    let settled = &chosen.class.scheduler;
    let placer = Scheduler::of(editor.document());
    let kept = |warning| Handover {
        scheduler: placer.map(Scheduler::name),
        done: false,
        warning,
    };
    let wanted = match settled.integration {
        Integration::Gate | Integration::None => return Ok(kept(None)),
        Integration::Kueue => Scheduler::Kueue,
        Integration::KAI => Scheduler::Kai,
        Integration::Volcano => Scheduler::Volcano,
    };
    let (class, name) = (&chosen.class.name, wanted.name());
    if placer != Some(wanted) {
        let warning = format!(
            "class {class:?} hands its pods over to {name}, but this one is none of {name}'s: affinity places it; for {name}, set {}",
            wanted.how()
        );
        return Ok(kept(Some(warning)));
    }
    let done = Handover {
        scheduler: placer.map(Scheduler::name),
        done: true,
        warning: None,
    };
    let request = request(wanted, settled, chosen, settings);
    let pod = editor.document();
    if said(pod, wanted) || gated(pod, |gate| gate == PLACED) || request.is_empty() {
        set_queue(editor, settled)?;
        return Ok(done);
    }
    if reads_elsewhere(pod, wanted) {
        let warning = unread(name, &request);
        return Ok(kept(Some(warning)));
    }
    for (key, value) in request {
        editor.insert(
            &["metadata".into(), "annotations".into()],
            key,
            value.into(),
        )?;
    }
    set_queue(editor, settled)?;
    Ok(done)
}

/// That the scheduler would not see the request on the pod.
fn unread(name: &str, request: &[(&str, String)]) -> String {
    let request: Vec<_> = request
        .iter()
        .map(|(key, value)| format!("{key}: {value}"))
        .collect();
    format!(
        "{name} reads its request from what made this pod, not from the pod, which is held by affinity: annotate that with {}",
        request.join(", ")
    )
}

/// The request, as annotations; none for a pod that needs none.
fn request(
    scheduler: Scheduler,
    settled: &Settled,
    chosen: &Chosen,
    settings: &Settings,
) -> Vec<(&'static str, String)> {
    let Some(level) = level(chosen, settings) else {
        return Vec::new();
    };
    match scheduler {
        Scheduler::Kueue => vec![(KUEUE_REQUIRED, level.to_owned())],
        Scheduler::Kai => {
            let topology = settled.topology.clone();
            let topology = topology.map(|name| (KAI_TOPOLOGY, name));
            topology
                .into_iter()
                .chain([(KAI_REQUIRED, level.to_owned())])
                .collect()
        }
        Scheduler::Volcano => {
            let tier = settled
                .highest_tier
                .map(|tier| (VOLCANO_TIER, tier.to_string()));
            [(VOLCANO_MODE, "hard".to_owned())]
                .into_iter()
                .chain(tier)
                .collect()
        }
        Scheduler::Koordinator | Scheduler::Hami => Vec::new(),
    }
}

/// The node label whose value all pods of the job must share.
///
/// A pod without others lies on one node, and node affinity says on which, so
/// that it asks for nothing. A label that some nodes lack would keep it off
/// them: KAI places nothing that is required at a level on nodes without its
/// label (<https://github.com/NVIDIA/KAI-Scheduler/blob/main/docs/topology/README.md>),
/// and Kueue knows no nodes but those with the labels of all levels
/// (<https://github.com/kubernetes-sigs/kueue/tree/main/keps/2724-topology-aware-scheduling>).
/// Only a gang wants one domain or node for several pods. A node whose GPUs lie
/// in several domains has no label for them, because nobody can say which of
/// them a pod's GPUs will be of: the gang must stay off such nodes.
fn level<'a>(chosen: &Chosen, settings: &'a Settings) -> Option<&'a str> {
    let gang = chosen.intent.gang.is_some();
    match chosen.scope {
        Scope::NvlinkDomain if gang => Some(labels::DOMAIN),
        Scope::Node if gang => Some("kubernetes.io/hostname"),
        Scope::Rack if chosen.spans => Some(&settings.rack_label),
        Scope::Zone if chosen.spans => Some(&settings.zone_label),
        _ => None,
    }
}

/// Gives a pod of KAI's the class's queue, unless it has one.
fn set_queue(editor: &mut Editor, settled: &Settled) -> Result<(), Refusal> {
    let Some(queue) = &settled.queue else {
        return Ok(());
    };
    if pod::metadata(editor.document(), "labels", KAI_QUEUE).is_none() {
        let labels = ["metadata".into(), "labels".into()];
        editor.insert(&labels, KAI_QUEUE, queue.clone().into())?;
    }
    Ok(())
}

/// Whether the pod says itself where it wants to be.
fn said(pod: &Value, scheduler: Scheduler) -> bool {
    let keys = REQUESTS.iter().filter(|(known, _)| *known == scheduler);
    keys.flat_map(|(_, keys)| *keys)
        .any(|key| pod::metadata(pod, "annotations", key).is_some())
}

/// Whether the scheduler reads the request from another object than the pod.
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
    let gates = pod::list(pod, &["spec", "schedulingGates"]);
    let mut names = gates.filter_map(|gate| gate.get("name")?.as_str());
    names.any(is)
}
