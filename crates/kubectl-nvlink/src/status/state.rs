//! The state of the queue, read from the objects of the cluster. Pure.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use nvlink_admission::decide::Settings;
use nvlink_api::{
    class::{Class, GPU},
    crd::{DomainClassSpec, domain_class::ScopeLabels},
    pod,
};
use nvlink_planner::{Job, Millis, Name};
use nvlink_queue::{Life, Member, Past, Source, created, notice::REFUSED, placement::id, read};
use nvlink_topology::labels;
use serde_json::Value;

use super::{
    node::{self, Node},
    objects::Objects,
    plan::Plan,
};

/// The state of the queue, as far as it is known.
pub struct State<'a> {
    pub(super) objects: &'a Objects,
    pub(super) now: Millis,
    /// The classes, or why one cannot be used.
    pub(super) classes: BTreeMap<String, Result<Class, String>>,
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) pods: BTreeMap<Name, Pod<'a>>,
    /// The planner with all of this; `None` if something that it needs could not be read.
    pub(super) plan: Option<Plan>,
    /// What could not be read, one line each.
    pub(super) notes: Vec<String>,
}

/// A pod that requests GPUs or has a class.
pub(super) struct Pod<'a> {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) value: &'a Value,
    pub(super) life: Life,
    pub(super) gpus: u32,
    pub(super) project: String,
    pub(super) priority: i32,
    /// When it was created.
    pub(super) created: Option<Millis>,
    /// What the queue reads from it, if it has a class.
    pub(super) member: Option<Member>,
    /// When it is expected to end, if it has started.
    pub(super) end: Option<End>,
}

/// When a pod is expected to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) likely: Millis,
    pub(super) latest: Millis,
    pub(super) source: Source,
}

impl<'a> State<'a> {
    /// Reads `objects` as of `now`.
    #[must_use]
    pub fn new(objects: &'a Objects, now: Timestamp) -> Self {
        let classes = classes(objects);
        let mut pods = pods(objects, &classes);
        let mut past = Past::default();
        for pod in pods.values() {
            if let Some(member) = &pod.member {
                member.record(&mut past);
            }
        }
        for pod in pods.values_mut() {
            pod.end = pod.expected_end(&past, now);
        }
        let nodes = node::all(objects, &classes);
        let mut state = Self {
            objects,
            now: now.as_millisecond(),
            classes,
            nodes,
            pods,
            plan: None,
            notes: notes(objects),
        };
        let mut plan = Plan::new(&state, &settings(objects));
        for (name, room) in plan.planner.rooms(state.now) {
            if let Some(node) = state.nodes.get_mut(&*name) {
                node.room = Some(room);
            }
        }
        state.plan = Some(plan).filter(|_| state.notes.is_empty());
        state.notes.extend(leaderless(objects, now));
        state
    }

    /// Returns the class `name`, if it is known and can be used.
    pub(super) fn class(&self, name: &str) -> Option<&Class> {
        self.classes.get(name)?.as_ref().ok()
    }

    /// Returns why the leader could not start a job that has its turn, if it said so.
    pub(super) fn refused(&self, job: &Job) -> Option<&str> {
        let mut members = job.members.iter();
        members.find_map(|member| {
            let told = self.pods.get(&member.pod)?.told("reason")?;
            told.strip_prefix(REFUSED)?.strip_prefix(": ")
        })
    }

    /// Returns a pod of an owner of this kind, which is in lower case: one that waits, if any does, else one
    /// that runs, if any does.
    pub(super) fn pod_of(&self, namespace: &str, kind: &str, name: &str) -> Option<&Pod<'a>> {
        let owns =
            |of_kind: &str, of_name: &str| of_kind.eq_ignore_ascii_case(kind) && of_name == name;
        let owned = |pod: &&Pod<'_>| {
            let mut owners = pod::list(pod.value, &["metadata", "ownerReferences"]);
            pod.namespace == namespace
                && (owners.any(|one| owns(pod::text(one, &["kind"]), pod::text(one, &["name"])))
                    || nvlink_queue::object(pod.value).is_some_and(|one| owns(one.kind, &one.name)))
        };
        let rank = |pod: &&Pod<'_>| match pod.life {
            Life::Waiting { .. } => 0,
            _ if pod.life.is_live() => 1,
            _ => 2,
        };
        self.pods.values().filter(owned).min_by_key(rank)
    }

    /// Returns a pod by its namespace and name.
    pub(super) fn pod(&self, namespace: &str, name: &str) -> Option<&Pod<'a>> {
        self.pods.get(&*id(namespace, name))
    }
}

impl Pod<'_> {
    /// Returns an annotation that the queue's leader wrote.
    pub(super) fn told(&self, what: &str) -> Option<&str> {
        let key = format!("{}{what}", labels::QUEUE_STATE);
        pod::metadata(self.value, "annotations", &key)?.as_str()
    }

    /// Returns the id of its job: its gang, or the pod itself.
    pub(super) fn job(&self) -> Name {
        let id = || id(&self.namespace, &self.name);
        self.member.as_ref().map_or_else(id, Member::job_id)
    }

    /// Returns where the queue put the pod.
    pub(super) fn placement(&self) -> Option<Value> {
        let placement: Value = serde_json::from_str(self.told("placement")?).ok()?;
        placement.is_object().then_some(placement)
    }

    /// Returns the name of its class.
    pub(super) fn class(&self) -> Option<&str> {
        pod::metadata(self.value, "labels", labels::CLASS)?.as_str()
    }

    fn expected_end(&self, past: &Past, now: Timestamp) -> Option<End> {
        let member = self.member.as_ref()?;
        let start = match &self.life {
            Life::Running { since, .. } => since.or(member.created)?,
            Life::Bound { .. } | Life::Released => now,
            _ => return None,
        };
        let estimate = member.limits.estimate(
            past.spread(&member.key()),
            past.worth(&member.project),
            start,
        )?;
        let after = |span: Duration| Some(start.checked_add(span).ok()?.as_millisecond());
        Some(End {
            likely: after(estimate.likely)?,
            latest: after(estimate.longest)?,
            source: estimate.source,
        })
    }
}

/// Returns the labels by which the webhook judges scopes, from the status of a class.
fn settings(objects: &Objects) -> Settings {
    let mut classes = objects.classes.objects.values();
    let labels = classes.find_map(ScopeLabels::of);
    labels.unwrap_or_default().into()
}

fn classes(objects: &Objects) -> BTreeMap<String, Result<Class, String>> {
    let read = |(key, object): (&(String, String), &Value)| {
        let spec = object.get("spec").unwrap_or(&Value::Null);
        let class = Class::read(&key.1, spec).map_err(|broken| broken.reason);
        (key.1.clone(), class)
    };
    objects.classes.objects.iter().map(read).collect()
}

fn pods<'a>(
    objects: &'a Objects,
    classes: &BTreeMap<String, Result<Class, String>>,
) -> BTreeMap<Name, Pod<'a>> {
    // Where classes cannot be read, their pods count as those of a class with all defaults.
    let plain = Class::new("", &DomainClassSpec::default()).ok();
    let mut pods = BTreeMap::new();
    for ((namespace, name), value) in &objects.pods.objects {
        let label = |key| pod::metadata(value, "labels", key).and_then(Value::as_str);
        let class = label(labels::CLASS);
        let known = class.and_then(|class| classes.get(class)?.as_ref().ok());
        let owner = nvlink_queue::object(value)
            .and_then(|object| objects.owners.get(&(namespace.clone(), object)));
        let member = class.and(known.or(plain.as_ref()));
        let member = member.and_then(|class| read(value, class, owner).ok());
        let gpus = member.as_ref().map(|member| member.gpus);
        let gpus = gpus.or_else(|| pod::request(&pod::containers(value), GPU).ok());
        let priority = pod::at(value, &["spec", "priority"]).and_then(Value::as_i64);
        let pod = Pod {
            namespace: namespace.clone(),
            name: name.clone(),
            value,
            life: Life::of(value),
            gpus: gpus.unwrap_or(0),
            project: label(labels::PROJECT).unwrap_or(namespace).to_owned(),
            priority: priority
                .and_then(|priority| i32::try_from(priority).ok())
                .unwrap_or_default(),
            created: created(value).map(Timestamp::as_millisecond),
            member,
            end: None,
        };
        pods.insert(id(namespace, name), pod);
    }
    pods
}

/// The time after which the next leader should have taken over a Lease that ran out. Clocks differ by less.
const GRACE: SignedDuration = SignedDuration::from_secs(60);

/// Says since when the queue has had no leader, if a Lease tells it.
fn leaderless(objects: &Objects, now: Timestamp) -> Option<String> {
    let end = |lease: &Value| {
        let spec = lease.get("spec")?;
        let renewed: Timestamp = spec.get("renewTime")?.as_str()?.parse().ok()?;
        let lasts = SignedDuration::from_secs(spec.get("leaseDurationSeconds")?.as_i64()?);
        renewed.checked_add(lasts).ok()
    };
    let last = objects.leases.objects.values().filter_map(end).max()?;
    (now.duration_since(last) > GRACE).then(|| {
        format!(
            "the queue has had no leader since {} by this machine's clock: it starts no job and fails none until a replica of nvlink-webhook-controller runs",
            last.strftime("%H:%M:%S UTC on %Y-%m-%d")
        )
    })
}

/// Says what could not be read, and what is missing because of it.
fn notes(objects: &Objects) -> Vec<String> {
    let mut notes = Vec::new();
    for (kind, lost) in [
        (&objects.classes, "the classes are not shown"),
        (&objects.topologies, "the domains are not shown"),
        (&objects.nodes, "the nodes of classes are not shown"),
        (&objects.pods, "the queue is not shown"),
    ] {
        if let Some(why) = &kind.hidden {
            notes.push(format!("{lost}: {why}"));
        }
    }
    if let Some(namespace) = &objects.namespace {
        notes.push(format!(
            "you may list pods only in namespace {namespace}: positions and expected starts are what the queue wrote into the pods"
        ));
    }
    notes
}
