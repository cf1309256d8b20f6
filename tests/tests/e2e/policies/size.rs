//! Pods that are too large for the policies to evaluate.

use nvlink_tests::wait_until;
use serde_json::{Value, json};

use super::{SOON, allow, apply, control_plane};
use crate::pods::gpu_pod;

/// Returns a pod of a restricted class with `parts` parts, most of them variables.
fn large_pod(parts: usize) -> Value {
    let mut pod = gpu_pod("large", 1);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "large"});
    // The other parts are the container, its limit and the request that follows from it,
    // the annotation, and the tolerations of nodes that are not ready or unreachable.
    let variables = (0..parts - 6).map(|number| json!({"name": format!("V{number}")}));
    pod["spec"]["containers"][0]["env"] = variables.collect();
    pod
}

#[test]
fn an_oversized_pod_is_refused_before_the_class_policy_evaluates_it() {
    let (cluster, _turn) = control_plane();
    apply(cluster);
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
        "metadata": {"name": "large"}, "spec": {"access": {"mode": "Restricted"}}
    });
    cluster.kubectl().create(&class).unwrap();
    let admin = cluster
        .namespace("policies-large", &json!({}), &json!({}))
        .unwrap();
    allow(&admin, "role", "lara", "pods", &["create", "pods"]);
    let lara = cluster.kubectl_as("lara").unwrap();
    let lara = lara.in_namespace("policies-large");
    let create = |parts: usize| {
        let create = ["create", "--dry-run=server", "-f", "-"];
        lara.refused(&create, &large_pod(parts).to_string())
    };
    wait_until("the policies to hold", SOON, || {
        let said = create(10)?;
        Ok(said.contains("rule not-authorized:").then_some(()))
    })
    .unwrap();
    let decided = create(2000).unwrap();
    assert!(decided.contains("rule not-authorized:"), "{decided}");
    let refused = create(2001).unwrap();
    assert!(refused.contains("rule size:"), "{refused}");
    assert!(!refused.contains("class.nvlink-domains.io"), "{refused}");
}
