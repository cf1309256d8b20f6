//! The decision on a pod: which class it is in, and what that changes in it.
//!
//! Pure: a pod as raw JSON and a [`View`](crate::cluster::view::View) go in, a patch comes out. It is a
//! function of the pod's final state: what is wanted is compared with what is
//! there, so that a second pass over the patched pod changes nothing.

use nvlink_topology::{Pattern, Scope, labels};
use serde_json::Value;
use std::sync::Arc;

use crate::{
    class::{Class, GPU},
    decide::patch::{Editor, Patch},
};

pub mod affinity;
mod choose;
mod classify;
pub(crate) mod denial;
pub(crate) mod devices;
mod environment;
mod explain;
mod facts;
pub mod guard;
mod handover;
mod identity;
pub(crate) mod intent;
pub mod patch;
pub mod pod;
mod project;
pub mod quantity;
mod refusal;

use handover::Handover;

pub use choose::{Choice, choose};
pub use explain::{Record, prospects};
pub use facts::Facts;
pub use intent::Intent;
pub use refusal::{Refusal, Rule};

/// What is done to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Create,
    /// Its metadata or spec change.
    Update,
    /// It gets ephemeral containers.
    Debug,
    /// Its containers' resources change.
    Resize,
}

/// What an administrator decides for the whole cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Node label that names the rack.
    pub rack_label: String,
    /// Node label that names the zone.
    pub zone_label: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rack_label: "topology.kubernetes.io/rack".to_owned(),
            zone_label: "topology.kubernetes.io/zone".to_owned(),
        }
    }
}

/// How a pod came to its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub enum By {
    /// The pod names it.
    Annotation,
    /// The namespace gives it to pods that name none.
    Namespace,
    /// The class claims such pods.
    AppliesTo,
}

/// The class of a pod, and what was read from the pod on the way.
#[derive(Clone, Debug)]
pub struct Chosen {
    pub class: Arc<Class>,
    /// How the pod came to it.
    pub by: By,
    /// The project that the pod belongs to.
    pub project: String,
    /// Whole GPUs that the pod holds.
    pub gpus: u32,
    pub pattern: Pattern,
    /// The pattern is a guess.
    pub guess: bool,
    /// Where the pattern comes from, short.
    pub pattern_from: String,
    /// The job has other pods, with which this one talks over the network.
    pub spans: bool,
    /// Its ranks start over ssh, and do not see the variables of its containers.
    pub over_ssh: bool,
    /// It minds the IMEX channels that NVLink between nodes needs.
    pub minds_channels: bool,
    /// How close they must be.
    pub scope: Scope,
    /// What the pod says about itself.
    pub intent: Intent,
    /// What happened on the way, for the user.
    pub warnings: Vec<String>,
}

/// A pod that is let in.
#[derive(Clone, Debug, Default)]
pub struct Admitted {
    /// The pod as it should be.
    pub pod: Value,
    /// What makes it so; empty: nothing to change.
    pub patch: Patch,
    /// What was decided; `None` for a pod without a class.
    pub record: Option<Record>,
    /// The same as text.
    pub decision: Option<String>,
    /// Lines for the user.
    pub warnings: Vec<String>,
}

/// Changes `pod` as its class wants it.
///
/// # Errors
/// When the pod contradicts the class or itself.
pub fn apply(pod: Value, chosen: &Chosen, settings: &Settings) -> Result<Admitted, Refusal> {
    let about = |refusal: Refusal| refusal.about(&chosen.class.name);
    let mut pod = Editor::new(pod);
    let (report, handover) = change(&mut pod, chosen, settings).map_err(about)?;
    let record = Record::new(chosen, &report, &handover);
    let decision = record.to_json().map_err(about)?;
    let unwritten = explain::write(&mut pod, &decision).map_err(about)?;
    let mut warnings = vec![explain::summary(chosen)];
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

/// Hides GPUs from the containers of `pod`, which is in no class, that hold
/// none: it is for the nodes of the restricted class `class` all the same, or
/// has a runtime that shows it what its images name.
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
            Some(class) => format!("is for nodes of the restricted class {:?}", class.name),
            None => "has NVIDIA's runtime".to_owned(),
        };
        warnings.push(format!(
            "{name}={value} is set in {}: no GPU is asked for there, and the pod {why}",
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
) -> Result<(environment::Report, Handover), Refusal> {
    identity::label(pod, labels::CLASS, &chosen.class.name)?;
    identity::label(pod, labels::PROJECT, &chosen.project)?;
    affinity::tolerate(pod, &chosen.class)?;
    let handover = handover::hand_over(pod, chosen, settings)?;
    affinity::require_nodes(pod, chosen)?;
    match &chosen.intent.gang {
        Some(gang) => {
            let gang = identity::label_value(gang);
            identity::label(pod, labels::GANG, &gang)?;
            if !handover.done {
                affinity::join_gang(pod, chosen.scope, &gang, settings)?;
            }
        }
        // It would draw the gang of that name to this pod.
        None => identity::refuse(pod.document(), &[labels::GANG])?,
    }
    Ok((environment::set(pod, chosen)?, handover))
}
