//! Ways around a class, closed: what a pod may not do, whether it names a class or not.
//!
//! Two kinds of rules. Some are about a right: a pod that *reaches* for the
//! nodes of a restricted class in another way than by naming it needs the same
//! right as one that names it (`reach`), and so does one that tolerates the
//! taint of any class by hand (`by_hand`). The others hold for everybody: GPUs
//! are not taken past the device plugin (`devices`), and what the webhook
//! writes is written by nobody else (`reserved`, [`update`]).
//!
//! The nodes of a restricted class are those with the taint
//! `nvlink-domains.io/class=CLASS:NoSchedule`, which its administrator sets.
//! The taint keeps out what the scheduler places, whatever its selectors say;
//! the rules here keep pods from tolerating it and from passing the scheduler by.
//! The policies that [`crate::policies`] prints hold the same rules in CEL.

use std::sync::Arc;

use serde_json::Value;

use super::refusal::Refusal;
use crate::{
    authorize::{Grant, Grants, Subject},
    class::Class,
    cluster::view::View,
    decide::{denial, pod},
};

mod by_hand;
pub(crate) mod daemon;
mod devices;
mod held;
mod reach;
mod reserved;
mod size;
mod update;

pub use devices::{
    ANNOTATIONS, CAPABILITIES, DEVICE_MOUNTS, HARMLESS, HOST_PATHS, KAI_CONFIG_MAPS, OPEN_DEVICES,
    VARIABLES,
};
pub(super) use held::Held;
use reach::Way;
pub use size::{LONGEST_PATH, MOST_PARTS};
#[cfg(test)]
pub(crate) use update::GATE;
pub use update::{Answered, Change, Question, update};

/// A pod, where it is, who stands behind it, and the classes that there are.
#[derive(Clone, Copy)]
pub(super) struct Case<'a> {
    pod: &'a Value,
    namespace: &'a str,
    subject: &'a Subject,
    held: &'a Held<'a>,
    view: &'a View,
    /// The class that its namespace gives it, because it holds GPUs and names none.
    default: Option<&'a str>,
}

impl<'a> Case<'a> {
    pub(super) fn new(
        pod: &'a Value,
        namespace: &'a str,
        subject: &'a Subject,
        held: &'a Held<'a>,
        view: &'a View,
    ) -> Self {
        let default = view.default_class(namespace);
        Self {
            pod,
            namespace,
            subject,
            held,
            view,
            default: default.filter(|_| held.takes_default()),
        }
    }

    /// The class that the pod asks for.
    fn wanted(self) -> Option<&'a str> {
        self.held.named.or(self.default)
    }

    /// The class that the pod asks for or was given.
    fn class(self) -> Option<&'a str> {
        self.wanted().or(self.held.label)
    }
}

/// Checks a pod that is created. A class that comes back must be asked about first.
pub(super) fn create(case: Case<'_>, grants: &Grants) -> Result<Option<String>, Refusal> {
    size::check(case.pod)?;
    reserved::check(case)?;
    devices::check(case)?;
    for class in case.view.restricted() {
        let Some(way) = reach::of_pod(case, class) else {
            continue;
        };
        if daemon::is_let_in(case, class) {
            continue;
        }
        devices::check_privileges(case, class, way)?;
        if let Some(question) = permit(case, class, way, &way.how(case.namespace), grants)? {
            return Ok(Some(question));
        }
    }
    by_hand::check(case, None, grants)
}

/// The restricted classes whose nodes the pod reaches for.
pub(super) fn reached(case: Case<'_>) -> impl Iterator<Item = &Arc<Class>> {
    let restricted = case.view.restricted().iter();
    restricted.filter(move |class| reach::of_pod(case, class).is_some())
}

/// Refuses the pod, which comes to `class` by `way`, unless its subject may use it.
fn permit(
    case: Case<'_>,
    class: &Class,
    way: Way,
    how: &str,
    grants: &Grants,
) -> Result<Option<String>, Refusal> {
    if super::project::is_listed(class, case.subject, case.pod, case.namespace) {
        return Ok(None);
    }
    match grants.get(&class.name) {
        None => Ok(Some(class.name.clone())),
        Some(Grant::Granted) => Ok(None),
        Some(Grant::Failed(reason)) => Err(denial::unknown(&class.name, reason)),
        Some(Grant::Denied) => {
            let remedy = way.is_unnamed().then(|| daemon::remedy(case, class));
            let Case {
                subject,
                pod,
                namespace,
                ..
            } = case;
            let message = denial::denial(subject, class, how, pod, namespace, remedy);
            Err(Refusal::new(way.rule(), message).about(&class.name))
        }
    }
}

/// Whether the pod is the API's image of one that a kubelet runs from a file.
/// The kubelet runs it whether the image is let in or not, and may create such
/// images of its own node alone.
pub(super) fn is_mirror(pod: &Value, subject: &Subject) -> bool {
    let user = &subject.user;
    let node = user.username.strip_prefix("system:node:");
    pod::metadata(pod, "annotations", "kubernetes.io/config.mirror").is_some()
        && user.groups.iter().any(|group| group == "system:nodes")
        && node.is_some_and(|node| !node.is_empty() && node_name(pod) == node)
}

/// Whether the pod has NVIDIA's runtime, and GPUs are guarded from it.
pub(super) fn runs_nvidia(case: Case<'_>) -> bool {
    devices::is_guarded(case) && devices::runtime(case.pod).is_some()
}

/// The node that the pod names, past the scheduler.
fn node_name(pod: &Value) -> &str {
    let name = pod.get("spec").and_then(|spec| spec.get("nodeName"));
    name.and_then(Value::as_str).unwrap_or_default()
}
