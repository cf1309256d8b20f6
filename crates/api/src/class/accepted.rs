//! The condition `Accepted` of a class.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::crd::{DomainClass, condition::Condition};

use super::Class;

const ACCEPTED: &str = "Accepted";

/// Returns the condition `Accepted` of `class` at `now`. It keeps the transition
/// time of the existing condition unless the status changes, so the caller only
/// needs to write a condition that differs.
#[must_use]
pub fn accepted(class: &DomainClass, now: Time) -> Condition {
    let name = class.metadata.name.as_deref().unwrap_or_default();
    let (status, reason, message) = match Class::new(name, &class.spec) {
        Err(error) => ("False", "Invalid", error.to_string()),
        Ok(_) => ("True", "Valid", "pods may use the class".to_owned()),
    };
    condition(class, (ACCEPTED, status, reason), message, now)
}

/// Returns a condition of `class` with the given type, status and reason.
#[must_use]
pub fn condition(
    class: &DomainClass,
    (type_, status, reason): (&str, &str, &str),
    message: String,
    now: Time,
) -> Condition {
    let conditions = class.status.as_ref().map(|status| &status.conditions);
    let before = conditions.into_iter().flatten();
    let same = before
        .filter(|condition| condition.type_ == type_ && condition.status == status)
        .map(|condition| condition.last_transition_time.clone())
        .next();
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: class.metadata.generation,
        last_transition_time: same.unwrap_or(now),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::crd::domain_class::DomainClassStatus;

    fn class(spec: Value) -> DomainClass {
        DomainClass::new("c", serde_json::from_value(spec).unwrap())
    }

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn each_class_has_its_reason() {
        for (spec, status, reason, part) in [
            (json!({}), "True", "Valid", "pods may"),
            (
                json!({"minBandwidth": "fast"}),
                "False",
                "Invalid",
                "spec.minBandwidth \"fast\"",
            ),
            (
                json!({
                    "placement": {"whenUnavailable": "Queue"}, "devices": {"mapping": "Claim"}
                }),
                "True",
                "Valid",
                "pods may",
            ),
            (
                json!({"placement": {"whenUnavailable": "Queue"}}),
                "True",
                "Valid",
                "pods may",
            ),
        ] {
            let mut class = class(spec);
            class.metadata.generation = Some(3);
            let condition = accepted(&class, at(7));
            assert_eq!(
                (condition.status.as_str(), condition.reason.as_str()),
                (status, reason)
            );
            assert!(condition.message.contains(part), "{}", condition.message);
            assert_eq!(condition.observed_generation, Some(3));
            assert_eq!(condition.last_transition_time, at(7));
        }
    }

    #[test]
    fn the_time_is_that_of_the_last_change() {
        let mut class = class(json!({}));
        let first = accepted(&class, at(1));
        class.status = Some(DomainClassStatus {
            conditions: vec![first],
            scope_labels: None,
        });
        assert_eq!(accepted(&class, at(2)).last_transition_time, at(1));
        class.spec.min_bandwidth = Some("fast".to_owned());
        assert_eq!(accepted(&class, at(3)).last_transition_time, at(3));
    }
}
