//! The metrics of the queue, which only the leader has.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError, atomic::AtomicU64},
    time::{Duration, Instant},
};

use nvlink_cluster::seen::Nodes;
use nvlink_topology::Scope;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

/// Buckets of waits and of errors of expected starts, in seconds: from one second to three days.
const WAITS: [f64; 14] = [
    1.0, 5.0, 15.0, 60.0, 150.0, 300.0, 600.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0, 43_200.0,
    86_400.0, 259_200.0,
];
/// Buckets of the duration of a round, in seconds.
const ROUNDS: [f64; 11] = [
    0.000_1, 0.000_5, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0,
];

/// What the queue writes into pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Written {
    Prepare,
    /// A ComputeDomain.
    ComputeDomain,
    /// A ResourceClaim.
    Claim,
    Release,
    /// A pod that gets other GPUs after its release.
    Reassign,
    Reject,
    Show,
    /// A placeholder pod, created or deleted.
    Placeholder,
}

/// How a write of the queue ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    Written,
    /// Somebody else had changed the pod.
    Conflict,
    /// The pod does not exist any more.
    Gone,
    /// The API server refused it.
    Refused,
    /// The API server did not answer, or had no time.
    Unanswered,
}

impl Written {
    /// Returns it as metrics and the log have it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::ComputeDomain => "compute-domain",
            Self::Claim => "claim",
            Self::Release => "release",
            Self::Reassign => "reassign",
            Self::Reject => "reject",
            Self::Show => "show",
            Self::Placeholder => "placeholder",
        }
    }
}

impl Ended {
    fn as_str(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Conflict => "conflict",
            Self::Gone => "gone",
            Self::Refused => "refused",
            Self::Unanswered => "unanswered",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByClass {
    class: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByShape {
    class: String,
    gpus_per_pod: String,
    scope: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReason {
    class: String,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByKind {
    class: String,
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByTimeout {
    class: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByEnd {
    write: &'static str,
    outcome: &'static str,
}

impl Shape {
    /// Returns its labels. Authors write any numbers, so large ones share a series.
    fn of_class(self, class: &str) -> ByShape {
        ByShape {
            class: class.to_owned(),
            gpus_per_pod: match self.gpus {
                gpus @ ..=16 => gpus.to_string(),
                _ => "more".to_owned(),
            },
            scope: self.scope.to_string(),
        }
    }
}

type Histograms = Family<ByClass, Histogram, fn() -> Histogram>;

/// The pods of a class that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// The number of pods by the reason why they wait.
    pub pods: BTreeMap<&'static str, u32>,
    /// The GPUs that they request.
    pub gpus: u32,
    /// How long the oldest has waited.
    pub oldest: Duration,
    /// The GPUs that those of them request which more nodes would start.
    pub wanted: BTreeMap<Shape, u32>,
}

/// What a pod needs of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// The GPUs that it requests.
    pub gpus: u32,
    /// How close they must be.
    pub scope: Scope,
}

/// The metrics of the queue.
#[derive(Debug)]
pub struct QueueMetrics {
    pods: Family<ByReason, Gauge>,
    gpus: Family<ByClass, Gauge>,
    wanted: Family<ByShape, Gauge>,
    placeholders: Family<ByClass, Gauge>,
    oldest: Family<ByClass, Gauge<f64, AtomicU64>>,
    /// Since when the oldest pod of each class has waited.
    since: Mutex<BTreeMap<String, (Instant, Duration)>>,
    waits: Histograms,
    releases: Family<ByKind, Counter>,
    timeouts: Family<ByTimeout, Counter>,
    writes: Family<ByEnd, Counter>,
    round: Histogram,
    unsteady: Family<ByClass, Gauge>,
    errors: Histograms,
}

impl Default for QueueMetrics {
    fn default() -> Self {
        let waits: fn() -> Histogram = || Histogram::new(WAITS);
        Self {
            pods: Family::default(),
            gpus: Family::default(),
            wanted: Family::default(),
            placeholders: Family::default(),
            oldest: Family::default(),
            since: Mutex::default(),
            waits: Family::new_with_constructor(waits),
            releases: Family::default(),
            timeouts: Family::default(),
            writes: Family::default(),
            round: Histogram::new(ROUNDS),
            unsteady: Family::default(),
            errors: Family::new_with_constructor(waits),
        }
    }
}

impl QueueMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("queue");
        registry.register(
            "waiting_pods",
            "Pods that wait in the queue, by class and by why they wait; reported by the leader",
            self.pods.clone(),
        );
        registry.register(
            "waiting_gpus",
            "GPUs that the waiting pods request; reported by the leader",
            self.gpus.clone(),
        );
        registry.register(
            "wanted_gpus",
            "GPUs that those waiting pods request which more nodes would start, by the GPUs of a pod (above 16: more) and by how close they must be; reported by the leader",
            self.wanted.clone(),
        );
        registry.register(
            "placeholder_pods",
            "Placeholder pods that request nodes of an autoscaler for waiting jobs of the class; reported by the leader",
            self.placeholders.clone(),
        );
        registry.register_with_unit(
            "oldest_wait",
            "Seconds for which the oldest waiting pod of the class has waited; reported by the leader",
            Unit::Seconds,
            self.oldest.clone(),
        );
        self.register_leaving(registry);
        registry.register_with_unit(
            "round_duration",
            "Time that the planner needs to say what is released next",
            Unit::Seconds,
            self.round.clone(),
        );
        registry.register(
            "unsteady_nodes",
            "Nodes of the class on which the queue starts no job, because their NodeTopology shows another graph again and again; reported by the leader",
            self.unsteady.clone(),
        );
    }

    /// Registers what is counted of pods that leave the queue.
    fn register_leaving(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "wait_duration",
            "Time from the creation of a pod to its release",
            Unit::Seconds,
            self.waits.clone(),
        );
        registry.register(
            "releases",
            "Pods that left the queue for a node, by class and by why: turn, it was their turn; backfill, they passed others that could not start there; worse, a better placement was not worth the wait; rejoin, to a gang that runs; spread, outside a domain after queueTimeout; unqueued, their class does not queue any more; resumed, an earlier leader had begun to release their gang",
            self.releases.clone(),
        );
        registry.register(
            "timeouts",
            "Pods that waited as long as queueTimeout, by class and by what happened then: rejected or spread",
            self.timeouts.clone(),
        );
        registry.register(
            "writes",
            "Writes of the queue to pods, by what was written (prepare, release, reject, show) and by outcome: conflict, somebody else had changed the pod; gone, it does not exist any more; refused, by the API server; unanswered, the API server did not answer or had no time, and the write is tried again",
            self.writes.clone(),
        );
        registry.register_with_unit(
            "eta_error",
            "Difference between the first expected start that a pod showed and its release",
            Unit::Seconds,
            self.errors.clone(),
        );
    }

    /// Sets how many pods wait, by class.
    pub fn depth(&self, depth: &BTreeMap<String, Depth>) {
        self.forget();
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        for (class, depth) in depth {
            for (&reason, &pods) in &depth.pods {
                let by = ByReason {
                    class: class.clone(),
                    reason,
                };
                self.pods.get_or_create(&by).set(pods.into());
            }
            let by = ByClass {
                class: class.clone(),
            };
            self.gpus.get_or_create(&by).set(depth.gpus.into());
            for (shape, &gpus) in &depth.wanted {
                let by = shape.of_class(class);
                self.wanted.get_or_create(&by).inc_by(gpus.into());
            }
            since.insert(class.clone(), (Instant::now(), depth.oldest));
        }
    }

    /// Sets the number of placeholder pods by class.
    pub fn placeholders(&self, pods: &BTreeMap<&str, u32>) {
        self.placeholders.clear();
        for (class, &number) in pods {
            let by = ByClass {
                class: (*class).to_owned(),
            };
            self.placeholders.get_or_create(&by).set(number.into());
        }
    }

    /// Removes what only a leader knows.
    pub fn forget(&self) {
        self.pods.clear();
        self.gpus.clear();
        self.wanted.clear();
        self.placeholders.clear();
        self.oldest.clear();
        self.unsteady.clear();
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.clear();
    }

    /// Brings the ages up to date.
    pub(super) fn age(&self) {
        let since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        for (class, (at, before)) in &*since {
            let by = ByClass {
                class: class.clone(),
            };
            let age = before.saturating_add(at.elapsed());
            self.oldest.get_or_create(&by).set(age.as_secs_f64());
        }
    }

    /// Gives the queue of these classes its counters: alerts need series that exist from the start.
    pub fn queues<'a>(&self, classes: impl IntoIterator<Item = &'a str>) {
        for class in classes {
            for kind in [
                "turn", "backfill", "worse", "rejoin", "spread", "unqueued", "resumed",
            ] {
                let class = class.to_owned();
                drop(self.releases.get_or_create(&ByKind { class, kind }));
            }
            let by = ByClass {
                class: class.to_owned(),
            };
            drop(self.waits.get_or_create(&by));
            drop(self.errors.get_or_create(&by));
            for outcome in ["rejected", "spread"] {
                let class = class.to_owned();
                drop(self.timeouts.get_or_create(&ByTimeout { class, outcome }));
            }
        }
        for write in [
            Written::Prepare,
            Written::Release,
            Written::Reject,
            Written::Show,
        ] {
            for outcome in [
                Ended::Written,
                Ended::Conflict,
                Ended::Gone,
                Ended::Refused,
                Ended::Unanswered,
            ] {
                drop(self.writes.get_or_create(&ByEnd {
                    write: write.as_str(),
                    outcome: outcome.as_str(),
                }));
            }
        }
    }

    /// Counts a pod that was released after `waited`. `first` is the difference to the first
    /// expected start that it showed.
    pub fn released(
        &self,
        class: &str,
        kind: &'static str,
        waited: Option<Duration>,
        first: Option<Duration>,
    ) {
        let class = class.to_owned();
        let by = ByClass {
            class: class.clone(),
        };
        if let Some(waited) = waited {
            self.waits.get_or_create(&by).observe(waited.as_secs_f64());
        }
        if let Some(first) = first {
            self.errors.get_or_create(&by).observe(first.as_secs_f64());
        }
        if kind == "spread" {
            self.timed_out(&class, kind);
        }
        self.releases.get_or_create(&ByKind { class, kind }).inc();
    }

    /// Counts a pod that failed because it waited too long.
    pub fn rejected(&self, class: &str) {
        self.timed_out(class, "rejected");
    }

    fn timed_out(&self, class: &str, outcome: &'static str) {
        let class = class.to_owned();
        let timeouts = self.timeouts.get_or_create(&ByTimeout { class, outcome });
        timeouts.inc();
    }

    /// Counts a write.
    pub fn write(&self, write: Written, outcome: Ended) {
        let (write, outcome) = (write.as_str(), outcome.as_str());
        self.writes.get_or_create(&ByEnd { write, outcome }).inc();
    }

    /// Sets the nodes of classes whose graphs change again and again.
    pub fn unsteady(&self, nodes: &Nodes) {
        self.unsteady.clear();
        for (class, nodes) in nodes {
            let class = class.clone();
            let nodes = i64::try_from(nodes.len()).unwrap_or(i64::MAX);
            self.unsteady.get_or_create(&ByClass { class }).set(nodes);
        }
    }

    /// Records how long a round took.
    pub fn round(&self, took: Duration) {
        self.round.observe(took.as_secs_f64());
    }
}
