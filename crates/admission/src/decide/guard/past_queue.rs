//! GPU pods that would use the nodes of a class that queues without waiting in its queue: they name
//! their node, or they select its nodes or tolerate its taint without naming the class. Such a pod would
//! start on GPUs that the queue has given to another one, outside the quota of its project.
//!
//! Only the webhook has this rule: the policies know no nodes. A class that names no nodes, and one that
//! does not queue on the same nodes, are not protected by it: keep pods off by the taint of a restricted
//! class.

use nvlink_api::{class::Class, pod};
use serde_json::Value;

use super::{Case, is_mirror, node_name, reach};
use crate::{
    authorize::{ALL, Grant, Grants},
    decide::{
        denial,
        refusal::{Refusal, Rule},
    },
};

/// How a pod gets past a queue.
enum Way {
    /// It names its node, which no waiting pod may.
    Node,
    /// It names no class.
    Unnamed,
}

/// Checks a new pod, which gets the class `taken`, if any. If a class is returned, the right to it must
/// be checked first.
pub(in crate::decide) fn check(
    case: Case<'_>,
    taken: Option<&Class>,
    grants: &Grants,
) -> Result<Option<String>, Refusal> {
    let found = found(case, taken);
    found.map_or(Ok(None), |(class, way)| refuse(case, class, way, grants))
}

fn refuse(
    case: Case<'_>,
    class: &Class,
    way: Way,
    grants: &Grants,
) -> Result<Option<String>, Refusal> {
    match grants.get(ALL) {
        None => Ok(Some(ALL.to_owned())),
        Some(Grant::Granted) => Ok(None),
        Some(Grant::Failed(reason)) => Err(denial::unknown(ALL, reason)),
        Some(Grant::Denied) => {
            let message = denial::past_queue(case.subject, class, matches!(way, Way::Node));
            Err(Refusal::new(Rule::PastQueue, message).about(&class.name))
        }
    }
}

/// Checks a change of a pod without a class, which a gate of somebody else may still hold back: until it
/// is gone, its author may narrow the nodes.
pub(super) fn check_change(
    case: Case<'_>,
    old: &Value,
    grants: &Grants,
) -> Result<Option<String>, Refusal> {
    if !case.held.gpus || case.held.label.is_some() {
        return Ok(None);
    }
    let before = Case { pod: old, ..case };
    let mut queues = case.view.queueing();
    let moved = queues.find(|class| uses(case, class) && !uses(before, class));
    moved.map_or(Ok(None), |class| refuse(case, class, Way::Unnamed, grants))
}

/// Returns the class whose queue the pod would get past, and how.
fn found<'a>(case: Case<'a>, taken: Option<&'a Class>) -> Option<(&'a Class, Way)> {
    if !case.held.gpus || is_mirror(case.pod, case.subject) {
        return None;
    }
    match taken {
        Some(class) if class.queue.is_some() && !node_name(case.pod).is_empty() => {
            Some((class, Way::Node))
        }
        Some(_) => None,
        None => {
            let mut queues = case.view.queueing();
            let class = queues.find(|class| uses(case, class))?;
            Some((class, Way::Unnamed))
        }
    }
}

/// Reports whether the pod requests GPUs of `class` and targets its nodes.
fn uses(case: Case<'_>, class: &Class) -> bool {
    let requests = pod::request(&case.held.containers, &class.resource);
    let node = node_name(case.pod);
    requests.is_ok_and(|gpus| gpus > 0)
        && (class.restricted && reach::tolerates(case.pod, class)
            || case.view.is_node_of(node, class)
            || reach::selects(case.pod, class))
}
