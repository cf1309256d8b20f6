//! The condition `RequestsKnown` of a class that queues: whether a pod can request its GPUs by a name
//! that stands for GPUs without admission knowing it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use nvlink_api::{
    class::condition,
    crd::{DomainClass, condition::Condition},
};

use super::seen::named;

/// The type of the condition.
pub(super) const REQUESTS_KNOWN: &str = "RequestsKnown";

/// Returns the condition `RequestsKnown` of `class` at `now`, where these DeviceClasses serve requests
/// for other resources. `None` if there are none, which is the usual case.
pub(super) fn requests_known(
    class: &DomainClass,
    others: &[String],
    now: Time,
) -> Option<Condition> {
    if others.is_empty() {
        return None;
    }
    let resource = &class.spec.devices.resource_name;
    let message = format!(
        "a pod can get GPUs past the queue and its quotas: Kubernetes serves requests by the \
         extendedResourceName of DeviceClasses whose names for GPUs admission does not know: {}. Set the \
         name to {resource}, or remove it (kubectl edit deviceclass NAME)",
        named(others),
    );
    let shown = (REQUESTS_KNOWN, "False", "OtherResource");
    Some(condition(class, shown, message, now))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    #[test]
    fn the_message_names_the_device_classes() {
        let class = DomainClass::new("line", Default::default());
        let now = || Time(Timestamp::UNIX_EPOCH);
        assert!(requests_known(&class, &[], now()).is_none());
        let others = ["fast (example.com/gpu)".to_owned()];
        let said = requests_known(&class, &others, now()).unwrap();
        assert_eq!((&*said.status, &*said.reason), ("False", "OtherResource"));
        let names = "does not know: fast (example.com/gpu). Set the name to nvidia.com/gpu";
        assert!(said.message.contains(names), "{}", said.message);
    }
}
