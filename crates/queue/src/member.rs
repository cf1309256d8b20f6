//! All that the queue reads from one pod.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::jiff::Timestamp;
use nvlink_admission::decide::Intent;
use nvlink_api::{ci::CiSystem, class::Class, pod};
use nvlink_planner::Name;
use nvlink_topology::{Pattern, Scope, labels, multi_node::local};
use serde_json::Value;

use super::{Gang, Key, Life, Limits, Past, Placement, job, life::created, placement::id};

/// A pod of a class, as the queue sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID: a pod that is created again under the same name is another one.
    pub uid: String,
    /// Its class.
    pub class: String,
    /// Its project.
    pub project: String,
    /// Number of whole GPUs that it requests; at least 1.
    pub gpus: u32,
    /// How close the GPUs must be.
    pub scope: Scope,
    /// How far apart the pods of its gang may be.
    pub gang_scope: Scope,
    /// How its GPUs communicate.
    pub pattern: Pattern,
    /// Its priority; 0 if it has none.
    pub priority: i32,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// How long it may wait in the queue; `None`: forever.
    pub timeout: Option<Duration>,
    /// The CI system whose patience `timeout` is; `None` if its class says how long it may wait.
    pub limited_by: Option<CiSystem>,
    /// Nodes may be made for it: its class is a pool that an autoscaler resizes.
    pub grows: bool,
    /// Its class leaves nodes of each NVLink fabric free as spares.
    pub spares: bool,
    /// Where it is between its creation and its end.
    pub life: Life,
    /// Its gang, if it does not start alone.
    pub gang: Option<Gang>,
    /// What limits its run.
    pub limits: Limits,
    /// The name of its job, for past runs.
    pub job: String,
}

/// Why the queue cannot handle a pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The webhook gave it no class.
    #[error("the pod has no label nvlink-domains.io/class")]
    NoClass,
    /// It requests no GPUs of its class.
    #[error("the pod requests no {0}, the resource of its class")]
    NoGpus(String),
    /// A request is not a whole number.
    #[error(transparent)]
    Quantity(#[from] pod::BadQuantity),
}

/// Reads `pod`, whose class is `class`. `object` is what [`super::object`] names, if it exists.
///
/// # Errors
/// When the queue cannot handle the pod.
pub fn read(pod: &Value, class: &Class, object: Option<&Value>) -> Result<Member, Unreadable> {
    let label = |key| pod::metadata(pod, "labels", key).and_then(Value::as_str);
    let field = |name| pod::at(pod, &["metadata", name]).and_then(Value::as_str);
    let text = |name| field(name).unwrap_or_default().to_owned();
    let namespace = text("namespace");
    let gpus = pod::request(&pod::containers(pod), &class.resource)?;
    if gpus == 0 {
        return Err(Unreadable::NoGpus(class.resource.clone()));
    }
    let decision = Decision::of(pod);
    // The webhook has checked the annotations; a pod that is older than it may have any.
    let intent = Intent::of(pod).unwrap_or_default();
    let queue = class.queue.as_ref();
    let limited_by = CiSystem::of(pod).filter(|_| queue.is_some_and(|it| it.timeout.is_none()));
    let job = object.filter(|object| object.get("kind").and_then(Value::as_str) == Some("Job"));
    let priority = pod::at(pod, &["spec", "priority"]).and_then(Value::as_i64);
    let life = Life::of(pod);
    // One that waits may belong to another gang than it was prepared for.
    let stays = object.is_none() || !matches!(life, Life::Waiting { .. });
    let gang = Gang::of(pod, &intent, object, &class.resource);
    let (scope, gang_scope) = scopes(&decision, &intent, class);
    Ok(Member {
        name: text("name"),
        uid: text("uid"),
        class: label(labels::CLASS).ok_or(Unreadable::NoClass)?.to_owned(),
        project: label(labels::PROJECT).unwrap_or(&namespace).to_owned(),
        gpus,
        scope,
        gang_scope,
        pattern: decision.pattern.or(intent.pattern).unwrap_or(match &gang {
            None if gpus == 1 => Pattern::None,
            _ => Pattern::AllReduce,
        }),
        priority: priority
            .and_then(|priority| i32::try_from(priority).ok())
            .unwrap_or_default(),
        created: created(pod),
        timeout: queue.and_then(|queue| queue.timeout_of(limited_by)),
        limited_by,
        grows: queue.is_some_and(|queue| queue.max_placeholder_pods > 0),
        spares: queue.is_some_and(|queue| queue.spare_nodes > 0),
        life,
        gang: gang.and_then(|gang| {
            if stays {
                released(pod, gang)
            } else {
                Some(gang)
            }
        }),
        limits: Limits::of(pod, job),
        job: job::name(pod),
        namespace,
    })
}

/// Returns how far apart the GPUs of the pod and the pods of its gang may be: as its decision
/// says, else its annotations, else its class.
fn scopes(decision: &Decision, intent: &Intent, class: &Class) -> (Scope, Scope) {
    let of_gpus = decision.scope.map(local).or(intent.scope);
    let decided = decision.gang_scope;
    let decided = decided.or_else(|| decision.scope.and_then(Scope::of_pods));
    let of_pods = decided.or(intent.gang_scope);
    (
        of_gpus.unwrap_or(class.scope),
        of_pods.unwrap_or(class.gang_scope),
    )
}

/// Returns the gang of a pod that was released, `gang` being what it says without its object.
fn released(pod: &Value, gang: Gang) -> Option<Gang> {
    match Placement::of(pod).and_then(|placement| placement.gang) {
        Some(name) if name.is_empty() => None,
        Some(name) => Some(Gang { name, ..gang }),
        None => Some(gang),
    }
}

impl Member {
    /// Returns the id of its job: that of its gang, or of the pod. Members of a gang share project
    /// and class, so that no name that an author chooses reaches the pods of others.
    #[must_use]
    pub fn job_id(&self) -> Name {
        let (project, class) = (&self.project, &self.class);
        match &self.gang {
            Some(gang) => id(
                &self.namespace,
                &format!("{} of {project} in {class}", gang.name),
            ),
            None => id(&self.namespace, &self.name),
        }
    }

    /// Returns the key of its past runs.
    #[must_use]
    pub fn key(&self) -> Key {
        Key {
            project: self.project.clone(),
            job: self.job.clone(),
            class: self.class.clone(),
        }
    }

    /// Adds the run of a pod that has ended to the past ones. Returns whether it says anything.
    pub fn record(&self, past: &mut Past) -> bool {
        // Also of a pod that failed: otherwise failing would hide that it ran for longer.
        let longer = |ran: &Duration| self.limits.expected.is_some_and(|claimed| *ran > claimed);
        let failed = match &self.life {
            Life::Ended { ran, .. } => ran.filter(longer),
            _ => None,
        };
        let ran = self.ran();
        if let Some((ran, claimed)) = ran.or(failed).zip(self.limits.expected) {
            past.claimed(&self.project, ran, claimed);
        }
        if let Some(ran) = ran {
            past.add(self.key(), ran, self.gpus);
        }
        ran.or(failed).is_some()
    }

    /// Returns how long the pod ran, if that says how long the next run of the same job takes: it
    /// succeeded, or somebody deleted it while it ran, as GitLab Runner does at the end of a job.
    #[must_use]
    pub fn ran(&self) -> Option<Duration> {
        match &self.life {
            Life::Ended {
                succeeded: true,
                ran,
            }
            | Life::Deleting { ran, .. } => *ran,
            _ => None,
        }
    }
}

/// Returns the GPUs of each class that each project holds: those of pods on a node.
#[must_use]
pub fn held<'a>(
    members: impl IntoIterator<Item = &'a Member>,
) -> BTreeMap<(&'a str, &'a str), u32> {
    let mut held = BTreeMap::new();
    for member in members {
        if member.life.node().is_some() {
            let key = (member.class.as_str(), member.project.as_str());
            let gpus: &mut u32 = held.entry(key).or_default();
            *gpus = gpus.saturating_add(member.gpus);
        }
    }
    held
}

/// What the webhook decided about the pod, of its annotation.
#[derive(Default)]
struct Decision {
    scope: Option<Scope>,
    gang_scope: Option<Scope>,
    pattern: Option<Pattern>,
}

impl Decision {
    fn of(pod: &Value) -> Self {
        let text = pod::metadata(pod, "annotations", labels::DECISION).and_then(Value::as_str);
        let decision: Option<Value> = text.and_then(|text| serde_json::from_str(text).ok());
        let field = |name: &str| decision.as_ref()?.get(name)?.as_str();
        Self {
            scope: field("scope").and_then(|scope| scope.parse().ok()),
            gang_scope: field("gangScope").and_then(|scope| scope.parse().ok()),
            pattern: field("pattern").and_then(|pattern| pattern.parse().ok()),
        }
    }
}
