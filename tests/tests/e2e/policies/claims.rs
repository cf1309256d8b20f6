//! Who may make claims for devices where a class is restricted or gives GPUs by claims.

use nvlink_tests::{ControlPlane, Kubectl, assets, wait_until};
use serde_json::{Value, json};

use super::{SOON, apply, control_plane, create_class};
use crate::pods::gpu_pod;

/// Returns a claim with a request of a device class.
fn claim(name: &str, request: Value) -> Value {
    let mut request = request;
    request["name"] = json!("r");
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name}, "spec": {"devices": {"requests": [request]}},
    })
}

fn exactly(class: &str) -> Value {
    json!({"exactly": {"deviceClassName": class}})
}

fn template(name: &str, request: Value) -> Value {
    let claim = claim(name, request);
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": name}, "spec": {"spec": claim["spec"]},
    })
}

/// Returns what is said to a user who creates the object; `None` if it is allowed.
fn said(user: &Kubectl, object: &Value) -> Option<String> {
    let create = ["create", "--dry-run=server", "-f", "-"];
    let created = user.run_with(&create, &object.to_string());
    created.err().map(|error| format!("{error:#}"))
}

/// Makes a class, and returns an administrator and a user who may make claims and pods, in a
/// namespace of the class's name.
fn prepare(cluster: &ControlPlane, name: &str, spec: &Value) -> [Kubectl; 2] {
    apply(cluster);
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
        "metadata": {"name": name}, "spec": spec
    });
    create_class(cluster, &class);
    let admitted = json!({"resource.kubernetes.io/admin-access": "true"});
    let admin = cluster.namespace(name, &admitted, &json!({})).unwrap();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "claims"},
        "rules": [{
            "apiGroups": ["resource.k8s.io"], "verbs": ["create", "update", "patch", "get"],
            "resources": ["resourceclaims", "resourceclaimtemplates"],
        }, {"apiGroups": [""], "verbs": ["create"], "resources": ["pods"]}],
    });
    admin.create(&role).unwrap();
    let bind = "create rolebinding claims --role=claims --user=carla";
    admin.run(&words(bind)).unwrap();
    let carla = cluster.kubectl_as("carla").unwrap();
    [admin, carla.in_namespace(name)]
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[test]
fn nobody_makes_claims_by_hand() {
    if assets::lacks("resource.k8s.io/v1", 34) {
        return;
    }
    let (cluster, _turn) = control_plane();
    let restricted = json!({"access": {"mode": "Restricted"}});
    let [admin, carla] = prepare(cluster, "claimed", &restricted);
    let by_hand = claim("mine", exactly("gpu.nvidia.com"));
    wait_until("the policy to hold", SOON, || {
        let said = said(&carla, &by_hand).unwrap_or_default();
        Ok(said
            .contains("rule claim: a claim made by hand")
            .then_some(()))
    })
    .unwrap();
    let channel = || exactly("compute-domain-default-channel.nvidia.com");
    let first = json!({"firstAvailable": [
        {"name": "a", "deviceClassName": "compute-domain-default-channel.nvidia.com"},
        {"name": "b", "deviceClassName": "every-gpu"},
    ]});
    let mut admins = exactly("gpu.nvidia.com");
    admins["exactly"]["adminAccess"] = json!(true);
    for (object, part) in [
        (claim("other-class", exactly("every-gpu")), "made by hand"),
        (claim("first", first), "made by hand"),
        (
            template("template", exactly("gpu.nvidia.com")),
            "made by hand",
        ),
        (claim("admin", admins.clone()), "adminAccess"),
        (template("admin", admins), "adminAccess"),
        (claim("nvlink-domains-x", channel()), "only the queue"),
    ] {
        let said = said(&carla, &object).unwrap_or_else(|| panic!("allowed: {object}"));
        let refused = said.contains("rule claim: ") && said.contains(part);
        assert!(refused, "{part}: {said}");
    }
    // Channels between nodes give no GPU.
    assert_eq!(said(&carla, &template("channel", channel())), None);
    is_granted_as_the_message_says(cluster, &carla);
    assert!(
        said(&carla, &by_hand).is_some(),
        "the right is to one class"
    );
    keeps_its_owner(&admin, &carla);
    let delete = ["delete", "domainclass", "claimed"];
    cluster.kubectl().run(&delete).unwrap();
}

/// Returns the role `use-CLASS`, which the message describes, for a DeviceClass.
fn user_of(class: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": format!("use-{class}")},
        "rules": [{
            "apiGroups": ["resource.k8s.io"], "resources": ["deviceclasses"],
            "resourceNames": [class], "verbs": ["use"],
        }],
    })
}

fn is_granted_as_the_message_says(cluster: &ControlPlane, carla: &Kubectl) {
    cluster.kubectl().create(&user_of("nics")).unwrap();
    let bind = "create clusterrolebinding use-devices --clusterrole=use-nics --user=carla";
    cluster.kubectl().run(&words(bind)).unwrap();
    wait_until("the right to be known", SOON, || {
        let said = said(carla, &claim("nics", exactly("nics")));
        Ok(said.is_none().then_some(()))
    })
    .unwrap();
    let mut many = claim("many", exactly("nics"));
    let requests = (0..8).map(|at| {
        let mut request = exactly("nics");
        request["name"] = json!(format!("r{at}"));
        request
    });
    many["spec"]["devices"]["requests"] = requests.collect();
    assert_eq!(said(carla, &many), None);
    many["spec"]["devices"]["requests"][7]["exactly"]["deviceClassName"] = json!("gpu.nvidia.com");
    let two = said(carla, &many).unwrap();
    assert!(two.contains("rule claim: a claim made by hand"), "{two}");
}

/// An open class has no taint that keeps others off its nodes.
#[test]
fn nobody_gets_the_gpus_of_a_class_with_claims_past_its_queue() {
    if assets::lacks("resource.k8s.io/v1", 34) {
        return;
    }
    let (cluster, _turn) = control_plane();
    let queues =
        json!({"placement": {"whenUnavailable": "Queue"}, "devices": {"mapping": "Claim"}});
    let [admin, carla] = prepare(cluster, "queued-claims", &queues);
    let by = |classes: &[&str]| {
        let mut pod = gpu_pod("past", 0);
        for class in classes {
            let name = format!("deviceclass.resource.kubernetes.io/{class}");
            pod["spec"]["containers"][0]["resources"]["limits"][name] = json!("4");
        }
        pod
    };
    let past = by(&["gpu.nvidia.com"]);
    let refused = wait_until("the policy to hold", SOON, || Ok(said(&carla, &past))).unwrap();
    for part in [
        "rule claim: a container requests devices by DeviceClass gpu.nvidia.com",
        "class queued-claims gives GPUs by claims of its queue",
        "neither user carla nor service account queued-claims/default",
        "deviceclasses.resource.k8s.io/gpu.nvidia.com",
        "verbs [use]",
    ] {
        assert!(refused.contains(part), "{part} is not in {refused}");
    }
    let by_hand = said(&carla, &claim("mine", exactly("gpu.nvidia.com")));
    // The classes of other tests come before it.
    let part = "made by hand gives devices out of sight of the queue, and class";
    assert!(
        by_hand.as_ref().is_some_and(|said| said.contains(part)),
        "{by_hand:?}"
    );
    assert_eq!(said(&carla, &gpu_pod("plain", 2)), None);

    // Controllers make most pods, so the right of the service account counts as well.
    cluster.kubectl().create(&user_of("fast-nics")).unwrap();
    let bind = "create clusterrolebinding use-fast-nics --clusterrole=use-fast-nics --serviceaccount=queued-claims:default";
    cluster.kubectl().run(&words(bind)).unwrap();
    wait_until("the right to be known", SOON, || {
        Ok(said(&carla, &by(&["fast-nics"])).is_none().then_some(()))
    })
    .unwrap();
    let both = said(&carla, &by(&["fast-nics", "gpu.nvidia.com"])).unwrap();
    assert!(both.contains("DeviceClass *"), "{both}");
    assert_eq!(said(&admin, &past), None);
    let delete = ["delete", "domainclass", "queued-claims"];
    cluster.kubectl().run(&delete).unwrap();
}

/// What the queue makes stays its pod's.
fn keeps_its_owner(admin: &Kubectl, carla: &Kubectl) {
    let owner =
        json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1", "controller": true});
    let mut ours = claim("nvlink-domains-y", exactly("gpu.nvidia.com"));
    ours["metadata"]["ownerReferences"] = json!([owner]);
    // Kubernetes deletes a claim whose pod does not exist.
    ours["metadata"]["finalizers"] = json!(["example.com/test"]);
    admin.create(&ours).unwrap();
    let orphan = json!([{"op": "remove", "path": "/metadata/ownerReferences"}]).to_string();
    let patch = words("patch resourceclaim nvlink-domains-y --type=json --dry-run=server -p");
    let said = carla.refused(&[&patch[..], &[&*orphan]].concat(), "");
    let said = said.unwrap();
    assert!(said.contains("rule claim: only the queue"), "{said}");
    let free = json!([{"op": "remove", "path": "/metadata/finalizers"}]).to_string();
    let patch = words("patch resourceclaim nvlink-domains-y --type=json -p");
    admin.run(&[&patch[..], &[&*free]].concat()).unwrap();
}
