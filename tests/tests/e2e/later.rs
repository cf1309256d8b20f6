//! Pods that prepare for a class before the class exists.

use std::time::Duration;

use nvlink_tests::{Kubectl, Node, node, wait_until};
use serde_json::{Value, json};

use crate::{
    pods::{gpu_pod, is_bound, is_unschedulable, wait_for_pods},
    shared::{control_plane, create_class, webhook},
};

const SOON: Duration = Duration::from_secs(60);

/// Creates a namespace where alice and bob may create pods, and bob may use `class`.
fn namespace(name: &str, class: &str) -> Kubectl {
    webhook();
    let admin = control_plane()
        .namespace(name, &json!({}), &json!({}))
        .unwrap();
    let role = |name: &str, group: &str, resource: &str, class: &[&str], verb: &str| {
        let mut rule = json!({"apiGroups": [group], "resources": [resource], "verbs": [verb]});
        if !class.is_empty() {
            rule["resourceNames"] = json!(class);
        }
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": name}, "rules": [rule]
        })
    };
    admin
        .create(&role("pods", "", "pods", &[], "create"))
        .unwrap();
    let may_use = role("use", "nvlink-domains.io", "domainclasses", &[class], "use");
    admin.create(&may_use).unwrap();
    for (name, role, user) in [
        ("alice-pods", "--role=pods", "--user=alice"),
        ("bob-pods", "--role=pods", "--user=bob"),
        ("bob-use", "--role=use", "--user=bob"),
    ] {
        admin
            .run(&["create", "rolebinding", name, role, user])
            .unwrap();
    }
    admin
}

/// Returns a pod for the nodes that a future class of this name will have.
fn early(name: &str, class: &str) -> Value {
    let mut pod = gpu_pod(name, 0);
    pod["metadata"]["labels"] = json!({"app": "early"});
    pod["spec"]["nodeSelector"] = json!({"pool": class});
    pod["spec"]["tolerations"] =
        json!([{"key": "nvlink-domains.io/class", "value": class, "effect": "NoSchedule"}]);
    pod
}

#[test]
fn a_pod_can_prepare_for_a_class_only_with_the_right_to_use_it() {
    let class = "later-future";
    let admin = namespace("later", class);
    let of = |user: &str| {
        control_plane()
            .kubectl_as(user)
            .unwrap()
            .in_namespace("later")
    };
    let mut gated = early("gated", class);
    gated["spec"]["schedulingGates"] = json!([{"name": "example.com/later"}]);
    for pod in [early("alice", class), gated] {
        let refused = of("alice").refused(&["create", "-f", "-"], &pod.to_string());
        let refused = refused.unwrap();
        assert!(refused.contains("rule toleration:"), "{refused}");
    }
    let waiting = early("bob", class).to_string();
    wait_until("bob's right to be known", SOON, || {
        of("bob")
            .run_with(&["create", "-f", "-"], &waiting)
            .map(Some)
    })
    .unwrap();
    wait_for_pods(&admin, "app=early", 1, is_unschedulable);

    let spec = json!({
        "access": {"mode": "Restricted"},
        "nodeSelector": {"matchLabels": {"pool": class}}
    });
    create_class(class, &spec);
    let kubectl = control_plane().kubectl();
    let node = Node::new("later-1", 8).label("pool", class);
    node::create(kubectl, &[node.taint("nvlink-domains.io/class", class)]).unwrap();
    let pods = wait_for_pods(&admin, "app=early", 1, is_bound);
    assert_eq!(
        (pods.len(), &pods[0]["metadata"]["name"]),
        (1, &json!("bob"))
    );

    // After a class is deleted, its nodes are as well protected as before it was created.
    kubectl.run(&["delete", "domainclass", class]).unwrap();
    wait_until("the class to be forgotten", SOON, || {
        let mut named = gpu_pod("named", 1);
        named["metadata"]["annotations"] = json!({"nvlink-domains.io/class": class});
        let said = of("alice").refused(&["create", "-f", "-"], &named.to_string())?;
        Ok(said.contains("rule unknown-class:").then_some(()))
    })
    .unwrap();
    let again = early("again", class).to_string();
    let refused = of("alice").refused(&["create", "-f", "-"], &again).unwrap();
    assert!(refused.contains("rule toleration:"), "{refused}");
}
