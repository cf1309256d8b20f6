//! The leader's report about the nodes of a restricted class: nodes without its taint,
//! and pods that are older than the class.

use std::time::Duration;

use nvlink_tests::{
    ControlPlane, Kubectl, Node, Replica, certificates::Authority, node, wait_until, workdir,
};
use serde_json::{Value, json};

use super::control_plane;

const SOON: Duration = Duration::from_secs(60);

fn replica(kubeconfig: &std::path::Path) -> Replica {
    let directory = workdir::fresh("isolated").unwrap();
    let files = Authority::new("isolated").unwrap();
    let files = files.issue("tls", &directory).unwrap();
    let [cert, key] = [&files.certificate, &files.key].map(|path| path.to_string_lossy());
    let arguments = ["--tls-cert", &cert, "--tls-key", &key];
    let others = ["--lease-name", "test-of-isolation", "--drain-seconds", "0"];
    let exempt = ["--exempt-namespace", "isolated-out,isolated-nowhere"];
    let arguments = [&arguments[..], &others, &exempt].concat();
    Replica::start(kubeconfig, &arguments).unwrap()
}

/// Returns a pod like that of a daemon, for the node `node`.
fn daemon(name: &str, node: &str, account: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "serviceAccountName": account,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "busybox"}]
        }
    })
}

/// Grants a service account of the namespace the use of the class.
fn grant(admin: &Kubectl) {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "use"},
        "rules": [{
            "apiGroups": ["nvlink-domains.io"], "resources": ["domainclasses"],
            "resourceNames": ["isolated"], "verbs": ["use"]
        }]
    });
    admin.create(&role).unwrap();
    let account = "--serviceaccount=isolated:user";
    for arguments in [
        &["serviceaccount", "user"][..],
        &["rolebinding", "use", "--role=use", account],
    ] {
        admin.run(&[&["create"], arguments].concat()).unwrap();
    }
}

/// Waits until the condition of this type has the reason, and returns its message.
fn condition(kubectl: &Kubectl, type_: &str, reason: &str) -> String {
    wait_until(&format!("the reason {reason}"), SOON, || {
        let class = kubectl.get(&["domainclass", "isolated"])?;
        let conditions = class["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let Some(found) = conditions.find(|one| one["type"] == type_) else {
            anyhow::bail!("no condition: {class}");
        };
        anyhow::ensure!(found["reason"] == reason, "{found}");
        Ok(found["message"].as_str().map(str::to_owned))
    })
    .unwrap()
}

/// Creates two nodes, one of them with the taint, and pods that are older than the class.
/// Returns the namespace of the pods that do not belong there.
fn prepare(cluster: &ControlPlane) -> Kubectl {
    let space = |name: &str, labels: Value| {
        let space = cluster.namespace(name, &labels, &json!({}));
        space.unwrap()
    };
    let admin = space("isolated", json!({}));
    grant(&admin);
    let pool = |name: &str| Node::new(name, 8).label("pool", "isolated");
    let tainted = pool("isolated-1").taint("nvlink-domains.io/class", "isolated");
    node::create(&admin, &[tainted, pool("isolated-2")]).unwrap();
    let ignored = json!({"nvlink-domains.io/webhook": "ignore"});
    for (kubectl, pod) in [
        (&admin, daemon("early", "isolated-1", "default")),
        (&admin, daemon("waits", "nowhere", "default")),
        (&admin, daemon("allowed", "isolated-1", "user")),
        (
            &space("isolated-out", json!({})),
            daemon("exempt", "isolated-1", "default"),
        ),
        (
            &space("isolated-ignored", ignored),
            daemon("ignored", "isolated-1", "default"),
        ),
    ] {
        kubectl.create(&pod).unwrap();
    }
    wait_until("the pod to be bound", SOON, || {
        let pod = admin.get(&["pod", "early"])?;
        Ok(pod["spec"]["nodeName"].as_str().map(drop))
    })
    .unwrap();
    admin
}

/// Runs the two commands of a message.
fn obey(kubectl: &Kubectl, message: &str) {
    let after = |words: &str| message.split(words).nth(1).expect(message);
    let taint = after("To keep other pods off: ")
        .split("; ")
        .next()
        .unwrap();
    // There is no kubelet that would end a pod.
    let delete = format!("{} --force --grace-period=0", after("To delete them: "));
    for command in [&delete, taint] {
        let output = kubectl.shell(command).unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
    }
}

#[track_caller]
fn assert_counts(replica: &Replica, untainted: usize, strays: usize) {
    let page = replica.metrics().unwrap();
    for (name, count) in [("untainted_nodes", untainted), ("stray_pods", strays)] {
        let line = format!("nvlink_webhook_{name}{{class=\"isolated\"}} {count}\n");
        assert!(page.contains(&line), "{line} is not in {page}");
    }
}

fn assert_shown_as_not_isolated(kubectl: &Kubectl) {
    let table = kubectl.run(&["get", "domainclass", "isolated"]).unwrap();
    let shown = table.split_whitespace().any(|word| word == "False");
    assert!(table.contains("ISOLATED") && shown, "{table}");
}

#[test]
fn nodes_and_pods_older_than_a_restricted_class_are_named_and_counted() {
    let (control_plane, _turn) = control_plane();
    let kubectl = &prepare(control_plane);
    let replica = replica(control_plane.kubeconfig());
    let mut class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
        "metadata": {"name": "isolated"}, "spec": {
            "access": {"mode": "Open"},
            "nodeSelector": {"matchLabels": {"pool": "isolated"}}
        },
    });
    class["metadata"]["annotations"] = json!({"nvlink-domains.io/preview-restricted": "true"});
    kubectl.create(&class).unwrap();
    let message = condition(kubectl, "Restrictable", "PodsRefused");
    for part in [
        "the pods of 2 object(s) would be refused when they are made again",
        ": Pod isolated/early: rule toleration: ",
        "; Pod isolated/waits: rule toleration: ",
        "kubectl patch domainclasses.nvlink-domains.io isolated --type=json",
    ] {
        assert!(message.contains(part), "{part} is not in {message}");
    }

    class["spec"]["access"]["mode"] = json!("Restricted");
    kubectl.apply(&class.to_string()).unwrap();
    let message = condition(kubectl, "Isolated", "NodesWithoutTaint");
    for part in [
        "1 node(s) of the class do not have its taint, so any pod may run there: isolated-2.",
        "2 pod(s) are on nodes of the class",
        "isolated/early (on isolated-1), isolated/waits (waiting).",
    ] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    assert_shown_as_not_isolated(kubectl);
    assert_counts(&replica, 1, 2);
    obey(kubectl, &message);
    let message = condition(kubectl, "Isolated", "Isolated");
    assert!(message.starts_with("2 node(s) have the taint"), "{message}");
    assert_counts(&replica, 0, 0);

    class["spec"]["access"]["mode"] = json!("Open");
    kubectl.apply(&class.to_string()).unwrap();
    wait_until("the condition to be removed", SOON, || {
        let class = kubectl.run(&["get", "domainclass", "isolated", "-o", "yaml"])?;
        Ok((!class.contains("type: Isolated")).then_some(()))
    })
    .unwrap();
    // The pods that remain may use the class, or no rule applies to them.
    let message = condition(kubectl, "Restrictable", "NoneRefused");
    assert!(message.contains("none of the pods"), "{message}");
    kubectl.run(&["delete", "domainclass", "isolated"]).unwrap();
    let log = replica.process.log();
    assert_eq!(log.matches("an exempt namespace does not exist").count(), 1);
    assert!(log.contains("isolated-nowhere"), "{log}");
}
