//! What a waiting pod shows, and whether a reader would notice that it has changed. Pure.

use std::fmt;

use k8s_openapi::jiff::Timestamp;
use nvlink_api::pod;
use nvlink_planner::{Deadline, Eta, Millis, Reason, Waiting};
use nvlink_topology::{Scope, labels};
use serde_json::{Value, json};

use super::{Doubt, Member, words};

/// A change that a reader notices is shown no earlier than this after the one before, milliseconds.
pub const SOON: Millis = 10_000;
/// The same for a change of numbers in the reason.
pub const LATER: Millis = 60_000;
/// Up to this position, each step counts; further back, a tenth of it.
const FRONT: u32 = 10;
/// The least change of an expected start that counts, milliseconds.
const MINUTE: Millis = 60_000;

/// What a waiting pod shows: why it waits, its position, and when it is expected to start.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// Why, as the planner knows it.
    pub reason: Reason,
    /// What the planner knows nothing of.
    pub obstacle: Option<Obstacle>,
    /// The position among the jobs of its class, from 1; `None` while its class has no order.
    pub position: Option<u32>,
    /// When it is expected to start.
    pub eta: Option<Eta>,
    /// When its waiting ends.
    pub deadline: Option<Deadline>,
    /// When its pod was created, if the API server says another time because its clock was set since. A
    /// later leader knows it only from here.
    pub since: Option<Millis>,
    /// Its scheduler, if that has bound no pod so far.
    pub unseen: Option<Box<str>>,
    /// Nodes may be made for it.
    pub grows: bool,
    /// Placeholder pods request nodes for it.
    pub asks: bool,
}

/// The word for a job that the queue cannot start although it has its turn.
pub const REFUSED: &str = "Refused";
/// The word for a job whose class cannot be used.
pub const UNACCEPTED: &str = "Unaccepted";
/// The words for jobs that do not start unless somebody does something.
pub const STUCK: [&str; 3] = [words::IMPOSSIBLE, REFUSED, UNACCEPTED];

/// What keeps a job from starting that only its pods, or the API server, can say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Nobody can say whether all pods of its gang are there.
    Doubt(Doubt),
    /// It had its turn, and the queue cannot start it, for this reason.
    Refused(Box<str>),
    /// One of its pods has a scheduling gate of somebody else: the pod, and the gate.
    Gated(Box<str>, Box<str>),
    /// One of its pods must be near others, of which none is on a node: the pod, and the others' labels.
    Alone(Box<str>, Box<str>),
    /// One of its pods has a PersistentVolumeClaim without a volume: the pod, and the claim.
    Unbound(Box<str>, Box<str>),
    /// Its class gives GPUs by claims, which the cluster cannot serve.
    NoDriver(NoDriver),
    /// Its class cannot be used, for this reason.
    Unaccepted(Box<str>),
}

/// Why claims for GPUs get none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoDriver {
    /// The DeviceClass of this name does not exist.
    NoClass(Box<str>),
    /// No ResourceSlice lists a GPU.
    NoSlice,
    /// No node lists enough NICs of the DeviceClass of this name.
    NoNics(Box<str>),
}

impl fmt::Display for NoDriver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoClass(name) => write!(out, "the queue sees no DeviceClass {name}"),
            Self::NoSlice => out.write_str("no ResourceSlice lists a GPU"),
            Self::NoNics(name) => write!(
                out,
                "no GPU on its nodes has as many NICs of DeviceClass {name} at its PCIe root as devices.nics names (kubectl get resourceslices)"
            ),
        }
    }
}

/// The pod that shows it.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// Its class.
    pub class: &'a str,
    /// Its project.
    pub project: &'a str,
    /// How far apart the GPUs of its job may be.
    pub reach: Scope,
    /// Nodes may be made for it.
    pub grows: bool,
    /// It leaves nodes of each NVLink fabric free as spares.
    pub spares: bool,
}

/// What a pod shows, by its annotations and condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Whether its condition says that it waits.
    pub queued: bool,
    /// The annotation with the reason.
    pub reason: Option<String>,
    /// The position.
    pub position: Option<u32>,
    /// When it is expected to start.
    pub eta: Option<Millis>,
    /// When it was created, if a leader wrote that down.
    pub since: Option<Millis>,
}

/// When a change must be shown, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// At once: nothing is shown, or another reason, which whoever looks must know; or another time since
    /// which it waits, which a later leader must know.
    Now,
    /// [`SOON`] after the change before: the position, or the expected start.
    Soon,
    /// [`LATER`] after the change before: numbers of the reason.
    Later,
}

impl<'a> About<'a> {
    /// Returns what is known of a pod of a class that cannot be used: no reason needs the rest.
    #[must_use]
    pub fn of(class: &'a str) -> Self {
        Self {
            class,
            project: "",
            reach: Scope::Cluster,
            grows: false,
            spares: false,
        }
    }

    /// Returns the same of a pod that takes the place of a lost one of its gang, which may use spares, if `joins`.
    #[must_use]
    pub fn joining(self, joins: bool) -> Self {
        Self {
            spares: self.spares && !joins,
            ..self
        }
    }
}

impl<'a> From<&'a Member> for About<'a> {
    fn from(member: &'a Member) -> Self {
        Self {
            class: &member.class,
            project: &member.project,
            reach: match member.gang {
                Some(_) => member.gang_scope,
                None => member.scope,
            },
            grows: member.grows,
            spares: member.spares,
        }
    }
}

impl Notice {
    /// Returns what the pods of a job show.
    #[must_use]
    pub fn new(waiting: &Waiting, obstacle: Option<&Obstacle>) -> Self {
        let incomplete = waiting.reason == Reason::Incomplete;
        Self {
            reason: waiting.reason.clone(),
            obstacle: obstacle
                .filter(|one| incomplete || matches!(one, Obstacle::NoDriver(_)))
                .cloned(),
            position: Some(waiting.class_position),
            eta: waiting.eta,
            deadline: waiting.deadline,
            since: None,
            unseen: None,
            grows: false,
            asks: false,
        }
    }

    /// Returns what a pod shows whose class cannot be used, for this reason.
    #[must_use]
    pub fn unaccepted(why: &str) -> Self {
        Self {
            reason: Reason::Incomplete,
            obstacle: Some(Obstacle::Unaccepted(why.into())),
            position: None,
            eta: None,
            deadline: None,
            since: None,
            unseen: None,
            grows: false,
            asks: false,
        }
    }

    /// Returns the reason as one word.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match &self.obstacle {
            Some(Obstacle::Refused(_)) => REFUSED,
            Some(Obstacle::Unaccepted(_)) => UNACCEPTED,
            Some(
                Obstacle::Doubt(_)
                | Obstacle::Gated(..)
                | Obstacle::Alone(..)
                | Obstacle::Unbound(..)
                | Obstacle::NoDriver(_),
            )
            | None => words::word(&self.reason, self.grows),
        }
    }

    /// Returns the text of the condition and of the Event, as of `now`.
    #[must_use]
    pub fn message(&self, about: About<'_>, now: Millis) -> String {
        let why = self.why(about);
        let Some(position) = self.position else {
            return why;
        };
        let class = about.class;
        let start = match (self.is_planned(), self.deadline) {
            (true, deadline) => format!("; {}", words::start(self.eta, deadline, now)),
            (false, Some(deadline)) => format!("; {}", words::end(deadline, now)),
            (false, None) => String::new(),
        };
        let asks = match self.asks {
            true => "; the queue requests nodes for it with placeholder pods",
            false => "",
        };
        let unseen = self.unseen.as_ref().map_or_else(String::new, |name| {
            format!("; no pod was bound by its scheduler {name:?} (schedulerName) so far: see whether it runs")
        });
        format!("{why}{asks}; position {position} of class {class}{start}{unseen}")
    }

    /// Returns why the pod waits, as a sentence without its end.
    #[must_use]
    pub fn why(&self, about: About<'_>) -> String {
        why(&self.reason, self.obstacle.as_ref(), about)
    }

    /// Returns the annotations; `None` removes one.
    #[must_use]
    pub fn annotations(&self, about: About<'_>) -> [(&'static str, Option<String>); 4] {
        let why = self.why(about);
        [
            (
                labels::QUEUE_REASON,
                Some(format!("{}: {why}", self.word())),
            ),
            (
                labels::QUEUE_POSITION,
                self.position.map(|position| position.to_string()),
            ),
            (labels::QUEUE_ETA, self.start().map(words::stamp)),
            (labels::QUEUE_SINCE, self.since.map(words::stamp)),
        ]
    }

    /// Returns the expected start, if it is more than a lower bound, and the job does not fail before.
    #[must_use]
    pub fn start(&self) -> Option<Millis> {
        let eta = self.eta.filter(|eta| !eta.at_least && self.is_planned());
        let start = eta.map(|eta| eta.mean);
        start.filter(|&start| !self.deadline.is_some_and(|end| end.fails_before(start)))
    }

    /// Reports whether somebody must do something before the job can start.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        let stuck = matches!(
            self.obstacle,
            Some(Obstacle::Refused(_) | Obstacle::Unaccepted(_))
        );
        self.reason.is_never() && !self.grows || stuck || self.unseen.is_some()
    }

    /// Reports whether the job starts when GPUs become free, and needs nothing else.
    fn is_planned(&self) -> bool {
        let unplanned = matches!(
            self.reason,
            Reason::Incomplete | Reason::Silent | Reason::Spreads
        );
        !self.reason.is_never() && !unplanned
    }

    /// Returns how urgent it is to show this after `before`; `None` if no reader would notice.
    #[must_use]
    pub fn after(&self, before: &Self, now: Millis) -> Option<Urgency> {
        if self.word() != before.word() || self.since != before.since {
            return Some(Urgency::Now);
        }
        let moved = has_moved(before.position, self.position);
        if moved
            || has_shifted(before.start(), self.start(), now)
            || self.deadline != before.deadline
            || self.unseen != before.unseen
            || self.asks != before.asks
        {
            return Some(Urgency::Soon);
        }
        let same = self.reason == before.reason && self.obstacle == before.obstacle;
        (!same).then_some(Urgency::Later)
    }

    /// The same, after what an earlier leader wrote.
    #[must_use]
    pub fn after_shown(&self, shown: &Shown, about: About<'_>, now: Millis) -> Option<Urgency> {
        let word = shown
            .reason
            .as_deref()
            .and_then(|reason| reason.split(':').next());
        if !shown.queued || word != Some(self.word()) || self.since != shown.since {
            return Some(Urgency::Now);
        }
        let moved = has_moved(shown.position, self.position);
        if moved || has_shifted(shown.eta, self.start(), now) {
            return Some(Urgency::Soon);
        }
        let [(_, reason), ..] = self.annotations(about);
        (reason != shown.reason).then_some(Urgency::Later)
    }
}

/// Returns why a job waits, as a sentence without its end.
pub(super) fn why(reason: &Reason, obstacle: Option<&Obstacle>, about: About<'_>) -> String {
    match obstacle {
        Some(Obstacle::Doubt(doubt)) => format!("its gang cannot start: {doubt}"),
        Some(Obstacle::Refused(why)) => {
            format!("it had its turn, but the queue cannot start it and tries again: {why}")
        }
        Some(Obstacle::Gated(pod, gate)) => format!(
            "pod {pod} has the scheduling gate {gate}, which the queue does not remove: whoever added it must"
        ),
        Some(Obstacle::Alone(pod, others)) => format!(
            "pod {pod} must be near pods with {others} (required pod affinity), and none of them is on a node yet"
        ),
        Some(Obstacle::Unbound(pod, claim)) => format!(
            "PersistentVolumeClaim {claim} of pod {pod} has no volume yet: `kubectl describe pvc` shows why"
        ),
        Some(Obstacle::NoDriver(why)) => no_driver(why, about.class),
        Some(Obstacle::Unaccepted(why)) => {
            let class = about.class;
            format!("its class {class} cannot be used, so it waits until that is corrected: {why}")
        }
        None => {
            let why = words::sentence(reason, about.reach, about.project, about.grows);
            why + if about.spares {
                words::spares(reason)
            } else {
                ""
            }
        }
    }
}

fn no_driver(why: &NoDriver, class: &str) -> String {
    format!(
        "class {class} gives GPUs by ResourceClaims (devices.mapping Claim), but {why}: unless the nodes are yet to come, an administrator installs the DRA drivers and lets the queue see them, or changes the class"
    )
}

fn has_moved(from: Option<u32>, to: Option<u32>) -> bool {
    let (Some(from), Some(to)) = (from, to) else {
        return from != to;
    };
    let least = match from.max(to) {
        ..=FRONT => 1,
        back => back / 10,
    };
    from.abs_diff(to) >= least
}

fn has_shifted(from: Option<Millis>, to: Option<Millis>, now: Millis) -> bool {
    match (from, to) {
        (None, None) => false,
        (Some(from), Some(to)) => {
            let wait = to.saturating_sub(now).max(0);
            from.saturating_sub(to).saturating_abs() > MINUTE.max(wait / 10)
        }
        _ => true,
    }
}

impl Shown {
    /// Reads `pod`.
    #[must_use]
    pub fn of(pod: &Value) -> Self {
        let text = |key| pod::metadata(pod, "annotations", key).and_then(Value::as_str);
        let time = |key| {
            let time: Timestamp = text(key)?.parse().ok()?;
            Some(time.as_millisecond())
        };
        Self {
            queued: is_queued(pod),
            reason: text(labels::QUEUE_REASON).map(str::to_owned),
            position: text(labels::QUEUE_POSITION).and_then(|text| text.parse().ok()),
            eta: time(labels::QUEUE_ETA),
            since: time(labels::QUEUE_SINCE),
        }
    }
}

/// Reports whether the condition of `pod` says that it waits.
#[must_use]
pub fn is_queued(pod: &Value) -> bool {
    let text = |condition: &Value, key| condition.get(key).and_then(Value::as_str) == Some("True");
    pod::list(pod, &["status", "conditions"]).any(|one| is_ours(one) && text(one, "status"))
}

/// Reports whether a condition is the queue's.
pub(super) fn is_ours(condition: &Value) -> bool {
    condition.get("type").and_then(Value::as_str) == Some(labels::QUEUED)
}

/// What a pod shows next.
#[derive(Clone, Debug, PartialEq)]
pub enum Post {
    /// It waits.
    Waits {
        /// The reason as one word.
        word: &'static str,
        /// Why, position and expected start.
        message: String,
        /// The annotations.
        annotations: [(&'static str, Option<String>); 4],
    },
    /// It waits no more, for this reason.
    Left(String),
}

impl Post {
    /// Returns what a waiting pod shows.
    #[must_use]
    pub fn waits(notice: &Notice, about: About<'_>, now: Millis) -> Self {
        Self::Waits {
            word: notice.word(),
            message: notice.message(about, now),
            annotations: notice.annotations(about),
        }
    }

    /// Returns a strategic merge patch of the status of `pod`, which is of this version and shows
    /// that it waits if `queued`. It fails if the pod has changed, or is another one. A pod that
    /// waits no more is changed by its kubelet, so only another one fails.
    #[must_use]
    pub fn patch(&self, pod: &Value, queued: bool, now: Millis) -> Value {
        let field = |name: &str| pod::at(pod, &["metadata", name]).cloned();
        let mut metadata = json!({"uid": field("uid")});
        let mut condition = match self {
            Self::Waits { word, message, .. } => {
                metadata["resourceVersion"] = field("resourceVersion").unwrap_or_default();
                json!({"status": "True", "reason": word, "message": message})
            }
            Self::Left(why) => json!({"status": "False", "reason": "Released", "message": why}),
        };
        condition["type"] = labels::QUEUED.into();
        if matches!(self, Self::Left(_)) || !queued {
            condition["lastTransitionTime"] = words::stamp(now).into();
        }
        let annotations: serde_json::Map<_, _> = match self {
            Self::Waits { annotations, .. } => annotations
                .iter()
                .map(|(key, value)| ((*key).to_owned(), json!(value)))
                .collect(),
            Self::Left(_) => TEMPORARY
                .map(|key| (key.to_owned(), Value::Null))
                .into_iter()
                .collect(),
        };
        metadata["annotations"] = Value::Object(annotations);
        json!({"metadata": metadata, "status": {"conditions": [condition]}})
    }
}

/// The annotations that only a waiting pod has.
pub const TEMPORARY: [&str; 4] = [
    labels::QUEUE_REASON,
    labels::QUEUE_POSITION,
    labels::QUEUE_ETA,
    labels::QUEUE_SINCE,
];
