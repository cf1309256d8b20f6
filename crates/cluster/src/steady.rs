//! The condition `Steady` of a class that queues: whether the graphs of its nodes stay as they are.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use nvlink_api::{
    class::condition,
    crd::{DomainClass, condition::Condition},
};

use super::seen::named;

/// The type of the condition.
pub(super) const STEADY: &str = "Steady";

/// Returns the condition `Steady` of `class` at `now`, on whose `nodes` the queue starts no job.
/// `None` if there are none, which is the usual case.
pub(super) fn steady(class: &DomainClass, nodes: &[String], now: Time) -> Option<Condition> {
    if nodes.is_empty() {
        return None;
    }
    let message = format!(
        "the queue starts no job on {} node(s) whose NodeTopology shows other links again and again: \
         {}. It goes on ten minutes after the last but three changes. See which links come and go, \
         and who writes the NodeTopology",
        nodes.len(),
        named(nodes),
    );
    Some(condition(
        class,
        (STEADY, "False", "GraphChanges"),
        message,
        now,
    ))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    #[test]
    fn the_message_names_the_nodes() {
        let class = DomainClass::new("line", Default::default());
        let now = || Time(Timestamp::UNIX_EPOCH);
        assert!(steady(&class, &[], now()).is_none());
        let said = steady(&class, &["n1".to_owned()], now()).unwrap();
        assert_eq!((&*said.status, &*said.reason), ("False", "GraphChanges"));
        assert!(said.message.contains("1 node(s)") && said.message.contains(": n1. "));
    }
}
