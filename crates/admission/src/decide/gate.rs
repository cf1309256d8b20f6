//! The scheduling gate of pods that wait in the queue.
//!
//! Kubernetes accepts new gates only in new pods, and refuses a gated pod that names its node. Nothing
//! that the author of a pod writes exempts it: a class whose pods wait elsewhere has another integration,
//! and no queue. Beside the gate of somebody else stands ours, and the queue plans the pod once the other
//! one is gone.

use json_patch::jsonptr::Pointer;
use nvlink_api::{
    ci::CiSystem,
    class::{Class, duration},
    patch::Editor,
    pod,
};
use nvlink_topology::labels;
use serde_json::{Value, json};

use super::{Chosen, guard::size, handover, refusal::Refusal};

/// The path of a pod's gates.
pub const PATH: &Pointer = Pointer::from_static("/spec/schedulingGates");

/// Whether a new pod waits in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Its class has no queue.
    Unqueued,
    /// It waits.
    Queued,
    /// It does not, although its class queues, for this reason.
    Elsewhere(String),
}

impl Gating {
    /// Returns whether `pod`, which is new and gets `class`, waits.
    pub(super) fn of(pod: &Value, class: &Class) -> Self {
        if class.queue.is_none() {
            return Self::Unqueued;
        }
        // The gate came from an earlier call. Whoever set the pod's other gates since then, the
        // queue releases the pod from its own gate.
        if is_queued(pod) {
            return Self::Queued;
        }
        match pod::text(pod, &["spec", "nodeName"]) {
            "" => Self::Queued,
            _ => Self::Elsewhere("it names its node".to_owned()),
        }
    }
}

/// Returns the names of the pod's scheduling gates.
pub fn gates(pod: &Value) -> impl Iterator<Item = &str> {
    pod::list(pod, &["spec", "schedulingGates"]).filter_map(|gate| gate.get("name")?.as_str())
}

/// Reports whether the pod has the gate of the queue.
pub fn is_queued(pod: &Value) -> bool {
    gates(pod).any(|gate| gate == labels::QUEUE_GATE)
}

/// Adds the gate to a pod that waits, unless it has it. Returns warnings for the user.
pub(super) fn gate(editor: &mut Editor, chosen: &Chosen) -> Result<Vec<String>, Refusal> {
    match &chosen.gating {
        Gating::Unqueued => return Ok(Vec::new()),
        Gating::Elsewhere(why) => {
            return Ok(vec![format!(
                "the pod does not wait in the queue of class {:?}, because {why}",
                chosen.class.name
            )]);
        }
        Gating::Queued => {}
    }
    if !is_queued(editor.document()) {
        let gate = json!({"name": labels::QUEUE_GATE});
        editor.append(PATH, gate)?;
    }
    size::check_room(editor.document())?;
    Ok(warnings(editor.document(), chosen))
}

/// Returns what a user should know about a pod that waits.
fn warnings(pod: &Value, chosen: &Chosen) -> Vec<String> {
    let Chosen {
        class,
        intent,
        namespace,
        ..
    } = chosen;
    let system = CiSystem::of(pod);
    let queue = class.queue.as_ref();
    let timeout = queue.and_then(|queue| queue.timeout_of(system));
    let longest = timeout.map_or_else(String::new, |timeout| {
        format!(" for at most {}", duration::shown(timeout))
    });
    let how = match pod::text(pod, &["metadata", "name"]) {
        "" => format!("kubectl nvlink status -n {namespace}"),
        name => format!("kubectl nvlink explain {name} -n {namespace}"),
    };
    let mut lines = vec![format!(
        "the pod waits in the queue{longest} until its GPUs are free; {how} shows its position and expected start"
    )];
    if let Some(gate) = gates(pod).find(|gate| *gate != labels::QUEUE_GATE) {
        let gate: String = gate.chars().take(63).collect();
        lines.push(format!(
            "the queue looks for its GPUs once the scheduling gate {gate:?} is gone"
        ));
    }
    if let Some(scheduler) = handover::placer(pod) {
        lines.push(format!(
            "the pod is one of {scheduler}, but class {:?} queues and does not leave its pods to {scheduler}: the pod waits in both queues",
            class.name
        ));
    }
    lines.extend(system.and_then(|system| of_system(system, class)));
    // The owner of a pod may know the size.
    let alone = pod::list(pod, &["metadata", "ownerReferences"])
        .next()
        .is_none();
    if let (Some(gang), None, true) = (&intent.gang, intent.gang_size, alone) {
        lines.push(format!(
            "nothing says how many pods the gang {:?} has, so it never starts: set annotation {}",
            super::identity::shown(gang),
            labels::GANG_SIZE
        ));
    }
    lines
}

/// Returns what a user should know about the time that the CI system of a pod gives it.
fn of_system(system: CiSystem, class: &Class) -> Option<String> {
    let (name, setting) = (system.name(), system.setting());
    let gives_up = duration::shown(system.gives_up());
    match class.queue.as_ref()?.timeout {
        None => Some(format!(
            "{name} gives up after {gives_up}, so its pods wait for at most {}: to let them wait longer, raise {setting} and set placement.queueTimeout of class {:?}",
            duration::shown(system.waits()),
            class.name
        )),
        Some(timeout) if timeout >= system.gives_up() => Some(format!(
            "{name} gives up after {gives_up} unless {setting} is raised, but class {:?} lets pods wait for {}",
            class.name,
            duration::shown(timeout)
        )),
        Some(_) => None,
    }
}
