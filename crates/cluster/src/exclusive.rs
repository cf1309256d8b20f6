//! The condition `Exclusive` of a class with the mapping `Claim`: whether each GPU of its nodes is for
//! one claim at a time.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use nvlink_api::{
    class::condition,
    crd::{DomainClass, condition::Condition},
};

use super::seen::named;

/// The type of the condition.
pub(super) const EXCLUSIVE: &str = "Exclusive";

/// Returns the condition `Exclusive` of `class` at `now`, whose `nodes` have such GPUs.
pub(super) fn exclusive(class: &DomainClass, nodes: &[String], now: Time) -> Condition {
    if nodes.is_empty() {
        let message = "each GPU that claims can get is for one claim at a time".to_owned();
        return condition(class, (EXCLUSIVE, "True", "Exclusive"), message, now);
    }
    let message = format!(
        "the queue does not use the GPUs of {} node(s) that several claims can share \
         (allowMultipleAllocations in their ResourceSlices), because a job needs its GPUs alone: \
         {}. With NVIDIA's DRA driver, switch off the feature gate ConsumableShares there",
        nodes.len(),
        named(nodes),
    );
    condition(class, (EXCLUSIVE, "False", "SharedGpus"), message, now)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    #[test]
    fn the_message_names_the_nodes() {
        let class = DomainClass::new("exact", Default::default());
        let said = |count: usize| {
            let nodes: Vec<String> = (0..count).map(|at| format!("n{at}")).collect();
            let said = exclusive(&class, &nodes, Time(Timestamp::UNIX_EPOCH));
            (said.status, said.reason, said.message)
        };
        let (status, reason, _) = said(0);
        assert_eq!((&*status, &*reason), ("True", "Exclusive"));
        let (status, reason, message) = said(12);
        assert_eq!((&*status, &*reason), ("False", "SharedGpus"));
        assert!(message.contains("12 node(s)"), "{message}");
        assert!(message.contains("n8, n9 and 2 more. With"), "{message}");
    }
}
