//! Classes that cannot be used, and are guarded all the same.

use nvlink_topology::Scope;
use serde_json::Value;

use super::{Class, GPU};
use crate::crd::{
    access::GrantedIn,
    domain_class::{DomainClassSpec, Environment, Scheduler},
};

/// A class that cannot be used. Nobody gets it, and its nodes stay as guarded
/// as they were: an administrator's typo opens nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Broken {
    /// Why it cannot be used.
    pub reason: String,
    /// What can be told of it: its name, whether it is restricted (it is,
    /// where that cannot be told), where the right to it is held, and its node selector.
    pub(crate) guard: Class,
}

impl Broken {
    /// The class `name`, whose `spec` (null where nothing of it is known)
    /// cannot be used for `reason`.
    #[must_use]
    pub fn new(name: &str, spec: &Value, reason: String) -> Self {
        let access = spec.get("access");
        let open = match access.and_then(|access| access.get("mode")) {
            Some(mode) => mode == "Open",
            // Open is what a spec means that does not say.
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
            // Who is listed here is one of the things that may be wrong: the
            // right to use the class is what Roles say.
            ci_projects: Vec::new(),
            // The daemons of its nodes are none the less needed there.
            daemon_namespaces: daemons
                .filter_map(|name| Some(name.as_str()?.to_owned()))
                .collect(),
            selector: selector.collect(),
            min_bandwidth: None,
            applies_to: None,
            scope: Scope::NvlinkDomain,
            resource: GPU.to_owned(),
            environment: Environment::default(),
            scheduler: Scheduler::default(),
            unready: None,
        };
        Self { reason, guard }
    }
}

impl Class {
    /// The class `name` from its spec as the API server, or a file, has it.
    ///
    /// # Errors
    /// When it cannot be read, or contradicts itself.
    pub fn read(name: &str, spec: &Value) -> Result<Self, Box<Broken>> {
        let broken = |reason| Box::new(Broken::new(name, spec, reason));
        let parsed: DomainClassSpec = serde_json::from_value(spec.clone())
            .map_err(|error| broken(format!("it cannot be read: {error}")))?;
        Self::new(name, &parsed).map_err(|error| broken(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_cannot_be_told_is_restricted() {
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
