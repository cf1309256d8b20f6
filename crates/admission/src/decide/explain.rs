//! The decision in words: the pod's annotation, and the warnings that kubectl prints.

use nvlink_api::{
    class::{Class, Queue},
    crd::{
        domain_class::Mapping,
        environment::{Fabric, MNNVL, Mnnvl},
    },
    patch::Editor,
    pod,
};
use nvlink_topology::{BrokenGpus, Scope, labels};
use serde::Serialize;
use serde_json::Value;

use super::{
    By, Chosen, affinity,
    environment::Report,
    handover::{Handover, Keeper},
    identity,
    refusal::{Refusal, Rule},
    together::Together,
};
use crate::view::View;

/// The annotation `nvlink-domains.io/decision`. It contains only what follows from the pod, its
/// class and its namespace: if it contained the state of the cluster, a second pass would change
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub class: String,
    /// How the pod got the class.
    pub by: By,
    /// Number of whole GPUs that the pod requests.
    pub gpus: u32,
    /// How close the GPUs must be.
    pub scope: String,
    /// How far apart the pods of the gang may be; absent without other pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang_scope: Option<String>,
    pub pattern: String,
    /// The pattern is a guess.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub guess: bool,
    /// Where the pattern comes from.
    pub pattern_from: String,
    /// Where the bandwidths come from that the class compares with its `minBandwidth`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_from: Option<&'static str>,
    /// The gang; a hash if its name is long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang: Option<String>,
    /// The scheduler that places the pod, if it is not the cluster's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<&'static str>,
    /// That scheduler keeps the pods of the job together, instead of our pod affinity.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub handed_over: bool,
    /// Why nothing keeps the pods of the job together, and what to do: nobody reads the warnings of
    /// pods that a controller creates, so an Event says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apart: Option<String>,
    /// The pod waits in the queue, which chooses its node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub queued: bool,
    /// What chooses the GPUs of the containers; absent: the node's device plugin, as it likes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<&'static str>,
    /// Variables that have the class's value in at least one container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Variables with the class's value that the ranks do not see.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<String>,
    /// Variables that the user set to another value in at least one container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<String>,
    /// How the pod got its class, as a sentence.
    pub why: String,
}

impl Record {
    pub(super) fn new(chosen: &Chosen, report: &Report, handover: &Handover) -> Self {
        Self {
            class: chosen.class.name.clone(),
            by: chosen.by,
            gpus: chosen.gpus,
            scope: chosen.scope.to_string(),
            gang_scope: chosen.spans.then(|| chosen.gang_scope.to_string()),
            pattern: chosen.pattern.to_string(),
            guess: chosen.guess,
            pattern_from: chosen.pattern_from.clone(),
            bandwidth_from: chosen.class.min_bandwidth.map(|_| BANDWIDTH_FROM),
            gang: chosen.intent.gang.as_deref().map(identity::shown),
            scheduler: handover.scheduler,
            handed_over: handover.keeper == Keeper::Scheduler,
            apart: handover
                .warning
                .clone()
                .filter(|_| handover.keeper == Keeper::Nobody),
            queued: chosen.is_queued(),
            devices: match chosen.class.mapping {
                Mapping::DevicePlugin => None,
                mapping => Some(mapping.into_str()),
            },
            env: report.set.iter().cloned().collect(),
            unread: report.unread.iter().cloned().collect(),
            kept: report.kept.iter().cloned().collect(),
            why: match chosen.class.broken_gpus {
                BrokenGpus::Avoid => format!("{}, and avoids broken GPUs", why(chosen)),
                _ => why(chosen),
            },
        }
    }

    /// Returns the value of the annotation.
    pub(super) fn to_json(&self) -> Result<String, Refusal> {
        serde_json::to_string(self).map_err(|error| {
            let message = format!("the decision cannot be written: {error}");
            Refusal::new(Rule::Malformed, message)
        })
    }
}

/// A calibration does not change the label `bandwidth`: people know their machines by the rates of
/// data sheets.
const BANDWIDTH_FROM: &str = "constants: data-sheet rates of active links, not calibrated";

fn why(chosen: &Chosen) -> String {
    match (chosen.by, &chosen.class.applies_to) {
        (By::Annotation, _) => "the pod names the class".to_owned(),
        (By::Namespace, _) => "the class is the default of the namespace".to_owned(),
        (By::AppliesTo, None) => "the class claims the pod".to_owned(),
        (By::AppliesTo, Some(applies)) => {
            let gpus = match applies.max_gpus {
                Some(max) if max == applies.min_gpus => format!("{max}"),
                Some(max) => format!("{} to {max}", applies.min_gpus),
                None => format!("{} or more", applies.min_gpus),
            };
            let pattern = if applies.patterns.is_empty() {
                ""
            } else {
                " and this pattern"
            };
            format!("the class claims pods with {gpus} GPUs{pattern}")
        }
    }
}

/// Kubernetes' limit for all annotations of an object together, in bytes.
const MOST_ANNOTATIONS: usize = 256 << 10;

/// Writes the annotation, unless the pod already has the same one. If there is no room for it, an
/// existing annotation with another decision is removed, and a warning is returned.
pub(super) fn write(editor: &mut Editor, text: &str) -> Result<Option<String>, Refusal> {
    let present = pod::metadata(editor.document(), "annotations", labels::DECISION);
    if present.and_then(Value::as_str) == Some(text) {
        return Ok(None);
    }
    let others = pod::entries(editor.document(), &["metadata", "annotations"]);
    let used: usize = others
        .filter(|(key, _)| *key != labels::DECISION)
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    if used + labels::DECISION.len() + text.len() > MOST_ANNOTATIONS {
        editor.remove(pod::ANNOTATIONS, labels::DECISION);
        return Ok(Some(format!(
            "annotation {} was not written: the pod's other annotations leave no room for it",
            labels::DECISION
        )));
    }
    editor.insert(pod::ANNOTATIONS, labels::DECISION, text.into())?;
    Ok(None)
}

/// Returns a summary of the decision in one line.
pub(super) fn summary(chosen: &Chosen) -> String {
    let Chosen {
        class,
        gpus,
        scope,
        pattern,
        ..
    } = chosen;
    let by = match chosen.by {
        By::Annotation => "named by the pod",
        By::Namespace => "the namespace's default",
        By::AppliesTo => "which claims this pod",
    };
    let gpus = match (gpus, &chosen.intent.gang) {
        (_, Some(gang)) => format!(
            "{gpus} GPU(s) per pod{}, gang {:?} {}",
            match gpus {
                1 => String::new(),
                _ => format!(" within one {scope}"),
            },
            identity::shown(gang),
            match chosen.gang_scope {
                Scope::Cluster => "as close as possible".to_owned(),
                within => format!("within one {within}"),
            }
        ),
        (1, None) => "1 GPU".to_owned(),
        (_, None) => format!("{gpus} GPUs within one {scope}"),
    };
    let guess = if chosen.guess { " (a guess)" } else { "" };
    format!(
        "class {:?}, {by}: {gpus}, pattern {pattern}{guess}",
        class.name
    )
}

/// Returns warnings that follow from the state of the cluster: whether the pod will wait or fail.
pub fn prospects(chosen: &Chosen, view: &View) -> impl Iterator<Item = String> + use<> {
    let hardware = view.gang_room(&chosen.class, chosen.gpus);
    let pods = Together::of(chosen);
    let room = room(chosen, view);
    // Where no pod fits, that is said.
    let alone = matches!(room, Room::Never(_) | Room::Later);
    let never = pods
        .filter(|_| !alone && view.has_nodes())
        .and_then(|pods| pods.never(&hardware));
    let apart = pods.filter(|_| never.is_none());
    let apart = apart.and_then(|pods| pods.apart(&hardware));
    let room = match room {
        Room::Never(line) => Some(line),
        Room::Taken(line) => line.filter(|_| never.is_none()),
        Room::Later | Room::Now => None,
    };
    [room, never, apart, channels(chosen, view)]
        .into_iter()
        .flatten()
}

/// Warns if NCCL may fail because the pod has no IMEX channel. By default, NCCL needs one where
/// ranks of several pods share a fabric, and gangs are placed on such nodes.
fn channels(chosen: &Chosen, view: &View) -> Option<String> {
    let class = &chosen.class;
    let environment = &class.environment;
    let settled = matches!(environment.mnnvl, Some(Mnnvl::Required | Mnnvl::Disabled))
        || environment.extra.contains_key(MNNVL);
    if environment.mnnvl == Some(Mnnvl::Managed) && chosen.spans && chosen.minds_channels {
        return Some(format!(
            "the queue of class {:?} gives the pod no IMEX channel, because it has a claim of its own or sets {MNNVL}: see that it has a channel if others of its job have one",
            class.name
        ));
    }
    if !chosen.spans || chosen.minds_channels || settled || chosen.is_managed() {
        return None;
    }
    let shared = environment.fabric == Fabric::MNNVL || view.gang_room(class, chosen.gpus).shared;
    shared.then(|| {
        format!(
            "nodes of class {:?} share NVLink, and the pod has no claim of a ComputeDomain: NCCL fails where it finds no IMEX channel; add the claim, or set {}=0 to use the network between nodes",
            class.name, MNNVL
        )
    })
}

/// Part of each warning that no node, or no domain, can ever hold the pod as the cluster is.
pub const STAYS_PENDING: &str = "will stay Pending";

/// Whether the nodes of a class have room for a pod, and what it is told.
enum Room {
    /// Some have, or that is not known.
    Now,
    /// Some that are in use. In the queue, which has a warning of its own, there is none.
    Taken(Option<String>),
    /// None has, and the queue starts it outside its scope.
    Later,
    /// None has.
    Never(String),
}

fn room(chosen: &Chosen, view: &View) -> Room {
    if !view.has_nodes() {
        // No node is known yet, which does not mean that there is none.
        return Room::Now;
    }
    let Chosen { class, gpus, .. } = chosen;
    let need = affinity::domain_size(chosen.scope, *gpus).unwrap_or(1);
    let room = view.room(class, need);
    let fast = match class.min_bandwidth {
        Some(least) => format!(" with {least} GB/s per GPU"),
        None => String::new(),
    };
    let name = &class.name;
    let healthy = match class.broken_gpus {
        BrokenGpus::Avoid => "healthy ",
        _ => "",
    };
    let spreads = class.queue.as_ref().is_some_and(Queue::spreads);
    match (room.nodes, room.fitting, room.free) {
        (0, ..) => Room::Never(unpublished_or_slow(class, view)),
        (_, 0, _) if chosen.is_queued() && spreads => Room::Later,
        (_, 0, _) => Room::Never(format!(
            "no node of class {name:?}{fast} has a domain of {need} {healthy}GPUs; the largest is {}: the pod {STAYS_PENDING}, no node can hold it",
            room.largest
        )),
        (_, fitting, 0) => Room::Taken((!chosen.is_queued()).then(|| format!(
            "{} in use: the pod will wait",
            match fitting {
                1 => format!("the only node of class {name:?} that has a domain of {need} {healthy}GPUs is"),
                _ => format!("all {fitting} nodes of class {name:?} that have a domain of {need} {healthy}GPUs are"),
            }
        ))),
        _ => Room::Now,
    }
}

/// Warns that no node of the class has the bandwidth that the class requires: all are slower, or
/// none has published its domains.
fn unpublished_or_slow(class: &Class, view: &View) -> String {
    let name = &class.name;
    match (class.min_bandwidth, view.too_slow(class)) {
        (Some(least), Some(best)) => format!(
            "no node of class {name:?} has {least} GB/s per GPU; the best has {} GB/s (node {}): the pod {STAYS_PENDING}, no node can hold it",
            best.bandwidth, best.node
        ),
        _ if class.broken_gpus == BrokenGpus::Avoid => format!(
            "no node of class {name:?} has published which of its GPUs are healthy: the pod will wait"
        ),
        _ => format!(
            "no node with the labels of class {name:?} has published its domains: the pod will wait"
        ),
    }
}
