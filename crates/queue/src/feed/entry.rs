//! A pod as the feed keeps it.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use nvlink_admission::decide::gate;
use nvlink_api::{class::GPU, pod};
use nvlink_planner::{Millis, Name};
use nvlink_topology::labels;
use serde_json::Value;

use super::{Place, amounts::Amounts, demand::Demand, load::scheduler, neighbours::Ties, volumes};
use crate::{
    Life, Member, Object, Placement, channel, claim::Named, life, notice, object, outcome::Outcome,
    prune::prune,
};

/// A pod.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) namespace: String,
    pub(super) uid: String,
    /// Its resourceVersion: a higher one is later (KEP-5504; it always was so with etcd).
    pub(super) version: u64,
    /// The pod itself, as text without what the queue never reads, until it has a node and was read.
    pub(super) text: Option<Box<str>>,
    pub(super) life: Life,
    /// The node to which it was bound, also after its end.
    pub(super) node: Option<Name>,
    /// The name of its class.
    pub(super) class: Option<String>,
    /// What the queue reads from it, if its class is known.
    pub(super) member: Option<Member>,
    /// The number of GPUs of the usual resource, for pods without a class.
    pub(super) gpus: u32,
    /// What it takes of its node besides GPUs.
    pub(super) amounts: Amounts,
    pub(super) priority: i32,
    /// When the API server says that it was created.
    stamped: Option<Millis>,
    /// The same, or what a leader wrote down instead when the clock had been set.
    created: Option<Millis>,
    pub(super) since: Option<Millis>,
    /// Since when its predecessor had waited, whose turn it takes.
    pub(super) turn: Option<Millis>,
    /// Where the queue put it, by its annotation.
    pub(super) placement: Option<Placement>,
    /// What it says of the claim by which it gets its GPUs.
    pub(super) claim: Option<Named>,
    /// It names a claim by which it gets an IMEX channel.
    pub(super) channel: bool,
    /// What the queue is writing into it.
    pub(super) expected: Option<Expected>,
    /// The object that says how many pods its job has, while it waits, or the Job that may end it.
    pub(super) object: Option<Object>,
    /// The scheduler that is to bind it.
    pub(super) scheduler: Box<str>,
    /// The name of what it demands of its node.
    pub(super) demand: Option<Name>,
    /// Which pods must be near it, while it waits.
    pub(super) ties: Option<Arc<Ties>>,
    /// The queue does not write it before this time.
    pub(super) paused: Option<Pause>,
    /// Its job.
    pub(super) job: Option<Name>,
    /// Its run was added to the past runs.
    pub(super) counted: bool,
    /// What keeps it from its place, which may pass, and since when.
    pub(super) orphan: Option<(Cause, Millis)>,
    /// By how much the API server's clock was set since its times were stamped.
    pub(super) shifts: Shifts,
    /// Its condition says that it waits.
    pub(super) queued: bool,
    /// Its PersistentVolumeClaims, whose volumes the scheduler binds.
    pub(super) claims: Vec<Name>,
    /// The first of them that has no volume, and gets none with the pod, while it waits.
    pub(super) unbound: Option<Name>,
    /// Why the scheduler binds it to no node, if it has tried.
    pub(super) refused: Option<Box<str>>,
    /// What became of its placement, if a leader wrote it down.
    pub(super) told: Option<Outcome>,
}

/// What the queue is writing into a pod. It counts before the API shows it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expected {
    /// It is put here.
    Placed(Box<Placement>),
    /// It leaves the queue without a place.
    Leaves,
}

/// By how much the API server's clock was set since each time of a pod was stamped.
#[derive(Clone, Debug, Default)]
pub(super) struct Shifts {
    created: Shift,
    since: Shift,
    placed: Shift,
}

/// By how much the clock was set since a time was stamped. It says nothing of a time that is
/// stamped later in its place.
#[derive(Clone, Debug, Default)]
struct Shift {
    stamp: Millis,
    by: Millis,
}

impl Shift {
    /// Returns the time of `stamp` by the present clock.
    fn present(&self, stamp: Millis) -> Millis {
        let by = if self.stamp == stamp { self.by } else { 0 };
        stamp.saturating_add(by)
    }

    /// Records that the clock was set after `stamp`.
    fn add(&mut self, stamp: Millis, by: Millis) {
        let before = self.present(stamp).saturating_sub(stamp);
        *self = Self {
            stamp,
            by: before.saturating_add(by),
        };
    }
}

/// What keeps a pod from its place, and may pass. Each has its own grace period, which begins when
/// it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// No class queues it.
    NoClass,
    /// The node to which it was released does not exist.
    NodeGone,
    /// That node is not ready, or drained.
    NodeOut,
    /// The scheduler does not bind it there.
    NotBound,
    /// The scheduler says nothing about it.
    NotTried,
    /// It has no claim.
    NoClaim,
}

/// A pause after a write that the API server refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    /// `Millis::MIN` when the pause is over; the number of failures counts until a success.
    pub(super) until: Millis,
    pub(super) failures: u32,
    /// Why, in the API server's words.
    pub(super) why: Box<str>,
    /// The pod was to fail, or to leave without a place.
    pub(super) leaves: bool,
}

/// The most characters that are kept of what the scheduler says.
const MOST_SAID: usize = 300;

/// Reports whether the pod has GPUs or other devices, a class, or the gate of the queue.
pub fn concerns(pod: &Value) -> bool {
    pod::metadata(pod, "labels", labels::CLASS).is_some()
        || gate::is_queued(pod)
        || pod::has_devices(pod)
}

impl Entry {
    /// Reads a pod, and returns it with its demand if it waits.
    pub(super) fn new(pod: &mut Value) -> (Self, Option<Demand>) {
        let text = |path: &[&str]| pod::at(pod, path).and_then(Value::as_str);
        let owned = |path: &[&str]| text(path).unwrap_or_default().to_owned();
        let life = Life::of(pod);
        let waits = matches!(life, Life::Waiting { .. });
        let created = life::created(pod);
        let start = life::time(pod, &["status", "startTime"]);
        let millis = |time: Timestamp| time.as_millisecond();
        let mut this = Self {
            namespace: owned(&["metadata", "namespace"]),
            uid: owned(&["metadata", "uid"]),
            version: owned(&["metadata", "resourceVersion"]).parse().unwrap_or(0),
            text: None,
            node: text(&["spec", "nodeName"])
                .filter(|node| !node.is_empty())
                .map(Name::from),
            class: text(&["metadata", "labels", labels::CLASS]).map(str::to_owned),
            member: None,
            gpus: pod::request(&pod::containers(pod), GPU).unwrap_or(0),
            amounts: Amounts::of_pod(pod),
            priority: priority(pod),
            stamped: life::time(pod, &["metadata", "creationTimestamp"]).map(millis),
            created: created.map(millis),
            since: start.or(created).map(millis),
            turn: None,
            placement: Placement::of(pod),
            claim: Named::of(pod),
            channel: channel::named(pod).is_some(),
            expected: None,
            object: object(pod).filter(|object| waits || life.is_live() && object.is_job()),
            scheduler: scheduler(pod),
            demand: None,
            ties: None,
            paused: None,
            job: None,
            counted: false,
            orphan: None,
            shifts: Shifts::default(),
            queued: notice::is_queued(pod),
            claims: volumes::claims(pod),
            unbound: None,
            refused: refused(pod),
            told: Outcome::told(pod),
            life,
        };
        let demand = waits.then(|| Demand::of(pod));
        // Its class may become known later.
        if waits || this.life == Life::Released || this.class.is_some() {
            prune(pod);
            this.text = Some(pod.to_string().into());
        }
        (this, demand)
    }

    /// Returns the namespace and name of its object.
    pub(super) fn place(&self) -> Option<Place> {
        Some((self.namespace.clone(), self.object.clone()?))
    }

    /// Forgets the pod itself if it was read and will not be written.
    pub(super) fn forget(&mut self) {
        let written = matches!(self.life, Life::Waiting { .. } | Life::Released);
        if self.member.is_some() && !written {
            self.text = None;
        }
    }

    /// Returns the pod itself, without what the queue never reads, until it has a node and was read.
    pub(super) fn document(&self) -> Option<Value> {
        serde_json::from_str(self.text.as_deref()?).ok()
    }

    /// Reports whether the pod waits, and nothing is being written that changes this.
    pub(super) fn waits(&self) -> bool {
        matches!(self.life, Life::Waiting { .. }) && self.expected.is_none()
    }

    /// Returns when it was created, by the API server's present clock.
    pub(super) fn created(&self) -> Option<Millis> {
        Some(self.shifts.created.present(self.created?))
    }

    /// Returns the same in whole seconds, if it is another time than the API server says.
    pub(super) fn moved(&self) -> Option<Millis> {
        let created = self.created()?;
        let seconds = created.saturating_sub(created.rem_euclid(1_000));
        Some(seconds).filter(|_| self.stamped != Some(seconds))
    }

    /// Returns since when it counts as waiting, by which its turn comes.
    pub(super) fn turn(&self) -> Option<Millis> {
        self.turn.or_else(|| self.created())
    }

    /// Returns when it was put there, by the API server's present clock.
    pub(super) fn placed(&self, placement: &Placement) -> Millis {
        self.shifts.placed.present(placement.at.as_millisecond())
    }

    /// Returns when it started, or else was created, by the API server's present clock.
    pub(super) fn since(&self) -> Option<Millis> {
        Some(self.shifts.since.present(self.since?))
    }

    /// Records that the API server's clock was set by `by`, perhaps before the pod was created.
    pub(super) fn jumped(&mut self, by: Millis, created_later: bool) {
        // The queue stamps by the clock that it has heard.
        let placement = match &self.expected {
            Some(Expected::Placed(placement)) => Some(&**placement),
            Some(Expected::Leaves) | None => self.placement.as_ref(),
        };
        if let Some(placement) = placement {
            self.shifts.placed.add(placement.at.as_millisecond(), by);
        }
        self.turn = self.turn.map(|since| since.saturating_add(by));
        if created_later {
            return;
        }
        self.shift(by);
    }

    /// Records that the API server's clock was set by `by` after the pod was created.
    pub(super) fn shift(&mut self, by: Millis) {
        if let Some(stamp) = self.created {
            self.shifts.created.add(stamp, by);
        }
        if let Some(since) = self.since {
            self.shifts.since.add(since, by);
        }
    }

    /// Records that `cause` keeps the pod from its place, and returns since when.
    pub(super) fn orphaned(&mut self, cause: Cause, now: Millis) -> Millis {
        let known = self.orphan.filter(|(known, _)| *known == cause);
        self.orphan.insert(known.unwrap_or((cause, now))).1
    }

    /// Returns the node to which the pod was released, if it is not bound.
    pub(super) fn awaited(&self) -> Option<&str> {
        let placement = self.placement.as_ref()?;
        placement
            .node
            .as_deref()
            .filter(|_| self.life == Life::Released)
    }

    /// Reports whether the queue must not write the pod yet.
    pub(super) fn is_paused(&self) -> bool {
        self.pause().is_some()
    }

    /// Returns why the queue must not write the pod yet.
    pub(super) fn pause(&self) -> Option<&Pause> {
        self.paused.as_ref().filter(|it| it.until > Millis::MIN)
    }

    /// Returns what is to be said of its node if no scheduler has tried to bind the pod.
    pub(super) fn untried(&self) -> String {
        let pod = self.document();
        let name = pod
            .as_ref()
            .and_then(|pod| pod::at(pod, &["spec", "schedulerName"])?.as_str());
        let name = name.unwrap_or("default-scheduler");
        format!(
            "is not tried: the scheduler {name:?} (schedulerName) says nothing about the pod; \
             see whether it runs, and whether all that the pod names exists"
        )
    }

    /// Reports whether the pod was released, by its gates.
    pub(super) fn is_released(&self) -> bool {
        matches!(
            self.life,
            Life::Released | Life::Bound { .. } | Life::Running { .. }
        )
    }
}

fn priority(pod: &Value) -> i32 {
    let priority = pod::at(pod, &["spec", "priority"]).and_then(Value::as_i64);
    priority
        .and_then(|priority| i32::try_from(priority).ok())
        .unwrap_or_default()
}

/// Returns what the scheduler says about a pod that it can bind to no node.
fn refused(pod: &Value) -> Option<Box<str>> {
    let text = |value: &Value, key: &str| value.get(key)?.as_str().map(str::to_owned);
    let mut conditions = pod::list(pod, &["status", "conditions"]);
    let scheduled = conditions.find(|one| text(one, "type").as_deref() == Some("PodScheduled"))?;
    // An error of the scheduler repeats itself, for example when no selector can be evaluated.
    let reason = text(scheduled, "reason")?;
    if !["Unschedulable", "SchedulerError"].contains(&&*reason) {
        return None;
    }
    let message = text(scheduled, "message").unwrap_or_default();
    Some(message.chars().take(MOST_SAID).collect::<String>().into())
}
