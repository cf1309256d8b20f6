//! The index of the classes, which the policies read: it follows the classes while a controller runs, and
//! keeps them while none does.

use nvlink_tests::{ControlPlane, Kubectl, Webhook, wait_until};
use serde_json::{Value, json};

use super::{SOON, allow, apply, control_plane};
use crate::pods::gpu_pod;

const RULE: &str = "rule not-authorized: class later is restricted";

fn class(mode: &str) -> Value {
    json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
        "metadata": {"name": "later"}, "spec": {"access": {"mode": mode}},
    })
}

/// Returns a user who may create pods and nothing else, and what is said to that user about a pod of the
/// class.
fn user(cluster: &ControlPlane) -> impl Fn() -> Option<String> {
    let admin = cluster
        .namespace("policies-enforced", &json!({}), &json!({}))
        .unwrap();
    allow(&admin, "role", "eve", "pods", &["create", "pods"]);
    let eve = cluster.kubectl_as("eve").unwrap();
    let eve = eve.in_namespace("policies-enforced");
    let mut pod = gpu_pod("late", 1);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "later"});
    move || {
        let create = ["create", "--dry-run=server", "-f", "-"];
        let created = eve.run_with(&create, &pod.to_string());
        created.err().map(|error| format!("{error:#}"))
    }
}

/// Applies the class, and returns what is said about it.
fn applied(all: &Kubectl, mode: &str, flags: &str) -> String {
    let command = format!("echo '{}' | kubectl apply {flags} -f -", class(mode));
    let output = all.shell(&command).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

/// Applies the class, and waits for it as the warning says.
fn enforce(all: &Kubectl, mode: &str) {
    let said = applied(all, mode, "");
    if let Some((_, command)) = said.split_once("has written it: ") {
        let command = command.lines().next().unwrap_or_default();
        let output = all.shell(command).unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        assert_eq!(
            mode == "Restricted",
            said.contains("rule isolated: "),
            "{said}"
        );
    } else {
        assert_eq!(mode, "Open", "{said}");
        wait(all);
    }
}

fn wait(all: &Kubectl) {
    let wait = ["wait", "--for=condition=Enforced", "domainclass/later"];
    all.run(&[&wait[..], &["--timeout=60s"]].concat()).unwrap();
}

/// Waits until each API server's watch has the index: the condition is that it is written.
fn soon(what: &str, holds: impl Fn() -> bool) {
    wait_until(what, SOON, || Ok(holds().then_some(()))).unwrap();
}

#[test]
fn the_policies_follow_the_classes_and_keep_them_while_no_controller_runs() {
    let (cluster, _turn) = control_plane();
    let all = cluster.kubectl();
    apply(cluster);
    let said = user(cluster);
    let refused = || said().is_some_and(|said| said.contains(RULE));
    // The API server does not call it.
    let controller = Webhook::start(cluster.kubeconfig()).unwrap();

    // The API server takes a moment to use a policy that was just created.
    let warns = || applied(all, "Restricted", "--dry-run=server").contains("rule index: ");
    soon("the policies", warns);
    enforce(all, "Restricted");
    soon("a class that is made later", refused);
    all.run(&["delete", "domainclass", "later"]).unwrap();
    soon("a class that is deleted", || said().is_none());
    enforce(all, "Restricted");
    soon("a class that is made again", refused);
    enforce(all, "Open");
    soon("a class that is opened", || said().is_none());
    enforce(all, "Restricted");
    soon("a class that is restricted", refused);

    is_protected_and_repaired(cluster, refused);

    drop(controller);
    all.apply(&class("Open").to_string()).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(refused(), "what was restricted stays so: {:?}", said());
    let controller = Webhook::start(cluster.kubeconfig()).unwrap();
    wait(all);
    soon("the change", || said().is_none());
    drop(controller);
    all.run(&["delete", "domainclass", "later"]).unwrap();
    super::index(cluster);
}

/// Only somebody who may change classes may change the index, and the controller restores it.
fn is_protected_and_repaired(cluster: &ControlPlane, refused: impl Fn() -> bool) {
    let all = cluster.kubectl();
    let verbs = [
        "create,patch,update,delete,get",
        "classindexes.nvlink-domains.io",
    ];
    allow(all, "clusterrole", "ivan", "index", &verbs);
    let ivan = cluster.kubectl_as("ivan").unwrap();
    let empty = ["patch", "classindex", "classes", "--type=merge", "-p"];
    let empty = [&empty[..], &[r#"{"spec": {"data": {"_restricted": ""}}}"#]].concat();
    for command in [&empty[..], &["delete", "classindex", "classes"]] {
        let said = ivan.refused(command, "").unwrap();
        assert!(said.contains("rule index:"), "{said}");
    }
    for command in [&empty[..], &["delete", "classindex", "classes"]] {
        let before = all.get(&["classindex", "classes"]).unwrap()["spec"].clone();
        all.run(command).unwrap();
        soon("the index to be restored", || {
            all.get(&["classindex", "classes"])
                .is_ok_and(|found| found["spec"] == before)
        });
        soon("the class to be restricted again", &refused);
    }
}
