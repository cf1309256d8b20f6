//! Changes of existing pods.

use std::collections::BTreeMap;

use nvlink_api::{
    class::Class,
    pod::{self, list},
};
use nvlink_topology::{GROUP, labels};
use serde_json::Value;

use super::{
    Case, Held, by_hand, daemon, devices, node_name, past_queue, permit,
    reach::{self, Way, selects, tolerates},
    size,
};
use crate::{
    authorize::{Grant, Grants, RELEASE, RESOURCE, Subject},
    decide::{
        Action, gate,
        refusal::{Refusal, Rule},
    },
    view::View,
};

/// A question that must be answered before a change can be decided on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whether the subject may use this class.
    Use(String),
    /// Whether the user may change what the webhook wrote.
    Release,
}

/// The questions that are answered so far.
#[derive(Clone, Debug, Default)]
pub struct Answered {
    /// The right to use classes.
    pub uses: Grants,
    /// The right to change what the webhook wrote.
    pub release: Option<Grant>,
}

/// A change of a pod, and the facts that were read from the pod once.
#[derive(Clone, Debug)]
pub struct Change<'a> {
    action: Action,
    old: &'a Value,
    pod: &'a Value,
    /// The pod's namespace.
    pub namespace: &'a str,
    /// Who makes the change.
    pub subject: &'a Subject,
    held: Held<'a>,
}

impl<'a> Change<'a> {
    /// Returns the change from `old` to `pod` that `subject` makes in `namespace`.
    #[must_use]
    pub fn of(
        action: Action,
        old: &'a Value,
        pod: &'a Value,
        namespace: &'a str,
        subject: &'a Subject,
    ) -> Self {
        Self {
            action,
            old,
            pod,
            namespace,
            subject,
            held: Held::of_running(pod),
        }
    }
}

/// Decides on a change. If a question is returned, it must be answered first.
///
/// # Errors
/// When the change is refused.
pub fn update(
    change: &Change<'_>,
    answered: &Answered,
    view: &View,
) -> Result<Option<Question>, Refusal> {
    let Change {
        pod,
        namespace,
        subject,
        held,
        ..
    } = change;
    size::check(pod)?;
    let (old, case) = (change.old, Case::new(pod, namespace, subject, held, view));
    match change.action {
        Action::Create => Ok(None),
        Action::Update => metadata(case, old, answered),
        Action::Debug => debug(case, old, answered),
        Action::Resize => resize(case, old),
    }
}

fn metadata(case: Case<'_>, old: &Value, answered: &Answered) -> Result<Option<Question>, Refusal> {
    if let Some(what) = changed(old, case.pod)
        && unlock(case, &what, answered)?.is_none()
    {
        return Ok(Some(Question::Release));
    }
    devices::check_change(case, old)?;
    let swapped = images(old) != images(case.pod);
    for class in case.view.restricted() {
        let other = case.class().is_some_and(|name| name != class.name);
        let selector = |pod| case.held.gpus && !other && selects(pod, class);
        let on = || reach::of_running(case, class).filter(|_| swapped);
        let (way, how, moved) = if tolerates(case.pod, class) && !tolerates(old, class) {
            (
                Way::Toleration,
                " (the change adds a toleration of its taint)",
                true,
            )
        } else if selector(case.pod) && !selector(old) {
            (Way::Selector, " (the change selects its nodes)", true)
        } else if let Some(way) = on() {
            // A new image makes another pod of it, so it needs the same right as a new pod.
            let how = " (the change sets another image in a pod that targets its nodes)";
            (way, how, false)
        } else {
            continue;
        };
        if daemon::is_let_in(case, class) {
            continue;
        }
        if moved {
            // On other nodes, its access to the host was not checked.
            devices::check_privileges(case, class, way)?;
        }
        if let Some(class) = permit(case, class, way, how, &answered.uses)? {
            return Ok(Some(Question::Use(class)));
        }
        if moved {
            devices::check_hidden(case.pod, class)?;
        }
    }
    let asked = match by_hand::check(case, Some(old), &answered.uses)? {
        None => past_queue::check_change(case, old, &answered.uses)?,
        asked => asked,
    };
    Ok(asked.map(Question::Use))
}

/// Refuses a change of `what`, which the webhook wrote, unless its subject may make it; `None` if that is
/// not known yet.
fn unlock(case: Case<'_>, what: &str, answered: &Answered) -> Result<Option<()>, Refusal> {
    match &answered.release {
        None => Ok(None),
        Some(Grant::Granted) => Ok(Some(())),
        Some(Grant::Failed(reason)) => Err(Refusal::new(
            Rule::ReviewFailed,
            format!(
                "a change of {what} needs the verb {RELEASE:?}, and your right to it cannot be checked: {reason}; try again"
            ),
        )),
        Some(Grant::Denied) => Err(locked(case, what)),
    }
}

fn locked(case: Case<'_>, what: &str) -> Refusal {
    let user = &case.subject.user.username;
    Refusal::new(
        Rule::Locked,
        format!(
            "{what} of an existing pod cannot be changed: user {user:?} does not have the verb {RELEASE:?} on all {RESOURCE}.{GROUP} in namespace {}; recreate the pod instead",
            case.namespace
        ),
    )
}

/// Returns the first label, annotation or gate of ours that differs, if there is one.
fn changed(old: &Value, new: &Value) -> Option<String> {
    for (map, word) in [("labels", "label"), ("annotations", "annotation")] {
        let (old, new) = (entries(old, map), entries(new, map));
        let mut keys = old.keys().chain(new.keys());
        if let Some(key) = keys.find(|key| old.get(*key) != new.get(*key)) {
            return Some(format!("{word} {key}"));
        }
    }
    (gate::is_queued(old) && !gate::is_queued(new))
        .then(|| format!("the scheduling gate {}", labels::QUEUE_GATE))
}

/// Returns the entries of a map in the pod's metadata whose keys have our prefix.
fn entries<'a>(pod: &'a Value, map: &str) -> BTreeMap<&'a str, &'a Value> {
    let own = |key: &str| {
        key.strip_prefix(GROUP)
            .is_some_and(|rest| rest.starts_with('/'))
    };
    pod::entries(pod, &["metadata", map])
        .map(|(key, value)| (key.as_str(), value))
        .filter(|(key, _)| own(key))
        .collect()
}

/// Returns the images of the pod's containers. Only a change of an image turns an existing pod into
/// another one.
fn images(pod: &Value) -> Vec<Option<&Value>> {
    let containers = pod::containers(pod).into_iter();
    containers
        .map(|container| container.value().get("image"))
        .collect()
}

/// Checks new ephemeral containers. They see the GPUs that their image selects, unless they set
/// `NVIDIA_VISIBLE_DEVICES`.
fn debug(case: Case<'_>, old: &Value, answered: &Answered) -> Result<Option<Question>, Refusal> {
    let known: Vec<_> = ephemeral(old).map(name).collect();
    let added: Vec<_> = ephemeral(case.pod)
        .filter(|one| !known.contains(&name(one)))
        .collect();
    if devices::is_guarded(case) {
        for container in &added {
            devices::check_variables(name(container), container, None)?;
        }
    }
    for class in case.view.restricted() {
        let Some(way) = reach::of_running(case, class) else {
            continue;
        };
        if daemon::is_let_in(case, class) {
            continue;
        }
        for container in &added {
            check_ephemeral(case, container, class, way)?;
        }
        let how = way.how(case.namespace);
        if let Some(class) = permit(case, class, way, &how, &answered.uses)? {
            return Ok(Some(Question::Use(class)));
        }
    }
    Ok(None)
}

fn check_ephemeral(
    case: Case<'_>,
    container: &Value,
    class: &Class,
    way: Way,
) -> Result<(), Refusal> {
    let name = name(container);
    let node = daemon::debugging(node_name(case.pod));
    devices::check_privileged(name, container, class, way, &node)?;
    if devices::hides_gpus(container) {
        return Ok(());
    }
    Err(Refusal::new(
        Rule::EphemeralContainer,
        format!(
            "ephemeral container {name:?} would see the GPUs that its image selects, in a pod that targets nodes of the restricted class {:?}: set NVIDIA_VISIBLE_DEVICES to \"void\" in the container, as in kubectl debug --env=NVIDIA_VISIBLE_DEVICES=void",
            class.name
        ),
    )
    .about(&class.name))
}

fn ephemeral(pod: &Value) -> impl Iterator<Item = &Value> {
    list(pod, &["spec", "ephemeralContainers"])
}

fn name(container: &Value) -> &str {
    pod::text(container, &["name"])
}

/// Refuses a change of the GPUs: they are allocated when the pod starts and cannot change later.
fn resize(case: Case<'_>, old: &Value) -> Result<Option<Question>, Refusal> {
    if gpus(old) == gpus(case.pod) {
        return Ok(None);
    }
    Err(Refusal::new(
        Rule::Resize,
        "a resize cannot change the GPUs of a pod: recreate the pod with the new number",
    ))
}

/// Returns the amounts of NVIDIA's resources, by container.
fn gpus(pod: &Value) -> Vec<BTreeMap<&str, &Value>> {
    let containers = pod::containers(pod).into_iter();
    containers
        .map(|container| {
            pod::entries(container.value(), &["resources", "limits"])
                .map(|(name, amount)| (name.as_str(), amount))
                .filter(|(name, _)| name.starts_with("nvidia.com/"))
                .collect()
        })
        .collect()
}
