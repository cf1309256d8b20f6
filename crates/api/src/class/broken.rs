//! Classes that cannot be used, but whose nodes stay guarded.

use nvlink_topology::{BrokenGpus, Scope};
use serde_json::Value;

use super::{Class, GPU};
use crate::crd::{
    access::GrantedIn,
    domain_class::{DomainClassSpec, Environment, Mapping, Scheduler},
};

/// A class that cannot be used. No pod gets it, and its nodes stay guarded as
/// before: an administrator's typo must not open them.
#[derive(Clone, Debug, PartialEq)]
pub struct Broken {
    /// Why it cannot be used.
    pub reason: String,
    /// The fields that are known: its name, whether it is restricted (if unknown,
    /// it is), where the right to it must be granted, and its node selector.
    pub guard: Class,
}

impl Broken {
    /// Returns the class `name`, whose `spec` (null if unknown) cannot be used
    /// because of `reason`.
    #[must_use]
    pub fn new(name: &str, spec: &Value, reason: String) -> Self {
        let access = spec.get("access");
        let open = match access.and_then(|access| access.get("mode")) {
            Some(mode) => mode == "Open",
            // `Open` is the default.
            None => spec.is_object() && access.is_none_or(Value::is_object),
        };
        let labels = spec.pointer("/nodeSelector/matchLabels");
        let labels = labels.and_then(Value::as_object).into_iter().flatten();
        let selector =
            labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.into())));
        let daemons = access.and_then(|access| access.get("daemonNamespaces")?.as_array());
        let daemons = daemons.into_iter().flatten();
        let guard = Class {
            name: name.to_owned(),
            restricted: !open,
            granted_in: match access.and_then(|access| access.get("grantedIn")) {
                None => GrantedIn::Namespace,
                Some(place) if place == "Namespace" => GrantedIn::Namespace,
                Some(_) => GrantedIn::Cluster,
            },
            // The list may be what is wrong, so only RBAC grants the class.
            ci_projects: Vec::new(),
            // The nodes still need their daemons.
            daemon_namespaces: daemons
                .filter_map(|name| Some(name.as_str()?.to_owned()))
                .collect(),
            selector: selector.collect(),
            min_bandwidth: None,
            applies_to: None,
            scope: Scope::NvlinkDomain,
            gang_scope: Scope::Cluster,
            shared_host: false,
            preemptible: false,
            broken_gpus: BrokenGpus::default(),
            resource: GPU.to_owned(),
            environment: Environment::default(),
            scheduler: Scheduler::default(),
            queue: None,
            mapping: Mapping::default(),
            device_class: String::new(),
            nics: None,
        };
        Self { reason, guard }
    }
}

impl Class {
    /// Parses the class `name` from its spec, which comes from the API server or a file.
    ///
    /// # Errors
    /// When it cannot be parsed, or contradicts itself.
    pub fn read(name: &str, spec: &Value) -> Result<Self, Box<Broken>> {
        let broken = |reason| Box::new(Broken::new(name, spec, reason));
        let parsed: DomainClassSpec = serde_path_to_error::deserialize(spec)
            .map_err(|error| broken(format!("its spec cannot be parsed: {error}")))?;
        Self::new(name, &parsed).map_err(|error| broken(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_number_without_its_unit_is_refused_with_the_format() {
        let reason = |spec: Value| Class::read("c", &spec).unwrap_err().reason;
        assert_eq!(
            reason(json!({"minBandwidth": 300})),
            "its spec cannot be parsed: minBandwidth: invalid type: integer `300`, expected whole \
             GB/s with the unit, such as 400GBps"
        );
        assert_eq!(
            reason(json!({"placement": {"queueTimeout": 150}})),
            "its spec cannot be parsed: placement.queueTimeout: invalid type: integer `150`, \
             expected a time with the unit s, m or h, such as 150s"
        );
        let absent = json!({"minBandwidth": null, "placement": {"queueTimeout": null}});
        assert_eq!(Class::read("c", &absent).unwrap().min_bandwidth, None);
    }

    #[test]
    fn a_class_of_unknown_mode_is_restricted() {
        let odd = |mut spec: Value| {
            spec["minBandwidth"] = json!("fast");
            Class::read("c", &spec).unwrap_err().guard
        };
        for spec in [
            json!({}),
            json!({"access": {}}),
            json!({"access": {"mode": "Open"}}),
        ] {
            assert!(!odd(spec.clone()).restricted, "{spec}");
        }
        for access in [
            json!({"mode": "Restricted"}),
            json!({"mode": "Audit"}),
            json!({"mode": 7}),
            json!({"mode": null}),
            json!("Open"),
        ] {
            assert!(odd(json!({"access": access})).restricted, "{access}");
        }
        assert!(Class::read("c", &Value::Null).unwrap_err().guard.restricted);
        let guard = odd(json!({"nodeSelector": {"matchLabels": {"pool": "fast", "odd": 1}}}));
        assert_eq!(guard.selector, [("pool".to_owned(), "fast".to_owned())]);
        let access = json!({"mode": "Restricted", "daemonNamespaces": ["logs", 7]});
        assert_eq!(odd(json!({"access": access})).daemon_namespaces, ["logs"]);
    }
}
