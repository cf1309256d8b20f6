//! Pods that the webhook does not change.

use nvlink_tests::Kubectl;
use serde_json::{Value, json};

use crate::{
    pods::{comparable, container, decision, gpu_pod, wait_for_pods},
    shared::{control_plane, create_class, namespace_with_class, namespace_without_webhook},
};

/// Returns a pod with many kinds of fields, and no GPU.
fn ordinary() -> Value {
    let mut main = container("main", 0);
    main["env"] = json!([{"name": "MODE", "value": "test"}, {"name": "EMPTY", "value": ""}]);
    main["resources"] = json!({"requests": {"cpu": "100m"}});
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "ordinary", "labels": {"app": "x"}, "annotations": {"note": "é/~ \"q\""}},
        "spec": {
            "initContainers": [container("init", 0)],
            "containers": [main],
            "tolerations": [{"key": "x", "operator": "Exists"}],
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}},
            ]}},
        },
    })
}

fn stored(kubectl: &Kubectl, pod: &Value) -> Value {
    comparable(&kubectl.create(pod).unwrap())
}

#[test]
fn pods_without_gpus_are_stored_as_if_there_were_no_webhook() {
    create_class(
        "untouched",
        &json!({"appliesTo": {"minGpus": 1, "maxGpus": 1}, "access": {"mode": "Restricted"}}),
    );
    let with = namespace_with_class("untouched-with", "untouched");
    let without = namespace_without_webhook("untouched-without");
    assert_eq!(stored(&with, &ordinary()), stored(&without, &ordinary()));

    for kubectl in [&with, &without] {
        kubectl
            .run(&["create", "deployment", "web", "--image=busybox"])
            .unwrap();
    }
    let spec = |kubectl: &Kubectl| {
        let pods = wait_for_pods(kubectl, "app=web", 1, |_| true);
        comparable(&pods[0])["spec"].clone()
    };
    assert_eq!(spec(&with), spec(&without));
}

#[test]
fn gpu_pods_without_a_class_are_not_changed() {
    let with = control_plane()
        .namespace("untouched-classless", &json!({}), &json!({}))
        .unwrap();
    let without = namespace_without_webhook("untouched-classless-off");
    // No class of any test claims this number of GPUs.
    let pod = gpu_pod("train", 29);
    assert_eq!(stored(&with, &pod), stored(&without, &pod));
}

#[test]
fn pods_of_the_system_never_reach_the_webhook() {
    create_class("untouched-system", &json!({}));
    let kubectl = control_plane().kubectl().in_namespace("kube-system");
    let mut pod = gpu_pod("train", 2);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "untouched-system"});
    assert_eq!(decision(&kubectl.create(&pod).unwrap()), None);
}
