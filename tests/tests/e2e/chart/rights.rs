//! The rights that the chart grants, compared with what a full run of both programs uses, by the
//! record of the API server: what is granted is used, and nothing else is asked for.

use std::collections::BTreeSet;

use nvlink_tests::{ControlPlane, Exporter, Helm, Kubectl, Kubelet, Node, node, wait_until};
use serde_json::{Value, json};

use super::{
    Installed, SOON, control_plane, documents,
    lifecycle::{Running, registered, start_webhook},
    node::on,
};
use crate::{
    broken,
    pods::{decision, gpu_pod},
    queued,
    shared::dry_run,
};

const VALUES: &str = "classes: {rights: {access: {mode: Restricted}}}\nwebhook: {page: {enabled: true}, extender: {enabled: true}}";

fn strings(list: &Value) -> Vec<&str> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(Value::as_str).collect()
}

/// Returns the rights in the roles of a template, such as `patch domainclasses/status`.
fn granted(template: &str) -> BTreeSet<String> {
    let rendered = Helm::new().unwrap().template(template, VALUES).unwrap();
    let mut all = BTreeSet::new();
    for role in documents(&rendered) {
        for rule in role["rules"].as_array().into_iter().flatten() {
            for resource in strings(&rule["resources"]) {
                let verbs = strings(&rule["verbs"]).into_iter();
                all.extend(verbs.map(|verb| format!("{verb} {resource}")));
            }
        }
    }
    all
}

/// Returns the rights that the requests of `account` used, and those that it lacked.
fn used(requests: &[Value], account: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut used, mut lacked) = (BTreeSet::new(), BTreeSet::new());
    for request in requests {
        let user = match &request["impersonatedUser"]["username"] {
            Value::Null => &request["user"]["username"],
            other => other,
        };
        let object = &request["objectRef"];
        let Some(resource) = object["resource"].as_str().filter(|_| user == account) else {
            continue;
        };
        let part = object["subresource"].as_str();
        let part = part.map(|part| format!("/{part}")).unwrap_or_default();
        let right = |verb: &str| format!("{verb} {resource}{part}");
        let verb = request["verb"].as_str().unwrap();
        match request["responseStatus"]["code"].as_u64() {
            Some(403) => drop(lacked.insert(right(verb))),
            // Applying a missing object creates it.
            Some(201) if verb == "patch" => used.extend([right("patch"), right("create")]),
            _ => drop(used.insert(right(verb))),
        }
    }
    (used, lacked)
}

/// Lets the webhook use each of its rights: an entry of the registration and the index of the classes
/// are restored, a restricted class is checked, and somebody asks for it. The policies of the chart are
/// those that it expects.
fn exercise_webhook(control_plane: &ControlPlane, webhook: &Running) {
    let kubectl = control_plane.kubectl();
    let team = control_plane.namespace("queue-rights", &json!({}), &json!({}));
    queued::wait_and_leave(kubectl, &team.unwrap());
    let mut pod = gpu_pod("probe", 2);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "rights"});
    wait_until("the webhook to place pods", SOON, || {
        Ok(decision(&dry_run(kubectl, &pod)?).map(drop))
    })
    .unwrap();
    wait_until("the nodes of the class to be checked", SOON, || {
        let class = kubectl.get(&["domainclass", "rights"])?.to_string();
        Ok(class.contains("\"Isolated\"").then_some(()))
    })
    .unwrap();
    // It is created anew, also where an earlier test left one.
    let index = ["classindex", "classes"];
    kubectl
        .run(&[&["delete", "--ignore-not-found"], &index[..]].concat())
        .unwrap();
    wait_until("the index to be restored", SOON, || {
        Ok(kubectl.get(&index).ok().map(drop))
    })
    .unwrap();
    wait_until("the policies to be checked", SOON, || {
        let text = webhook.controller.metrics()?;
        let current =
            ["policies", "index"].map(|what| format!("\nnvlink_webhook_{what}_current 1\n"));
        let all = current.iter().all(|series| text.contains(series));
        Ok(all.then_some(()))
    })
    .unwrap();
    let first = r#"[{"op": "remove", "path": "/webhooks/0"}]"#;
    let name = ["mutatingwebhookconfiguration", "nvlink-domains.io"];
    let patch = ["patch", "--type=json", "-p", first];
    kubectl.run(&[&patch[..], &name].concat()).unwrap();
    wait_until("the registration to be restored", SOON, || {
        Ok((registered(kubectl) == 2).then_some(()))
    })
    .unwrap();
}

/// Empties the Secret of the CA: the controller makes another CA and registers it, and the webhook, which
/// looks whether the API server trusts it, then uses a certificate of it.
fn renew_the_authority(kubectl: &Kubectl, webhook: &Running) {
    let system = kubectl.in_namespace("nvlink-system");
    let empty = [
        "patch",
        "secret",
        "webhook-ca",
        "--type=merge",
        "-p",
        r#"{"data": null}"#,
    ];
    system.run(&empty).unwrap();
    wait_until("a certificate of the new CA", SOON, || {
        let log = webhook.replica.process.log();
        Ok(log.contains("certificate renewed").then_some(()))
    })
    .unwrap();
    let mut pod = gpu_pod("renewed", 2);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "rights"});
    let placed = dry_run(kubectl, &pod).unwrap();
    assert!(decision(&placed).is_some(), "{placed:#}");
}

/// Lets an exporter on `n1` publish with allocations, and removes what it published.
fn exercise_exporter(control_plane: &ControlPlane) {
    let kubectl = control_plane.kubectl();
    node::create(kubectl, &[Node::new("n1", 8).pool("n1")]).unwrap();
    let token = on(control_plane, "n1");
    let kubelet = Kubelet::start().unwrap();
    let socket = kubelet.socket().to_str().unwrap();
    let arguments = ["--source", "sim:dgx-h100", "--kubelet-socket", socket];
    let arguments = [&arguments[..], &["--collection-interval", "100ms"]].concat();
    let exporter = Exporter::publishing(&token, "n1", &arguments).unwrap();
    wait_until("the allocations", SOON, || {
        let object = kubectl.get(&["nodetopology", "n1"])?;
        Ok(object["status"]["allocations"].is_array().then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{}", exporter.process.log()));
    if !nvlink_tests::assets::lacks_taint_rules() {
        broken::create_slice(kubectl, "n1");
        broken::set(
            &exporter,
            r#"[{"recovery-action": {"gpu": 2, "action": "gpu_reset"}}]"#,
        );
        broken::wait_for_rules(kubectl, "n1", 1);
        kubectl.run(&["delete", "resourceslice", "n1"]).unwrap();
    }
    drop(exporter);
    let program = nvlink_tests::programs::path("nvlink-exporter").unwrap();
    let mut unpublish = nvlink_tests::command(program);
    unpublish.args(["unpublish", "--node-name", "n1"]);
    let output = unpublish.env("KUBECONFIG", token).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let exporters = kubectl.in_namespace("nvlink-exporter");
    exporters
        .run(&["delete", "pod", "n1", "--force", "--grace-period=0"])
        .unwrap();
    kubectl.run(&["delete", "node", "n1"]).unwrap();
}

#[test]
fn what_is_granted_is_used_and_what_is_used_is_granted() {
    let (control_plane, _turn) = control_plane();
    let before = control_plane.requests().unwrap().len();
    let installed = Installed::with(control_plane, VALUES);
    let kubectl = control_plane.kubectl();
    let webhook = start_webhook(control_plane, &installed.helm, VALUES);
    exercise_webhook(control_plane, &webhook);
    renew_the_authority(kubectl, &webhook);
    exercise_exporter(control_plane);
    // While both still have their rights.
    let requests = control_plane.requests().unwrap();
    drop(webhook);

    for (template, account) in [
        ("exporter/rbac.yaml", "nvlink-exporter:nvlink-exporter"),
        ("webhook/rbac.yaml", "nvlink-system:nvlink-webhook"),
        (
            "webhook/controller-rbac.yaml",
            "nvlink-system:nvlink-webhook-controller",
        ),
    ] {
        let account = format!("system:serviceaccount:{account}");
        let (used, lacked) = used(&requests[before..], &account);
        assert_eq!(lacked, BTreeSet::new(), "{account} lacks rights");
        let mut idle = granted(template);
        idle.retain(|right| !used.contains(right) && !queued::is_seldom(right));
        if nvlink_tests::assets::lacks("resource.k8s.io/v1", 34) {
            idle.retain(|right| !right.contains(" resource"));
        }
        if nvlink_tests::assets::lacks_taint_rules() {
            idle.retain(|right| !right.ends_with(" devicetaintrules"));
        }
        assert_eq!(
            idle,
            BTreeSet::new(),
            "{account} has rights that it never uses"
        );
    }
    kubectl.run(&["delete", "domainclass", "rights"]).unwrap();
}
