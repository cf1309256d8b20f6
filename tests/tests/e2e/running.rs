//! The webhook as in production: several replicas, certificates that change, a
//! registration that somebody breaks, and pods that do not wait for any of this.
//!
//! It uses its own control planes, because it registers under the real name and restarts
//! the API server. Each runs one test at a time.

mod authority;
mod check;
mod isolated;
mod leader;
mod rights;
mod storm;

use std::sync::MutexGuard;

use nvlink_tests::{ControlPlane, Kubectl, webhook};
use serde_json::{Value, json};

use crate::shared::Turns;

/// Returns a control plane, and a guard that reserves it for one test.
fn control_plane() -> (&'static ControlPlane, MutexGuard<'static, ()>) {
    static TURNS: Turns<2> = Turns::new();
    TURNS.take(|| {
        let control_plane = ControlPlane::start().unwrap();
        webhook::install_crds(control_plane.kubectl()).unwrap();
        for (name, spec) in [
            ("nvlink", json!({"placement": {"scope": "nvlink-domain"}})),
            ("open", json!({"appliesTo": {"minGpus": 2}})),
        ] {
            let class = json!({
                "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
                "metadata": {"name": name}, "spec": spec,
            });
            control_plane.kubectl().create(&class).unwrap();
        }
        control_plane
    })
}

/// Returns the registration that the API server has.
fn registered(kubectl: &Kubectl) -> anyhow::Result<Value> {
    kubectl.get(&["mutatingwebhookconfiguration", "nvlink-domains.io"])
}
