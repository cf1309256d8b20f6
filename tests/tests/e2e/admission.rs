//! The pods that the API server stores after the webhook handled them, for pods of all kinds.

use serde_json::{Value, json};

use crate::{
    pods::{
        assert_mutated, comparable, container, decision, domain_of, gpu_pod, node_terms, spec,
        variable, wait_for_pods,
    },
    shared::{
        control_plane, create_class, dry_run, each_webhook, namespace_with_class, registration,
        webhook,
    },
};

/// Returns owners that create pods from a template, with the selector of their pods.
fn owners() -> [(Value, &'static str); 2] {
    let template = |mut spec: Value, restart: &str| {
        spec["restartPolicy"] = json!(restart);
        json!({"metadata": {"labels": {"owner": "web"}}, "spec": spec})
    };
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"owner": "web"}},
            "template": template(spec(2), "Always"),
        },
    });
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"},
        "spec": {"completions": 2, "parallelism": 2, "template": {"spec": spec(2)}},
    });
    [(deployment, "owner=web"), (job, "job-name=train")]
}

#[test]
fn a_bare_pod_gets_affinity_devices_and_a_decision() {
    create_class("adm-bare", &json!({}));
    let kubectl = namespace_with_class("adm-bare", "adm-bare");
    let pod = kubectl.create(&gpu_pod("train", 4)).unwrap();
    assert_mutated(&pod, "adm-bare", 4);
    assert_eq!(decision(&pod).unwrap()["scope"], "nvlink-domain");
    assert!(variable(&pod["spec"]["containers"][0], "NVIDIA_VISIBLE_DEVICES").is_none());
}

#[test]
fn a_pod_with_a_generated_name_is_mutated_in_the_same_way() {
    create_class("adm-generated", &json!({}));
    let kubectl = namespace_with_class("adm-generated", "adm-generated");
    let mut pod = gpu_pod("", 2);
    pod["metadata"] = json!({"generateName": "train-"});
    let pod = kubectl.create(&pod).unwrap();
    assert_mutated(&pod, "adm-generated", 2);
    assert!(
        pod["metadata"]["name"]
            .as_str()
            .unwrap()
            .starts_with("train-")
    );
}

#[test]
fn pods_of_deployments_and_jobs_are_mutated_in_the_same_way() {
    create_class("adm-owners", &json!({}));
    let kubectl = namespace_with_class("adm-owners", "adm-owners");
    for (owner, selector) in owners() {
        kubectl.create(&owner).unwrap();
        for pod in wait_for_pods(&kubectl, selector, 2, |_| true) {
            assert_mutated(&pod, "adm-owners", 2);
        }
    }
}

#[test]
fn a_class_claims_pods_that_name_no_class() {
    create_class(
        "adm-claims",
        &json!({"appliesTo": {"minGpus": 13, "maxGpus": 13}}),
    );
    let kubectl = control_plane()
        .namespace("adm-claims", &json!({}), &json!({}))
        .unwrap();
    let pod = kubectl.create(&gpu_pod("claimed", 13)).unwrap();
    assert_mutated(&pod, "adm-claims", 13);
    assert_eq!(decision(&pod).unwrap()["by"], "appliesTo");
    let pod = kubectl.create(&gpu_pod("not-claimed", 12)).unwrap();
    assert_eq!(decision(&pod), None);
}

#[test]
fn init_containers_and_sidecars_are_covered() {
    create_class("adm-init", &json!({}));
    let kubectl = namespace_with_class("adm-init", "adm-init");
    let mut pod = gpu_pod("train", 2);
    let mut sidecar = container("metrics", 0);
    sidecar["restartPolicy"] = json!("Always");
    pod["spec"]["initContainers"] =
        json!([container("warm-up", 1), container("fetch", 0), sidecar]);
    let pod = kubectl.create(&pod).unwrap();
    assert_mutated(&pod, "adm-init", 2);
    let [warm_up, fetch, sidecar] = &pod["spec"]["initContainers"].as_array().unwrap()[..] else {
        panic!("three init containers: {pod:#}")
    };
    assert_eq!(variable(warm_up, "CUDA_VISIBLE_DEVICES"), Some("0"));
    for without in [fetch, sidecar] {
        assert_eq!(
            variable(without, "NVIDIA_VISIBLE_DEVICES"),
            Some("void"),
            "{without:#}"
        );
        assert_eq!(variable(without, "CUDA_VISIBLE_DEVICES"), None);
    }
    assert_eq!(sidecar["restartPolicy"], "Always");
}

#[test]
fn each_term_of_the_users_affinity_is_narrowed() {
    create_class(
        "adm-affinity",
        &json!({"nodeSelector": {"matchLabels": {"tier": "fast"}}}),
    );
    let kubectl = namespace_with_class("adm-affinity", "adm-affinity");
    let zone = |name: &str| json!({"key": "zone", "operator": "In", "values": [name]});
    let by_name = json!({"key": "metadata.name", "operator": "In", "values": ["a"]});
    let preferred = json!([{"weight": 7, "preference": {"matchExpressions": [zone("c")]}}]);
    let mut pod = gpu_pod("train", 2);
    pod["spec"]["affinity"]["nodeAffinity"] = json!({
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [zone("a")]},
            {"matchExpressions": [zone("b")], "matchFields": [by_name]},
        ]},
        "preferredDuringSchedulingIgnoredDuringExecution": preferred,
    });
    let pod = kubectl.create(&pod).unwrap();
    assert_mutated(&pod, "adm-affinity", 2);
    let tier = json!({"key": "tier", "operator": "In", "values": ["fast"]});
    let terms = node_terms(&pod);
    assert_eq!(terms.len(), 2);
    for (term, name) in terms.iter().zip(["a", "b"]) {
        assert_eq!(
            term["matchExpressions"],
            json!([zone(name), tier, domain_of(2)])
        );
    }
    assert_eq!(terms[1]["matchFields"], json!([by_name]));
    let affinity = &pod["spec"]["affinity"]["nodeAffinity"];
    let kept = &affinity["preferredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(kept[0], preferred[0]);
    let healthy = json!({
        "key": "nvlink-domains.io/healthy-domain-size", "operator": "Gt", "values": ["1"],
    });
    let added = json!({"weight": 100, "preference": {"matchExpressions": [healthy]}});
    let fast = json!({"key": "nvlink-domains.io/slow", "operator": "DoesNotExist"});
    let faster = json!({"weight": 50, "preference": {"matchExpressions": [fast]}});
    assert_eq!(kept.as_array().unwrap()[1..], [added, faster]);
}

#[test]
fn fields_unknown_to_the_webhook_are_kept() {
    if nvlink_tests::assets::lacks("resources of whole pods", 34) {
        return;
    }
    create_class("adm-newer", &json!({}));
    let kubectl = namespace_with_class("adm-newer", "adm-newer");
    let mut pod = gpu_pod("train", 2);
    let resources =
        json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}});
    pod["spec"]["resources"] = resources.clone();
    pod["spec"]["resourceClaims"] = json!([{"name": "nic", "resourceClaimTemplateName": "nic"}]);
    pod["spec"]["containers"][0]["resources"]["claims"] =
        json!([{"name": "nic", "request": "one"}]);
    let pod = kubectl.create(&pod).unwrap();
    assert_mutated(&pod, "adm-newer", 2);
    assert_eq!(pod["spec"]["resources"], resources);
    assert_eq!(
        pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"],
        "nic"
    );
    let claims = &pod["spec"]["containers"][0]["resources"]["claims"];
    assert_eq!(claims, &json!([{"name": "nic", "request": "one"}]));
}

#[test]
fn variables_that_the_user_set_are_kept() {
    create_class(
        "adm-kept",
        &json!({"environment": {"extra": {"NCCL_DEBUG": "WARN", "OURS": "yes"}}}),
    );
    let kubectl = namespace_with_class("adm-kept", "adm-kept");
    let mut pod = gpu_pod("train", 2);
    let user = json!([
        {"name": "NCCL_DEBUG", "value": "TRACE"},
        {"name": "CUDA_VISIBLE_DEVICES", "value": "1,0"},
    ]);
    pod["spec"]["containers"][0]["env"] = user.clone();
    let pod = kubectl.create(&pod).unwrap();
    let main = &pod["spec"]["containers"][0];
    let variables = main["env"].as_array().unwrap();
    for set in user.as_array().unwrap() {
        assert!(variables.contains(set), "{variables:?}");
        assert_eq!(
            variables
                .iter()
                .filter(|one| one["name"] == set["name"])
                .count(),
            1
        );
    }
    assert_eq!(variable(main, "OURS"), Some("yes"));
}

#[test]
fn a_dry_run_shows_the_same_pod_and_stores_nothing() {
    create_class("adm-dry", &json!({}));
    let kubectl = namespace_with_class("adm-dry", "adm-dry");
    let pod = gpu_pod("train", 2);
    let shown = dry_run(&kubectl, &pod).unwrap();
    assert_mutated(&shown, "adm-dry", 2);
    let left = kubectl.get(&["pods,events,nodetopologies"]).unwrap();
    let here = |object: &&Value| object["metadata"]["namespace"] == "adm-dry";
    assert_eq!(
        left["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(here)
            .count(),
        0,
        "{left:#}"
    );
    let stored = kubectl.create(&pod).unwrap();
    assert_eq!(comparable(&shown), comparable(&stored));
}

#[test]
fn an_already_mutated_pod_is_not_changed_again() {
    create_class("adm-again", &json!({}));
    let kubectl = namespace_with_class("adm-again", "adm-again");
    let first = kubectl.create(&gpu_pod("first", 2)).unwrap();
    let mut second = comparable(&first);
    second["metadata"]["name"] = json!("second");
    let second = kubectl.create(&second).unwrap();
    assert_eq!(comparable(&first), comparable(&second));
}

#[test]
fn the_webhook_is_called_again_after_other_webhooks() {
    let mut again = registration(webhook()).unwrap();
    again["metadata"]["name"] = json!("zz-again");
    each_webhook(&mut again, |entry| {
        assert_eq!(entry["reinvocationPolicy"], "IfNeeded");
        assert_eq!(entry["sideEffects"], "None");
        entry["namespaceSelector"] =
            json!({"matchLabels": {"kubernetes.io/metadata.name": "adm-twice"}});
    });
    control_plane().kubectl().apply(&again.to_string()).unwrap();

    create_class("adm-twice", &json!({}));
    let twice = namespace_with_class("adm-twice", "adm-twice");
    let once = namespace_with_class("adm-once", "adm-twice");
    let pod = gpu_pod("train", 2);
    let stored = once.create(&pod).unwrap();
    assert_mutated(&stored, "adm-twice", 2);
    assert_eq!(spec_of(&stored), spec_of(&twice.create(&pod).unwrap()));
}

/// Returns the spec and the decision, without the parts that depend on the namespace.
fn spec_of(pod: &Value) -> (Value, Option<Value>) {
    (comparable(pod)["spec"].clone(), decision(pod))
}
