//! What our own accounts may write: each write that we make, and those that somebody with a stolen
//! token would make. The account has all rights here, so that only the policies refuse.

use nvlink_tests::{ControlPlane, Kubectl, wait_until};
use serde_json::{Value, json};

use super::{SOON, apply, control_plane};
use crate::pods::gpu_pod;

const ACCOUNT: &str = "nvlink-webhook-controller";
const GATE: &str = "nvlink-domains.io/queue";
const TERMS: &str =
    "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";

/// A request with JSON Patch operations on an object, or on its status.
type Case = (&'static str, Value);

fn op(path: &str, value: Value) -> Value {
    json!([{"op": "add", "path": path, "value": value}])
}

fn annotation(key: &str, value: &str) -> Value {
    op(
        &format!("/metadata/annotations/{}", key.replace('/', "~1")),
        json!(value),
    )
}

fn condition(kind: &str) -> Value {
    op(
        "/status/conditions/-",
        json!({"type": kind, "status": "True"}),
    )
}

fn failed(reason: &str) -> Value {
    json!([
        {"op": "add", "path": "/status/phase", "value": "Failed"},
        {"op": "add", "path": "/status/reason", "value": reason},
        {"op": "add", "path": "/status/message", "value": "it waited 150s"},
        {"op": "add", "path": "/metadata/annotations/nvlink-domains.io~1queue-term", "value": "3"},
    ])
}

/// What the queue writes into a pod that waits.
fn writes() -> Vec<Case> {
    vec![
        (
            "place",
            annotation("nvlink-domains.io/queue-placement", "{}"),
        ),
        (
            "position",
            annotation("nvlink-domains.io/queue-position", "3"),
        ),
        (
            "leave",
            json!([{"op": "remove", "path": "/metadata/annotations/nvlink-domains.io~1queue-reason"}]),
        ),
        (
            "node",
            op(
                &format!("{TERMS}/0/matchFields"),
                json!([{"key": "metadata.name", "operator": "In", "values": ["n1"]}]),
            ),
        ),
        (
            "release",
            json!([
                {"op": "test", "path": "/spec/schedulingGates/1/name", "value": GATE},
                {"op": "remove", "path": "/spec/schedulingGates/1"},
            ]),
        ),
    ]
}

/// What it writes into the status of a pod.
fn status_writes() -> Vec<Case> {
    vec![
        ("queued", condition("nvlink-domains.io/Queued")),
        ("placed", condition("nvlink-domains.io/PlacedAsPlanned")),
        ("removed", failed("QueueRemoved")),
        ("timeout", failed("QueueTimeout")),
        ("lost", {
            let mut lost = failed("QueueNodeLost");
            let disrupted = condition("DisruptionTarget")[0].clone();
            lost.as_array_mut().unwrap().push(disrupted);
            lost
        }),
    ]
}

/// What it never writes into the spec of a pod.
fn never_in_spec() -> Vec<Case> {
    let container = json!({"name": "x", "image": "x"});
    vec![
        ("image", op("/spec/containers/0/image", json!("miner"))),
        (
            "init image",
            op("/spec/initContainers/0/image", json!("miner")),
        ),
        (
            "toleration",
            op("/spec/tolerations/-", json!({"operator": "Exists"})),
        ),
        ("deadline", op("/spec/activeDeadlineSeconds", json!(1))),
        (
            "node selector",
            op("/spec/nodeSelector", json!({"pool": "secret"})),
        ),
        (
            "preference",
            op(
                "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution",
                json!([{"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}]),
            ),
        ),
        (
            "gate of others",
            json!([{"op": "remove", "path": "/spec/schedulingGates/0"}]),
        ),
        ("container", op("/spec/containers/-", container)),
    ]
}

/// What it never writes into the metadata of a pod.
fn never_in_metadata() -> Vec<Case> {
    vec![
        ("label", op("/metadata/labels/app", json!("web"))),
        (
            "class",
            json!([{"op": "remove", "path": "/metadata/labels/nvlink-domains.io~1class"}]),
        ),
        (
            "other class",
            op("/metadata/labels/nvlink-domains.io~1class", json!("other")),
        ),
        ("annotation", annotation("example.com/x", "y")),
        (
            "annotation of others",
            json!([{"op": "remove", "path": "/metadata/annotations/example.com~1kept"}]),
        ),
        ("decision", annotation("nvlink-domains.io/decision", "{}")),
        (
            "finalizer",
            op("/metadata/finalizers", json!(["example.com/x"])),
        ),
        (
            "owner",
            op(
                "/metadata/ownerReferences",
                json!([
                    {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "u"}
                ]),
            ),
        ),
    ]
}

/// What it never writes into the status of a pod.
fn never_in_status() -> Vec<Case> {
    vec![
        ("running", op("/status/phase", json!("Running"))),
        ("succeeded", op("/status/phase", json!("Succeeded"))),
        ("evicted", failed("Evicted")),
        ("message", op("/status/message", json!("all is well"))),
        ("ready", condition("Ready")),
        ("disrupted", condition("DisruptionTarget")),
        (
            "condition of others",
            json!([{"op": "remove", "path": "/status/conditions/0"}]),
        ),
        ("address", op("/status/podIP", json!("10.0.0.1"))),
        (
            "containers",
            op(
                "/status/containerStatuses",
                json!([
                    {"name": "main", "image": "x", "imageID": "x", "ready": true, "restartCount": 0}
                ]),
            ),
        ),
        ("nominated", op("/status/nominatedNodeName", json!("n1"))),
        ("label", op("/metadata/labels/app", json!("web"))),
    ]
}

/// A pod that waits, as the webhook would have made it.
fn waiting() -> Value {
    let mut pod = gpu_pod("waits", 1);
    pod["metadata"]["labels"] = json!({"nvlink-domains.io/class": "line"});
    pod["metadata"]["annotations"] =
        json!({"nvlink-domains.io/queue-reason": "Insufficient", "example.com/kept": "yes"});
    pod["spec"]["schedulingGates"] = json!([{"name": "example.com/other"}, {"name": GATE}]);
    pod["spec"]["containers"][0]["resources"]["requests"] = json!({"cpu": "1"});
    pod["spec"]["initContainers"] = json!([{"name": "init", "image": "busybox"}]);
    pod["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}],
    }}});
    pod
}

fn patch(own: &Kubectl, pod: &str, part: &str, operations: &Value) -> anyhow::Result<String> {
    let operations = operations.to_string();
    let patch = ["patch", "pod", pod, "--dry-run=server", "--type=json", "-p"];
    let part = format!("--subresource={part}");
    let part = if part.ends_with('=') {
        vec![]
    } else {
        vec![&*part]
    };
    own.run(&[&patch[..], &[&operations], &part].concat())
}

pub(super) fn admits(name: &str, done: anyhow::Result<String>) {
    done.unwrap_or_else(|error| panic!("{name}: {error:#}"));
}

pub(super) fn refuses(name: &str, done: anyhow::Result<String>) {
    let Err(refused) = done else {
        panic!("{name} was admitted");
    };
    let refused = format!("{refused:#}");
    assert!(refused.contains("rule own: "), "{name}: {refused}");
}

/// Applies the policies on our own accounts, so that no other rule refuses, and makes a pod that waits,
/// one that was released, and one of somebody else. Returns kubectl of the account, which may do
/// everything, and of an administrator.
pub(super) fn stage(cluster: &ControlPlane, team: &str) -> (Kubectl, Kubectl) {
    apply(cluster);
    let all = cluster.kubectl();
    for kind in [
        "validatingadmissionpolicy",
        "validatingadmissionpolicybinding",
    ] {
        let names = all.run(&["get", kind, "-o", "name"]).unwrap();
        let others = names
            .lines()
            .filter(|name| name.contains("nvlink") && !name.contains("/own-"));
        for name in others {
            all.run(&["delete", name]).unwrap();
        }
    }
    let labels = json!({"resource.kubernetes.io/admin-access": "true"});
    let admin = cluster.namespace(team, &labels, &json!({})).unwrap();
    let mut released = waiting();
    released["metadata"]["name"] = json!("released");
    released["spec"]["schedulingGates"] = json!([{"name": "example.com/other"}]);
    let mut foreign = gpu_pod("foreign", 1);
    foreign["metadata"]["annotations"] = json!({"example.com/kept": "yes"});
    foreign["spec"]["schedulingGates"] = json!([{"name": "example.com/other"}]);
    for pod in [waiting(), released, foreign] {
        // The other policies apply for a moment longer.
        wait_until("the pods to be made", SOON, || admin.create(&pod).map(Some)).unwrap();
    }
    let account = format!("system:serviceaccount:nvlink-system:{ACCOUNT}");
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "own"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": account}],
    });
    all.apply(&role.to_string()).unwrap();
    let own = cluster.kubectl_as(&account).unwrap().in_namespace(team);
    // Policies apply some time after they were made.
    wait_until("the policies to apply", SOON, || {
        let odd = patch(&own, "foreign", "", &annotation("example.com/x", "y"));
        let odd = odd.map_or_else(|error| format!("{error:#}"), |_| String::new());
        let claim = own.run_with(
            &["create", "--dry-run=server", "-f", "-"],
            &claim_with(&json!("u"), "/metadata", "name", json!("mine")).to_string(),
        );
        let claim = claim.map_or_else(|error| format!("{error:#}"), |_| String::new());
        Ok((odd.contains("rule own") && claim.contains("rule own")).then_some(()))
    })
    .unwrap();
    (own, admin)
}

#[test]
fn a_stolen_token_writes_into_pods_only_what_the_queue_writes() {
    let (cluster, _turn) = control_plane();
    let (own, admin) = stage(cluster, "own-pods");
    for (name, operations) in writes() {
        admits(name, patch(&own, "waits", "", &operations));
    }
    for (name, operations) in &writes()[..2] {
        refuses(name, patch(&own, "foreign", "", operations));
    }
    for pod in ["waits", "released"] {
        for (name, operations) in status_writes() {
            admits(name, patch(&own, pod, "status", &operations));
        }
        for (name, operations) in never_in_status() {
            refuses(name, patch(&own, pod, "status", &operations));
        }
    }
    for (name, operations) in [never_in_spec(), never_in_metadata()].concat() {
        let done = patch(&own, "waits", "", &operations);
        // The API server itself refuses another container.
        match name {
            "container" => drop(done.unwrap_err()),
            _ => refuses(name, done),
        }
    }
    for (name, operations) in status_writes() {
        refuses(name, patch(&own, "foreign", "status", &operations));
    }
    other_requests(cluster, &own);
    // They are about our accounts alone.
    admits(
        "an administrator",
        patch(&admin, "foreign", "", &annotation("example.com/x", "y")),
    );
}

/// RBAC gives the account nothing but updates in other namespaces (`chart::rights`).
fn other_requests(cluster: &ControlPlane, own: &Kubectl) {
    let resized = op("/spec/containers/0/resources/requests/cpu", json!("2"));
    refuses("resize", patch(own, "waits", "resize", &resized));
    let all = cluster.kubectl();
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "nvlink-system"}});
    all.apply(&namespace.to_string()).unwrap();
    let (own, admin) = [own, all]
        .map(|one| one.in_namespace("nvlink-system"))
        .into();
    admin.create(&gpu_pod("foreign", 1)).unwrap();
    let dry = "--dry-run=server";
    refuses("delete", own.run(&["delete", "pod", "foreign", dry]));
    let path = |part: &str| format!("/api/v1/namespaces/nvlink-system/pods/foreign/{part}");
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "foreign"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    });
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "foreign"},
    });
    for (part, object) in [("binding", binding), ("eviction", eviction)] {
        let raw = ["create", "--raw", &path(part), "-f", "-"];
        refuses(part, own.run_with(&raw, &object.to_string()));
    }
    let create = |name: &str, scheduler: &str| {
        let mut pod = gpu_pod(name, 1);
        pod["spec"]["schedulerName"] = json!(scheduler);
        own.run_with(&["create", dry, "-f", "-"], &pod.to_string())
    };
    let scheduler = "nvlink-placeholder";
    admits("a placeholder", create("nvlink-placeholder-1", scheduler));
    refuses("another name", create("other", scheduler));
    refuses(
        "a pod that runs",
        create("nvlink-placeholder-1", "default-scheduler"),
    );
    admin.run(&["delete", "pod", "foreign", "--now"]).unwrap();
}

/// A claim as the queue makes it, for its pod and with its request.
fn claim(uid: &Value) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {
            "name": "nvlink-domains-waits-1",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "waits", "uid": uid, "controller": true}
            ],
        },
        "spec": {"devices": {"requests": [{"name": "gpu-0", "exactly": {
            "deviceClassName": "gpu.nvidia.com",
            "selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}],
        }}]}},
    })
}

/// The same with another value at a path.
fn claim_with(uid: &Value, path: &str, key: &str, value: Value) -> Value {
    let mut claim = claim(uid);
    claim.pointer_mut(path).unwrap()[key] = value;
    claim
}

#[test]
fn a_stolen_token_makes_only_claims_of_the_queue() {
    let (cluster, _turn) = control_plane();
    if nvlink_tests::assets::lacks("resource.k8s.io/v1", 34) {
        return;
    }
    let (own, admin) = stage(cluster, "own-claims");
    let create = |by: &Kubectl, claim: Value, dry: &[&str]| {
        let create = [&["create", "-f", "-"], dry].concat();
        by.run_with(&create, &claim.to_string())
    };
    let dry = ["--dry-run=server"];
    let pod = admin.get(&["pod", "waits"]).unwrap();
    let uid = &pod["metadata"]["uid"];
    admits("a claim", create(&own, claim(uid), &[]));
    let exactly = "/spec/devices/requests/0/exactly";
    for (name, claim) in [
        (
            "another name",
            claim_with(uid, "/metadata", "name", json!("mine")),
        ),
        (
            "no owner",
            claim_with(uid, "/metadata", "ownerReferences", json!([])),
        ),
        (
            "any device",
            claim_with(uid, exactly, "selectors", json!([])),
        ),
        (
            "devices of others",
            claim_with(uid, exactly, "adminAccess", json!(true)),
        ),
    ] {
        refuses(name, create(&own, claim, &dry));
    }
    let mut theirs = claim_with(uid, "/metadata", "name", json!("theirs"));
    theirs["metadata"]["ownerReferences"] = json!([]);
    create(&admin, theirs, &[]).unwrap();
    let delete = |name: &str| own.run(&["delete", "resourceclaim", name, "--dry-run=server"]);
    refuses("a claim of others", delete("theirs"));
    let labels = r#"{"metadata": {"labels": {"a": "b"}}}"#;
    let patch = ["patch", "resourceclaim", "nvlink-domains-waits-1"];
    let merge = ["--type=merge", "-p", labels];
    refuses("a change", own.run(&[&patch[..], &merge, &dry].concat()));
    admits(
        "a claim that is left over",
        delete("nvlink-domains-waits-1"),
    );
}

/// The registration with one entry for `client`, about `resource`.
fn registration(name: &str, client: Value, resource: &str) -> String {
    let mut entry = json!({
        "name": "pods.nvlink-domains.io", "clientConfig": client, "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]}],
    });
    entry["failurePolicy"] = json!("Ignore");
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name}, "webhooks": [entry],
    })
    .to_string()
}

#[test]
fn a_stolen_token_registers_only_our_service() {
    let (cluster, _turn) = control_plane();
    let (own, admin) = stage(cluster, "own-registration");
    let service = |namespace: &str, name: &str| json!({"service": {"namespace": namespace, "name": name, "path": "/mutate"}});
    let ours = service("nvlink-system", "nvlink-webhook");
    let apply = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "-f",
        "-",
    ];
    let name = "nvlink-domains.io";
    admits(
        "ours",
        own.run_with(&apply, &registration(name, ours.clone(), "pods")),
    );
    for (what, registration) in [
        (
            "another Service",
            registration(name, service("team", "nvlink-webhook"), "pods"),
        ),
        (
            "a URL",
            registration(name, json!({"url": "https://example.com"}), "pods"),
        ),
        ("secrets", registration(name, ours.clone(), "secrets")),
        ("everything", registration(name, ours.clone(), "*")),
        ("another registration", registration("mine", ours, "pods")),
    ] {
        refuses(what, own.run_with(&apply, &registration));
    }
    // What an administrator registered by URL stays so.
    let by_url = registration(name, json!({"url": "https://example.com"}), "pods");
    admin
        .run_with(&["apply", "--server-side", "-f", "-"], &by_url)
        .unwrap();
    admits("the URL that is there", own.run_with(&apply, &by_url));
    admin
        .run(&["delete", "mutatingwebhookconfiguration", name])
        .unwrap();
}
