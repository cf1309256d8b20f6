//! Features that a class may request but this version does not have yet, and
//! fields that contradict each other.

use std::fmt;

use crate::crd::domain_class::{DomainClassSpec, Integration, Mapping, Scheduler, WhenUnavailable};

use super::InvalidClass;

/// A requested feature that needs the queue, which this version does not have.
/// Pods of the class are refused, because without the queue their placement would
/// not be what the class promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unready {
    field: &'static str,
    value: &'static str,
    instead: &'static str,
}

impl fmt::Display for Unready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            field,
            value,
            instead,
        } = self;
        write!(
            f,
            "{field} is {value}, which needs the queue, but this version has no queue: set it to {instead}"
        )
    }
}

/// Returns the feature that `spec` requests and this version does not have.
pub(super) fn of(spec: &DomainClassSpec) -> Option<Unready> {
    let mapping = |value| Unready {
        field: "spec.devices.mapping",
        value,
        instead: "DevicePlugin",
    };
    match (spec.devices.mapping, spec.placement.when_unavailable) {
        (Mapping::Claim, _) => Some(mapping("Claim")),
        (Mapping::Mapped, _) => Some(mapping("Mapped")),
        (Mapping::DevicePlugin, WhenUnavailable::Queue) => Some(Unready {
            field: "spec.placement.whenUnavailable",
            value: "Queue",
            instead: "Pending",
        }),
        (Mapping::DevicePlugin, WhenUnavailable::Pending) => None,
    }
}

/// Checks placement, devices and scheduler as the CRD's rules do.
pub(super) fn check(spec: &DomainClassSpec) -> Result<(), InvalidClass> {
    let queues = spec.placement.when_unavailable == WhenUnavailable::Queue;
    let timed = spec.placement.queue_timeout.is_some() || spec.placement.on_queue_timeout.is_some();
    if timed && !queues {
        return Err(InvalidClass::Placement(
            "queueTimeout and onQueueTimeout belong to whenUnavailable Queue",
        ));
    }
    if queues && spec.scheduler.integration != Integration::Gate {
        return Err(InvalidClass::Placement(
            "whenUnavailable Queue needs the scheduler integration Gate: other schedulers have their own queues",
        ));
    }
    if spec.devices.mapping != Mapping::DevicePlugin && !queues {
        return Err(InvalidClass::Placement(
            "the devices mappings Claim and Mapped need whenUnavailable Queue: the queue chooses the GPUs",
        ));
    }
    check_scheduler(&spec.scheduler)
}

fn check_scheduler(scheduler: &Scheduler) -> Result<(), InvalidClass> {
    let kai = scheduler.integration == Integration::KAI;
    if kai != scheduler.topology.is_some() || (!kai && scheduler.queue.is_some()) {
        return Err(InvalidClass::Scheduler(
            "topology and queue belong to the integration KAI, which needs the name of its Topology",
        ));
    }
    if (scheduler.integration == Integration::Volcano) != scheduler.highest_tier.is_some() {
        return Err(InvalidClass::Scheduler(
            "highestTier belongs to the integration Volcano, which needs it",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(spec: Value) -> DomainClassSpec {
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn features_that_need_the_queue_are_named() {
        let queue =
            json!({"whenUnavailable": "Queue", "queueTimeout": "150s", "onQueueTimeout": "Reject"});
        for (mapping, expected) in [
            ("DevicePlugin", "spec.placement.whenUnavailable is Queue"),
            ("Claim", "spec.devices.mapping is Claim"),
            ("Mapped", "spec.devices.mapping is Mapped"),
        ] {
            let spec = spec(json!({"placement": queue, "devices": {"mapping": mapping}}));
            check(&spec).unwrap();
            let unready = of(&spec).unwrap().to_string();
            assert!(unready.starts_with(expected), "{unready}");
        }
        assert_eq!(of(&DomainClassSpec::default()), None);
    }

    #[test]
    fn contradictions_are_named() {
        for (contradiction, expected) in [
            (
                json!({"placement": {"queueTimeout": "150s"}}),
                "queueTimeout",
            ),
            (
                json!({"placement": {"onQueueTimeout": "Spread"}}),
                "onQueueTimeout",
            ),
            (
                json!({"placement": {"whenUnavailable": "Queue"}, "scheduler": {"integration": "None"}}),
                "integration Gate",
            ),
            (
                json!({"devices": {"mapping": "Claim"}}),
                "whenUnavailable Queue",
            ),
            (json!({"scheduler": {"integration": "KAI"}}), "its Topology"),
            (
                json!({"scheduler": {"integration": "Kueue", "queue": "q"}}),
                "topology and queue",
            ),
            (
                json!({"scheduler": {"integration": "Volcano"}}),
                "highestTier",
            ),
            (json!({"scheduler": {"highestTier": 1}}), "highestTier"),
        ] {
            let error = check(&spec(contradiction)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
