//! Pods of a class that queues, from their creation to their start, under the webhook and the
//! policies: who may add the queue's gate, remove it, and write the queue's annotations.
//!
//! It uses its own control plane, because the policies apply to all namespaces.

pub(crate) mod alerts;
mod channels;
mod chaos;
mod claims;
mod cluster;
mod contention;
mod disrupted;
mod domains;
mod gangs;
mod gitlab;
mod growing;
mod idle;
mod jobs;
mod large;
mod leaders;
mod near;
mod nics;
mod operators;
mod placed;
mod resources;
mod showing;
mod spares;
mod timeouts;
mod volumes;

use std::time::Duration;

use nvlink_tests::{
    ControlPlane, Helm, Kubectl, Node, Webhook, node,
    programs::{self, WEBHOOK},
    wait_until, webhook,
};
use serde_json::{Value, json};

use crate::pods::{decision, gpu_pod, is_bound, wait_for_pods};

const SOON: Duration = Duration::from_secs(60);
const GATE: &str = "nvlink-domains.io/queue";
const STATE: &str = "nvlink-domains.io/queue-placement";
/// The account of the webhook, whose leader is the queue.
const QUEUE: &str = "system:serviceaccount:nvlink-system:nvlink-webhook";

/// Starts a cluster with a restricted class that queues, on one node with its taint.
fn start() -> (ControlPlane, Webhook) {
    let cluster = ControlPlane::start().unwrap();
    let all = cluster.kubectl();
    webhook::install_crds(all).unwrap();
    all.run(&["create", "namespace", "nvlink-system"]).unwrap();
    let rights = Helm::new().unwrap().template("webhook/rbac.yaml", "");
    all.apply(&rights.unwrap()).unwrap();
    // What releasing takes: no name of an account is known to the webhook or to the policies.
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "queue"},
        "rules": [
            {"apiGroups": ["nvlink-domains.io"], "resources": ["domainclasses"], "verbs": ["release"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "patch"]},
        ],
    });
    all.create(&role).unwrap();
    let account = "--serviceaccount=nvlink-system:nvlink-webhook";
    let binding = [
        "create",
        "clusterrolebinding",
        "queue",
        "--clusterrole=queue",
        account,
    ];
    all.run(&binding).unwrap();
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
        "metadata": {"name": "line"},
        "spec": {
            "access": {"mode": "Restricted"},
            "nodeSelector": {"matchLabels": {"pool": "line"}},
            "placement": {"whenUnavailable": "Queue", "queueTimeout": "150s"},
        },
    });
    all.create(&class).unwrap();
    let node = Node::new("line-1", 8)
        .label("pool", "line")
        .label("nvlink-domains.io/domain-size", "8")
        .taint("nvlink-domains.io/class", "line");
    node::create(all, &[node]).unwrap();
    // This test plays the queue.
    let account = cluster.kubeconfig_for(QUEUE).unwrap();
    let webhook = Webhook::start_with(&account, &["--without-controller"]).unwrap();
    webhook.register(all).unwrap();
    let policies = programs::run(WEBHOOK, &["policies"], "").unwrap();
    let apply = ["apply", "--server-side", "-f", "-"];
    all.run_with(&apply, &policies).unwrap();
    webhook::write_index(all).unwrap();
    (cluster, webhook)
}

/// Creates a namespace where `edith` may create and change pods, and use the class.
fn namespace(cluster: &ControlPlane) -> [Kubectl; 3] {
    let admin = cluster.namespace("team", &json!({}), &json!({})).unwrap();
    let rules = [
        (
            "pods",
            "",
            json!(["pods"]),
            json!(["create", "get", "patch", "update"]),
        ),
        (
            "use",
            "nvlink-domains.io",
            json!(["domainclasses"]),
            json!(["use"]),
        ),
    ];
    for (name, group, resources, verbs) in rules {
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": name},
            "rules": [{"apiGroups": [group], "resources": resources, "verbs": verbs}],
        });
        admin.create(&role).unwrap();
        let role = format!("--role={name}");
        let binding = ["create", "rolebinding", name, &role, "--user=edith"];
        admin.run(&binding).unwrap();
    }
    let of = |user| cluster.kubectl_as(user).unwrap().in_namespace("team");
    [admin, of("edith"), of(QUEUE)]
}

fn pod(name: &str) -> Value {
    let mut pod = gpu_pod(name, 4);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "line"});
    pod["metadata"]["labels"] = json!({"job": name});
    pod
}

fn gates(pod: &Value) -> Vec<&str> {
    let gates = pod["spec"]["schedulingGates"].as_array();
    let gates = gates.into_iter().flatten();
    gates.map(|gate| gate["name"].as_str().unwrap()).collect()
}

/// The patch by which the queue starts a pod on the node, and leaves the gates `others`.
fn start_on_node(pod: &Value, others: &[&str]) -> String {
    let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchExpressions/-";
    let host = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["line-1"]});
    let others: Vec<_> = others.iter().map(|name| json!({"name": name})).collect();
    let state = STATE.replace('/', "~1");
    json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": pod["metadata"]["resourceVersion"]},
        {"op": "add", "path": terms, "value": host},
        {"op": "add", "path": format!("/metadata/annotations/{state}"), "value": "line-1"},
        {"op": "replace", "path": "/spec/schedulingGates", "value": others},
    ])
    .to_string()
}

fn patch<'a>(name: &'a str, patch: &'a str) -> [&'a str; 6] {
    ["patch", "pod", name, "--type=json", "-p", patch]
}

#[test]
fn a_pod_waits_until_the_queue_releases_it_and_nobody_else_may() {
    let (cluster, _webhook) = start();
    let [admin, edith, queue] = namespace(&cluster);
    let mut probe = pod("probe");
    probe["spec"]["schedulingGates"] = json!([{"name": "example.com/x"}]);
    wait_until("webhook and policies", SOON, || {
        let dry = ["create", "--dry-run=server", "-f", "-", "-o", "json"];
        let seen: Value = serde_json::from_str(&edith.run_with(&dry, &probe.to_string())?)?;
        let mut gated = gpu_pod("gated", 0);
        gated["spec"]["schedulingGates"] = json!([{"name": GATE}]);
        let said = admin.refused(&dry, &gated.to_string())?;
        Ok((decision(&seen).is_some() && said.contains("rule reserved-gate:")).then_some(()))
    })
    .unwrap();

    is_gated_and_told(&admin, &edith);
    let waiting = admin.get(&["pod", "waits"]).unwrap();
    let start = start_on_node(&waiting, &[]);
    for refused in [
        json!([{"op": "remove", "path": "/spec/schedulingGates"}]).to_string(),
        start.clone(),
        json!([{"op": "add", "path": format!("/metadata/annotations/{}", STATE.replace('/', "~1")), "value": "x"}])
            .to_string(),
    ] {
        let said = edith.refused(&patch("waits", &refused), "").unwrap();
        assert!(said.contains("rule locked:"), "{said}");
    }
    queue.run(&patch("waits", &start)).unwrap();
    let bound = wait_for_pods(&admin, "job=waits", 1, is_bound);
    assert_eq!(bound[0]["spec"]["nodeName"], "line-1");
    // A second release of the same pod fails: it has changed since.
    queue.refused(&patch("waits", &start), "").unwrap();

    keeps_gates_of_others(&admin, &edith, &queue);
    lets_copies_wait_again(&admin, &bound[0]);
    refuses_what_only_the_queue_writes(&edith);
}

/// Creates the pod `waits`.
fn is_gated_and_told(admin: &Kubectl, edith: &Kubectl) {
    let object = pod("waits").to_string();
    edith
        .run_with(&["create", "--dry-run=server", "-f", "-"], &object)
        .unwrap();
    let none = admin.get(&["pods", "-l", "job=waits"]).unwrap();
    assert_eq!(none["items"], json!([]));
    let made = edith.output(&["create", "-f", "-"], &object).unwrap();
    let told = String::from_utf8_lossy(&made.stderr).into_owned();
    for part in [
        "waits in the queue for at most 150s",
        "kubectl nvlink explain waits -n team",
    ] {
        assert!(told.contains(part), "{told}");
    }
    let waiting = admin.get(&["pod", "waits"]).unwrap();
    assert_eq!(gates(&waiting), [GATE]);
    assert_eq!(decision(&waiting).unwrap()["queued"], true);
    wait_until("the scheduler to leave the pod alone", SOON, || {
        let pod = admin.get(&["pod", "waits"])?;
        let conditions = pod["status"]["conditions"].to_string();
        Ok(conditions.contains("SchedulingGated").then_some(()))
    })
    .unwrap();
}

/// Another gate comes from a webhook after ours; here the author adds both, as in a copy.
fn keeps_gates_of_others(admin: &Kubectl, edith: &Kubectl, queue: &Kubectl) {
    let mut both = pod("both");
    both["spec"]["schedulingGates"] = json!([{"name": "example.com/quota"}, {"name": GATE}]);
    edith.create(&both).unwrap();
    let stored = admin.get(&["pod", "both"]).unwrap();
    assert_eq!(gates(&stored), ["example.com/quota", GATE]);
    let start = start_on_node(&stored, &["example.com/quota"]);
    queue.run(&patch("both", &start)).unwrap();
    let stored = admin.get(&["pod", "both"]).unwrap();
    assert_eq!(gates(&stored), ["example.com/quota"]);

    let mut theirs = pod("theirs");
    theirs["spec"]["schedulingGates"] = json!([{"name": "example.com/quota"}]);
    edith.create(&theirs).unwrap();
    let stored = admin.get(&["pod", "theirs"]).unwrap();
    assert_eq!(
        gates(&stored),
        ["example.com/quota", GATE],
        "it waits for both"
    );
    // Its author may remove a gate that is not ours, and the pod still waits.
    let free = json!([{"op": "remove", "path": "/spec/schedulingGates/0"}]).to_string();
    edith.run(&patch("theirs", &free)).unwrap();
    let stored = admin.get(&["pod", "theirs"]).unwrap();
    assert_eq!(gates(&stored), [GATE]);
}

/// Nobody believes what the queue wrote into the pod that a copy was made from.
fn lets_copies_wait_again(admin: &Kubectl, started: &Value) {
    let annotations = &started["metadata"]["annotations"];
    assert_eq!(annotations[STATE], "line-1");
    // As backups restore a pod.
    let mut backup = json!({
        "apiVersion": "v1", "kind": "Pod", "spec": started["spec"], "metadata": {
            "name": "restored", "annotations": annotations, "labels": started["metadata"]["labels"],
        },
    });
    backup["spec"]["nodeName"] = Value::Null;
    admin.create(&backup).unwrap();
    let mut copies = vec!["restored"];
    if !nvlink_tests::assets::lacks("kubectl debug --keep-annotations", 32) {
        let debug = "debug waits --image=busybox --copy-to=copied --keep-annotations --keep-labels";
        admin.run(&debug.split(' ').collect::<Vec<_>>()).unwrap();
        copies.push("copied");
    }
    for name in copies {
        let copy = admin.get(&["pod", name]).unwrap();
        assert_eq!(gates(&copy), [GATE], "{name}");
        assert_eq!(copy["metadata"]["annotations"][STATE], Value::Null);
    }
}

fn refuses_what_only_the_queue_writes(edith: &Kubectl) {
    let mut gated = gpu_pod("gated", 4);
    gated["spec"]["schedulingGates"] = json!([{"name": GATE}]);
    let said = edith.refused(&["create", "-f", "-"], &gated.to_string());
    let said = said.unwrap();
    assert!(said.contains("rule reserved-gate:"), "{said}");
}
