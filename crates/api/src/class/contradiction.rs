//! Fields of a class that contradict each other.

use crate::crd::{
    domain_class::{DomainClassSpec, Integration, Mapping, Scheduler, WhenUnavailable},
    environment::Mnnvl,
};

use super::InvalidClass;

/// Checks placement, devices and scheduler as the CRD's rules do.
pub(super) fn check(spec: &DomainClassSpec) -> Result<(), InvalidClass> {
    let queues = spec.placement.when_unavailable == WhenUnavailable::Queue;
    let placement = &spec.placement;
    let settled = placement.queue_timeout.is_some()
        || placement.on_queue_timeout.is_some()
        || placement.order.is_some()
        || placement.waiting_cost_percent.is_some();
    if settled && !queues {
        return Err(InvalidClass::Placement(
            "queueTimeout, onQueueTimeout, order and waitingCostPercent belong to whenUnavailable Queue",
        ));
    }
    if placement.spare_nodes.is_some() && (!queues || placement.max_placeholder_pods.is_some()) {
        return Err(InvalidClass::Placement(
            "spareNodes needs whenUnavailable Queue, without maxPlaceholderPods: an autoscaler takes spare nodes for free ones",
        ));
    }
    if spec.access.max_gpus_per_project.is_some() && !queues {
        return Err(InvalidClass::Placement(
            "access.maxGpusPerProject needs whenUnavailable Queue: the queue counts what a project holds",
        ));
    }
    if queues && spec.scheduler.integration != Integration::Gate {
        return Err(InvalidClass::Placement(
            "whenUnavailable Queue needs the scheduler integration Gate: other schedulers have their own queues",
        ));
    }
    if spec.devices.mapping == Mapping::Claim && !queues {
        return Err(InvalidClass::Placement(
            "the devices mapping Claim needs whenUnavailable Queue: the queue chooses the GPUs",
        ));
    }
    if spec.devices.nics.is_some() && spec.devices.mapping != Mapping::Claim {
        return Err(InvalidClass::Placement(
            "devices.nics needs the mapping Claim: the claim of a pod requests them with its GPUs",
        ));
    }
    let environment = spec.environment.as_ref();
    let managed = environment.is_some_and(|it| it.mnnvl == Some(Mnnvl::Managed));
    if managed && !queues {
        return Err(InvalidClass::Placement(
            "environment.mnnvl Managed needs whenUnavailable Queue: the queue makes the IMEX channels",
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
    fn each_mapping_fits_a_queue() {
        let queue = json!({
            "whenUnavailable": "Queue", "queueTimeout": "150s", "onQueueTimeout": "Reject",
            "order": "FairShare", "waitingCostPercent": 50
        });
        for mapping in ["DevicePlugin", "Claim", "Preferred"] {
            let spec = spec(json!({
                "placement": queue, "devices": {"mapping": mapping},
                "access": {"maxGpusPerProject": 16}
            }));
            check(&spec).unwrap();
        }
    }

    #[track_caller]
    fn refused(cases: &[(Value, &str)]) {
        for (contradiction, expected) in cases {
            let error = check(&spec(contradiction.clone())).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn each_scheduler_has_its_own_fields() {
        refused(&[
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
        ]);
    }

    #[test]
    fn contradictions_are_named() {
        refused(&[
            (
                json!({"placement": {"queueTimeout": "150s"}}),
                "queueTimeout",
            ),
            (
                json!({"placement": {"onQueueTimeout": "Spread"}}),
                "onQueueTimeout",
            ),
            (json!({"placement": {"order": "Age"}}), "order"),
            (
                json!({"placement": {"waitingCostPercent": 100}}),
                "waitingCostPercent",
            ),
            (json!({"placement": {"spareNodes": 2}}), "spareNodes needs"),
            (
                json!({"placement": {"whenUnavailable": "Queue", "spareNodes": 2, "maxPlaceholderPods": 1}}),
                "without maxPlaceholderPods",
            ),
            (
                json!({"access": {"maxGpusPerProject": 8}}),
                "maxGpusPerProject needs",
            ),
            (
                json!({"placement": {"whenUnavailable": "Queue"}, "scheduler": {"integration": "None"}}),
                "integration Gate",
            ),
            (
                json!({"devices": {"mapping": "Claim"}}),
                "whenUnavailable Queue",
            ),
            (
                json!({"devices": {"nics": {"deviceClassName": "rdma"}}}),
                "nics needs the mapping Claim",
            ),
            (
                json!({"environment": {"fabric": "MNNVL", "mnnvl": "Managed"}}),
                "Managed needs whenUnavailable Queue",
            ),
        ]);
    }
}
