//! The metrics of what became of the queue's placements, which only the leader has.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// A pod, whose name is unique while it exists.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByPod {
    namespace: String,
    pod: String,
    class: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByOutcome {
    class: String,
    mapping: &'static str,
    outcome: &'static str,
}

type Gauges = Family<ByPod, Gauge<f64, AtomicU64>>;

/// The metrics of placements.
#[derive(Debug, Default)]
pub struct PlacementMetrics {
    planned: Gauges,
    actual: Gauges,
    outcomes: Family<ByOutcome, Counter>,
}

impl PlacementMetrics {
    /// Registers them.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "planned_quality_ratio",
            "Best possible communication time on empty nodes of the class, divided by that of the GPUs on which the queue put the pod; while the pod is on its node, reported by the leader",
            self.planned.clone(),
        );
        registry.register(
            "actual_quality_ratio",
            "Best possible communication time on empty nodes of the class, divided by that of the GPUs that the pod has; while the pod is on its node and its GPUs are known, reported by the leader",
            self.actual.clone(),
        );
        registry.register(
            "outcomes",
            "Pods that the queue put on GPUs, by class, by devices.mapping of the class, and by what they got: as-planned, these GPUs; equivalent, others of the node that are as fast; other-gpus, others of the node that are slower; other-node, GPUs of another node. Each pod is counted once",
            self.outcomes.clone(),
        );
    }

    /// Sets the qualities of a pod of a class. `None` for the second one: it is not known.
    pub fn set(&self, [namespace, pod]: [&str; 2], class: &str, planned: f64, actual: Option<f64>) {
        let by = by_pod([namespace, pod], class);
        self.planned.get_or_create(&by).set(planned);
        match actual {
            Some(actual) => {
                self.actual.get_or_create(&by).set(actual);
            }
            None => {
                self.actual.remove(&by);
            }
        }
    }

    /// Removes the qualities of a pod of a class.
    pub fn remove(&self, pod: [&str; 2], class: &str) {
        let by = by_pod(pod, class);
        self.planned.remove(&by);
        self.actual.remove(&by);
    }

    /// Removes what only a leader knows.
    pub fn forget(&self) {
        self.planned.clear();
        self.actual.clear();
    }

    /// Counts a pod.
    pub fn outcome(&self, class: &str, mapping: &'static str, outcome: &'static str) {
        self.counter(class, mapping, outcome).inc();
    }

    /// Returns the counter of pods, which exists from then on: alerts need series that exist from
    /// the start.
    pub fn counter(&self, class: &str, mapping: &'static str, outcome: &'static str) -> Counter {
        let class = class.to_owned();
        let by = ByOutcome {
            class,
            mapping,
            outcome,
        };
        self.outcomes.get_or_create_owned(&by)
    }
}

fn by_pod([namespace, pod]: [&str; 2], class: &str) -> ByPod {
    ByPod {
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        class: class.to_owned(),
    }
}
