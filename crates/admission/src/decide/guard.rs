//! Rules against ways around a class. They apply to all pods, with or without a class.
//!
//! There are two kinds of rules. Some require a right: a pod that targets the nodes of a
//! restricted class without naming the class needs the same right as a pod that names it
//! (`reach`), and so does a pod whose author adds a toleration of the taint of any class
//! (`by_hand`). GPU pods must not get past the queue of a class (`past_queue`). The other rules apply to everybody: pods must not bypass the device plugin to get
//! GPUs (`devices`), and only the webhook may write its labels and annotations (`reserved`,
//! [`update`]).
//!
//! The nodes of a restricted class are those with the taint
//! `nvlink-domains.io/class=CLASS:NoSchedule`, which an administrator sets. The taint keeps off
//! all pods that the scheduler places, whatever their selectors are. The rules here prevent pods
//! from tolerating the taint and from bypassing the scheduler.
//! The policies that [`crate::policies`] prints express the same rules in CEL.

use std::sync::Arc;

use nvlink_api::{class::Class, patch::Editor, pod};
use serde_json::Value;

use super::refusal::Refusal;
use crate::{
    authorize::{Grant, Grants, Subject},
    decide::{Admitted, denial},
    view::View,
};

mod by_hand;
pub(crate) mod daemon;
mod devices;
mod held;
pub(super) mod past_queue;
mod pinned;
mod reach;
mod reserved;
pub(super) mod size;
mod update;

pub use devices::{
    ANNOTATIONS, CAPABILITIES, DEVICE_MOUNTS, HARMLESS, HOST_PATHS, KAI_CONFIG_MAPS, OPEN_DEVICES,
    VARIABLES,
};
pub(super) use held::Held;
use reach::Way;
pub use size::{LONGEST_PATH, MOST_PARTS};
pub use update::{Answered, Change, Question, update};

/// A pod, its namespace, its user and service account, and the existing classes.
#[derive(Clone, Copy)]
pub(super) struct Case<'a> {
    pod: &'a Value,
    namespace: &'a str,
    subject: &'a Subject,
    held: &'a Held<'a>,
    view: &'a View,
    /// The namespace's default class, if the pod has GPUs and names no class.
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

    /// Returns the class that the pod requests.
    fn wanted(self) -> Option<&'a str> {
        self.held.named.or(self.default)
    }

    /// Returns the class that the pod requests or already has.
    fn class(self) -> Option<&'a str> {
        self.wanted().or(self.held.label)
    }
}

/// Prepares a new pod for the decision: removes what the queue wrote into the pod that it was copied
/// from, and writes which classes' nodes it stays off by naming its node.
pub(crate) fn prepare(pod: Value, subject: &Subject, view: &View) -> Result<Admitted, Refusal> {
    let is_mirror = is_mirror(&pod, subject);
    let mut editor = Editor::new(pod);
    let mut warnings = Vec::new();
    if !is_mirror {
        warnings.extend(reserved::strip(&mut editor));
        pinned::exclude(&mut editor, view)?;
    }
    let (pod, patch) = editor.finish();
    Ok(Admitted {
        pod,
        patch,
        warnings,
        ..Admitted::default()
    })
}

/// Checks a new pod. If a class is returned, the right to it must be checked first.
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

/// Returns the restricted classes whose nodes the pod targets.
pub(super) fn reached(case: Case<'_>) -> impl Iterator<Item = &Arc<Class>> {
    let restricted = case.view.restricted().iter();
    restricted.filter(move |class| reach::of_pod(case, class).is_some())
}

/// Refuses the pod, which reaches `class` by `way`, unless its subject may use the class.
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

/// Reports whether the pod is the mirror pod of a static pod, which a kubelet runs from a file.
/// The kubelet runs the static pod even if the mirror pod is refused, and it may create mirror
/// pods for its own node only.
pub(super) fn is_mirror(pod: &Value, subject: &Subject) -> bool {
    let user = &subject.user;
    let node = user.username.strip_prefix("system:node:");
    pod::metadata(pod, "annotations", "kubernetes.io/config.mirror").is_some()
        && user.groups.iter().any(|group| group == "system:nodes")
        && node.is_some_and(|node| !node.is_empty() && node_name(pod) == node)
}

/// Reports whether the pod uses NVIDIA's runtime and the rules on devices apply to it.
pub(super) fn runs_nvidia(case: Case<'_>) -> bool {
    devices::is_guarded(case) && devices::runtime(case.pod).is_some()
}

/// Returns the pod's `nodeName`, which bypasses the scheduler; empty if there is none.
fn node_name(pod: &Value) -> &str {
    pod::text(pod, &["spec", "nodeName"])
}
