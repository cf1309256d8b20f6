//! The decision on a pod: which class it gets, and how that changes the pod.
//!
//! The decision is pure: it takes a pod as raw JSON and a
//! [`View`](crate::view::View), and returns a patch. It compares the wanted state with the
//! pod's existing state, so that a second pass over the patched pod changes nothing.

use json_patch::Patch;
use nvlink_topology::{Pattern, Scope, labels};
use serde_json::Value;
use std::sync::Arc;

use nvlink_api::{
    class::{Class, GPU, Queue},
    crd::{domain_class::ScopeLabels, environment::Mnnvl},
    patch::Editor,
};

pub mod affinity;
mod choose;
pub mod claim;
pub mod classify;
pub(crate) mod denial;
pub(crate) mod devices;
mod environment;
mod explain;
mod facts;
pub mod gate;
pub mod guard;
mod handover;
mod identity;
pub(crate) mod intent;
mod project;
mod refusal;
mod together;

use handover::{Handover, Keeper};

pub use choose::{Choice, choose};
pub use explain::STAYS_PENDING;
pub use explain::{Record, prospects};
pub use facts::Facts;
pub use gate::Gating;
pub use handover::elsewhere;
pub use intent::Intent;
pub use refusal::{Refusal, Rule};
pub use together::Together;

/// The operation on a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Create,
    /// A change of its metadata or spec.
    Update,
    /// New ephemeral containers.
    Debug,
    /// A change of its containers' resources.
    Resize,
}

/// Settings of an administrator for the whole cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Node label that names the rack.
    pub rack_label: String,
    /// Node labels that name parts of the network between rack and zone, nearest first.
    pub network_labels: Vec<String>,
    /// Node label that names the zone.
    pub zone_label: String,
}

impl Default for Settings {
    fn default() -> Self {
        ScopeLabels::default().into()
    }
}

impl From<ScopeLabels> for Settings {
    fn from(labels: ScopeLabels) -> Self {
        Self {
            rack_label: labels.rack,
            network_labels: labels.network,
            zone_label: labels.zone,
        }
    }
}

impl Settings {
    /// Returns the labels as the status of classes has them.
    #[must_use]
    pub fn scope_labels(&self) -> ScopeLabels {
        ScopeLabels {
            rack: self.rack_label.clone(),
            network: self.network_labels.clone(),
            zone: self.zone_label.clone(),
        }
    }
}

/// How a pod got its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub enum By {
    /// The pod names it.
    Annotation,
    /// It is the namespace's default for pods that name no class.
    Namespace,
    /// The class claims the pod by `appliesTo`.
    AppliesTo,
}

/// The class of a pod, and the facts about the pod that the choice used.
#[derive(Clone, Debug)]
pub struct Chosen {
    pub class: Arc<Class>,
    /// How the pod got the class.
    pub by: By,
    /// The pod's namespace.
    pub namespace: String,
    /// The project that the pod belongs to.
    pub project: String,
    /// Number of whole GPUs that the pod requests.
    pub gpus: u32,
    pub pattern: Pattern,
    /// The pattern is a guess.
    pub guess: bool,
    /// Where the pattern comes from, in a few words.
    pub pattern_from: String,
    /// The job has other pods.
    pub spans: bool,
    /// Number of pods of the job, where it has others and something says how many.
    pub pods: Option<u32>,
    /// Its ranks start over ssh and do not see the variables of its containers.
    pub over_ssh: bool,
    /// The pod itself handles the IMEX channels that NVLink between nodes needs.
    pub minds_channels: bool,
    /// How close the GPUs must be.
    pub scope: Scope,
    /// How far apart the pods of its gang may be.
    pub gang_scope: Scope,
    /// Whether the pod waits in the queue.
    pub gating: Gating,
    /// The pod's own annotations.
    pub intent: Intent,
    /// The name of its ResourceClaim, for classes with the mapping `Claim`; the name of the one for its
    /// IMEX channel begins so.
    pub claim: String,
    /// A node that the pod may run on may give it parts of GPUs for whole ones.
    pub may_be_cut: bool,
    /// Warnings for the user about the choice.
    pub warnings: Vec<String>,
}

impl Chosen {
    /// Reports whether the queue holds the pod back and chooses its node.
    #[must_use]
    pub fn is_queued(&self) -> bool {
        self.gating == Gating::Queued
    }

    /// Reports whether the queue decides on NVLink between the pods of the job.
    fn is_managed(&self) -> bool {
        let managed = self.class.environment.mnnvl == Some(Mnnvl::Managed);
        managed && self.is_queued() && self.spans && !self.minds_channels
    }

    /// Reports whether the queue gives the pod an IMEX channel, if its gang is in one fabric. The pods of
    /// a gang that stays on one node cannot get any: a node has one.
    fn gets_channel(&self) -> bool {
        self.is_managed() && self.gang_scope > Scope::Node
    }

    /// Returns the size of the domain that the pod requires on its node.
    fn required_domain(&self) -> Option<u32> {
        affinity::domain_size(self.scope, self.gpus).filter(|_| !self.may_leave_scope())
    }

    /// Reports whether the queue may start the pod outside its scope.
    fn may_leave_scope(&self) -> bool {
        let queue = self.class.queue.as_ref();
        self.is_queued() && queue.is_some_and(Queue::may_leave_scope)
    }
}

/// An admitted pod.
#[derive(Clone, Debug, Default)]
pub struct Admitted {
    /// The pod as it should be.
    pub pod: Value,
    /// The patch that leads to `pod`; empty if there is nothing to change.
    pub patch: Patch,
    /// The decision; `None` for a pod without a class.
    pub record: Option<Record>,
    /// The decision as text.
    pub decision: Option<String>,
    /// Warnings for the user, one line each.
    pub warnings: Vec<String>,
}

/// Changes `pod` as its class requires.
///
/// # Errors
/// When the pod contradicts the class or itself.
pub fn apply(pod: Value, chosen: &Chosen, settings: &Settings) -> Result<Admitted, Refusal> {
    let about = |refusal: Refusal| refusal.about(&chosen.class.name);
    let mut pod = Editor::new(pod);
    let (report, handover, waiting) = change(&mut pod, chosen, settings).map_err(about)?;
    let record = Record::new(chosen, &report, &handover);
    let decision = record.to_json().map_err(about)?;
    let unwritten = explain::write(&mut pod, &decision).map_err(about)?;
    let mut warnings = vec![explain::summary(chosen)];
    warnings.extend(waiting);
    warnings.extend(chosen.warnings.iter().cloned());
    warnings.extend(unwritten);
    warnings.extend(report.warnings);
    warnings.extend(handover.warning);
    let (pod, patch) = pod.finish();
    Ok(Admitted {
        pod,
        patch,
        record: Some(record),
        decision: Some(decision),
        warnings,
    })
}

/// Hides GPUs from the containers without GPUs of `pod`, which has no class.
///
/// This is needed for pods that target the nodes of the restricted class `class`, and for pods
/// with NVIDIA's runtime, which shows them the GPUs that their images select.
///
/// # Errors
/// When the pod is not shaped like a pod.
pub fn shield(
    pod: Value,
    mut warnings: Vec<String>,
    class: Option<&Class>,
) -> Result<Admitted, Refusal> {
    let mut pod = Editor::new(pod);
    let resource = class.map_or(GPU, |class| &class.resource);
    let hidden = devices::hide(&mut pod, resource)?;
    if !hidden.is_empty() {
        let (name, value) = devices::VOID;
        let why = match class {
            Some(class) => format!("targets nodes of the restricted class {:?}", class.name),
            None => "uses NVIDIA's runtime".to_owned(),
        };
        warnings.push(format!(
            "{name}={value} is set in {}: no GPU is requested there, and the pod {why}",
            hidden.join(", ")
        ));
    }
    let (pod, patch) = pod.finish();
    Ok(Admitted {
        pod,
        patch,
        warnings,
        ..Admitted::default()
    })
}

fn change(
    pod: &mut Editor,
    chosen: &Chosen,
    settings: &Settings,
) -> Result<(environment::Report, Handover, Vec<String>), Refusal> {
    identity::label(pod, labels::CLASS, &chosen.class.name)?;
    identity::label(pod, labels::PROJECT, &chosen.project)?;
    affinity::tolerate(pod, &chosen.class)?;
    let handover = handover::hand_over(pod, chosen, settings)?;
    affinity::require_nodes(pod, chosen)?;
    affinity::prefer_healthy_nodes(pod, chosen)?;
    affinity::prefer_fast_nodes(pod, chosen)?;
    match &chosen.intent.gang {
        Some(gang) => {
            let gang = identity::label_value(gang);
            identity::label(pod, labels::GANG, &gang)?;
            // The queue keeps its gangs together itself, by the GPUs that it has seen free: pod
            // affinity cannot express that, and nobody could remove it later.
            let scope = match handover.keeper {
                Keeper::Affinity => Some(chosen.gang_scope),
                // As close as possible, wherever that is.
                Keeper::Preference => Some(Scope::Cluster),
                Keeper::Scheduler | Keeper::Nobody => None,
            };
            if let Some(scope) = scope.filter(|_| !chosen.is_queued()) {
                affinity::join_gang(pod, scope, &gang, settings)?;
            }
        }
        // The label would attract the gang of that name to this pod.
        None => identity::refuse(pod.document(), &[labels::GANG])?,
    }
    let waiting = gate::gate(pod, chosen)?;
    claim::replace(pod, chosen)?;
    claim::add_channel(pod, chosen)?;
    Ok((environment::set(pod, chosen)?, handover, waiting))
}
