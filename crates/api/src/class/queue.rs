//! How the pods of a class wait: the part of a class that the queue uses.

use std::time::Duration;

use super::{InvalidClass, duration};
use crate::{
    ci::CiSystem,
    crd::domain_class::{DomainClassSpec, OnQueueTimeout, Order, WhenUnavailable},
};

/// How the pods of a class wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// How long a pod may wait.
    pub timeout: Option<Duration>,
    /// What happens after that.
    pub on_timeout: OnQueueTimeout,
    /// The order of waiting pods of equal priority.
    pub order: Order,
    /// What one second of waiting costs, in percent of one second of running; `None`: a pod never
    /// starts with less bandwidth instead of waiting.
    pub waiting_cost_percent: Option<u32>,
    /// The most placeholder pods that request nodes at a time; 0: the class has the nodes that it has.
    pub max_placeholder_pods: u32,
    /// The nodes of each NVLink fabric that its jobs leave free.
    pub spare_nodes: u32,
    /// The most GPUs of the class that a project holds at a time.
    pub max_gpus_per_project: Option<u32>,
}

impl Queue {
    /// Returns how pods of the class `spec` wait; `None` if they don't.
    pub(super) fn of(spec: &DomainClassSpec) -> Result<Option<Self>, InvalidClass> {
        let placement = &spec.placement;
        let timeout = placement.queue_timeout.as_deref();
        let timeout = timeout.map(|text| {
            duration::parse(text).ok_or_else(|| InvalidClass::Duration {
                field: "spec.placement.queueTimeout",
                text: text.chars().take(64).collect(),
            })
        });
        Ok(Some(Self {
            timeout: timeout.transpose()?,
            on_timeout: placement.on_queue_timeout.unwrap_or_default(),
            order: placement.order.unwrap_or_default(),
            waiting_cost_percent: placement.waiting_cost_percent,
            max_placeholder_pods: placement.max_placeholder_pods.unwrap_or(0),
            spare_nodes: placement.spare_nodes.unwrap_or(0),
            max_gpus_per_project: spec.access.max_gpus_per_project,
        })
        .filter(|_| placement.when_unavailable == WhenUnavailable::Queue))
    }

    /// Returns how long a pod may wait, by the class or, in pods of a CI system, by its default; `None`:
    /// forever.
    #[must_use]
    pub fn timeout_of(&self, system: Option<CiSystem>) -> Option<Duration> {
        self.timeout.or(system.map(CiSystem::waits))
    }

    /// Reports whether a pod starts outside its scope at the end of its time.
    #[must_use]
    pub fn spreads(&self) -> bool {
        self.on_timeout == OnQueueTimeout::Spread
    }

    /// Reports whether a pod may start outside its scope. Kubernetes allows only to narrow the
    /// affinity of a gated pod, so the size of the domain is then written when the pod starts.
    #[must_use]
    pub fn may_leave_scope(&self) -> bool {
        self.spreads() || self.waiting_cost_percent.is_some()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(spec: Value) -> Result<Option<Queue>, InvalidClass> {
        Queue::of(&serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn only_classes_that_queue_have_one() {
        assert_eq!(of(json!({})).unwrap(), None);
        let queue = of(json!({
            "placement": {
                "whenUnavailable": "Queue", "queueTimeout": "10m", "onQueueTimeout": "Spread",
                "order": "FairShare", "waitingCostPercent": 50,
                "maxPlaceholderPods": 4, "spareNodes": 2
            },
            "access": {"maxGpusPerProject": 16}
        }));
        let expected = Queue {
            timeout: Some(Duration::from_secs(600)),
            on_timeout: OnQueueTimeout::Spread,
            order: Order::FairShare,
            waiting_cost_percent: Some(50),
            max_placeholder_pods: 4,
            spare_nodes: 2,
            max_gpus_per_project: Some(16),
        };
        assert_eq!(queue.unwrap(), Some(expected));
        let odd = json!({"placement": {"whenUnavailable": "Queue", "queueTimeout": "10"}});
        let error = of(odd).unwrap_err().to_string();
        assert!(error.contains("queueTimeout \"10\""), "{error}");
    }

    #[test]
    fn pods_of_ci_systems_wait_as_long_as_these_unless_the_class_says() {
        let class = |placement: Value| {
            let mut placement = placement;
            placement["whenUnavailable"] = json!("Queue");
            of(json!({"placement": placement})).unwrap().unwrap()
        };
        let plain = class(json!({}));
        let prow = Some(CiSystem::Prow);
        assert_eq!(plain.timeout_of(prow), Some(CiSystem::Prow.waits()));
        assert_eq!(plain.timeout_of(None), None);
        let set = class(json!({"queueTimeout": "10m"}));
        assert_eq!(set.timeout_of(prow), Some(Duration::from_secs(600)));
        assert!(!set.may_leave_scope());
        assert!(class(json!({"onQueueTimeout": "Spread"})).may_leave_scope());
        assert!(class(json!({"waitingCostPercent": 1})).may_leave_scope());
    }
}
