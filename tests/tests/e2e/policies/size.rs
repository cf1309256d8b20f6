//! Pods that are too large for the policies to evaluate.

use nvlink_tests::{ControlPlane, Kubectl, wait_until};
use serde_json::{Value, json};

use super::{SOON, allow, apply, control_plane, create_class, index};
use crate::pods::gpu_pod;

/// Returns a pod of a restricted class with `parts` parts, most of them variables.
fn large_pod(parts: usize) -> Value {
    let mut pod = gpu_pod("large", 1);
    // As the webhook leaves it, so that the condition that skips ordinary pods is evaluated, too.
    for kind in ["annotations", "labels"] {
        pod["metadata"][kind] = json!({"nvlink-domains.io/class": "large"});
    }
    // The other parts are the container, its limit and the request that follows from it,
    // the annotation, the label, and the tolerations of nodes that are not ready or unreachable.
    let variables = (0..parts - 7).map(|number| json!({"name": format!("V{number}")}));
    pod["spec"]["containers"][0]["env"] = variables.collect();
    pod
}

#[test]
fn an_oversized_pod_is_refused_before_its_class_is_looked_up() {
    let (cluster, _turn) = control_plane();
    apply(cluster);
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
        "metadata": {"name": "large"}, "spec": {"access": {"mode": "Restricted"}}
    });
    create_class(cluster, &class);
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
    assert!(!refused.contains("rule not-authorized:"), "{refused}");
    two_hundred_classes_are_no_more_than_the_api_server_evaluates(cluster, &lara);
}

/// The API server ends an expression that costs too much, and then refuses the pod.
fn two_hundred_classes_are_no_more_than_the_api_server_evaluates(
    cluster: &ControlPlane,
    lara: &Kubectl,
) {
    let classes = (0..200).map(|number| {
        let labels = json!({"pool": format!("many-{number}"), "zone": "a"});
        json!({
            "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
            "metadata": {"name": format!("many-{number}"), "labels": {"many": "yes"}},
            "spec": {"access": {"mode": "Restricted"}, "nodeSelector": {"matchLabels": labels}},
        })
    });
    let classes: Value = classes.collect();
    let all = json!({"apiVersion": "v1", "kind": "List", "items": classes});
    let create = ["create", "-f", "-"];
    cluster
        .kubectl()
        .run_with(&create, &all.to_string())
        .unwrap();
    index(cluster);
    let mut tolerates = large_pod(1998);
    tolerates["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    tolerates["metadata"] = json!({"name": "large"});
    let mut selects = large_pod(1990);
    selects["metadata"] = json!({"name": "large"});
    selects["spec"]["nodeSelector"] = json!({"pool": "many-199", "zone": "a"});
    for (pod, rule, class) in [
        (large_pod(2000), "not-authorized", "class large"),
        (tolerates, "toleration", " others: neither user lara"),
        (selects, "node-selector", "class many-199"),
    ] {
        let create = ["create", "--dry-run=server", "-f", "-"];
        wait_until("the index to be known", SOON, || {
            let said = lara.refused(&create, &pod.to_string())?;
            let right = said.contains(&format!("rule {rule}: ")) && said.contains(class);
            anyhow::ensure!(right, "{said}");
            Ok(Some(()))
        })
        .unwrap();
    }
    let delete = ["delete", "domainclass", "-l", "many=yes", "--wait=false"];
    cluster.kubectl().run(&delete).unwrap();
    index(cluster);
}
