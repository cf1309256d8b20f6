//! `nvlink-webhook policies`: compared with what a cluster has, and who may
//! take a namespace out.

use std::process::Command;

use nvlink_tests::{
    programs::{self, WEBHOOK},
    wait_until,
};
use serde_json::json;

use std::time::Duration;

use crate::cluster::control_plane;

const SOON: Duration = Duration::from_secs(30);
/// The part of the cluster that the other tests do not look at.
const EXEMPT: &str = "policies-exempt";

/// `policies --check`: the exit status, and what it prints.
fn check() -> (Option<i32>, String) {
    let mut command = Command::new(programs::path(WEBHOOK).unwrap());
    command.args(["policies", "--check", "--exempt-namespace", EXEMPT]);
    let output = command
        .env("KUBECONFIG", control_plane().kubeconfig())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// The policies without their bindings, which would hold in the namespaces of all tests.
fn policies() -> String {
    let printed = ["policies", "--exempt-namespace", EXEMPT];
    let printed = programs::run(WEBHOOK, &printed, "").unwrap();
    let is_policy = |document: &&str| !document.contains("kind: ValidatingAdmissionPolicyBinding");
    let documents: Vec<_> = printed.split("---\n").filter(is_policy).collect();
    documents.join("---\n")
}

#[test]
fn check_tells_what_differs() {
    let kubectl = control_plane().kubectl();
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    kubectl.run_with(&apply, &policies()).unwrap();
    let (status, said) = check();
    assert_eq!(status, Some(1), "{said}");
    // Applied policies are as they should be, the bindings are missing.
    assert!(!said.contains("ValidatingAdmissionPolicy/"), "{said}");
    for name in ["class", "pods", "namespaces"] {
        let missing = format!("ValidatingAdmissionPolicyBinding/{name}.nvlink-domains.io");
        assert!(said.contains(&missing), "{said}");
    }
    let patch = json!({"spec": {"failurePolicy": "Ignore"}}).to_string();
    let policy = "validatingadmissionpolicy/pods.nvlink-domains.io";
    kubectl
        .run(&["patch", policy, "--type=merge", "-p", &patch])
        .unwrap();
    let (status, said) = check();
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("-failurePolicy: Ignore\n+failurePolicy: Fail"),
        "{said}"
    );
    kubectl.run_with(&apply, &policies()).unwrap();
}

#[test]
fn who_may_change_classes_may_take_a_namespace_out() {
    let kubectl = control_plane().kubectl();
    let printed = programs::run(WEBHOOK, &["policies"], "").unwrap();
    let ours = |document: &&str| document.contains("name: namespaces.nvlink-domains.io");
    let documents: Vec<_> = printed.split("---\n").filter(ours).collect();
    assert_eq!(documents.len(), 2, "a policy and its binding");
    // Under another name, so that it stands beside what the other test does.
    let documents = documents.join("---\n");
    let documents = documents.replace("namespaces.nvlink-domains.io", "out.nvlink-domains.io");
    kubectl.apply(&documents).unwrap();

    control_plane()
        .namespace("policies-out", &json!({}), &json!({}))
        .unwrap();
    for (user, verbs) in [("nora", "get"), ("clara", "get,update")] {
        let role = format!("policies-{user}");
        let named = ["create", "clusterrole", &role];
        let namespaces = ["--verb=get,update,patch", "--resource=namespaces"];
        kubectl.run(&[&named[..], &namespaces].concat()).unwrap();
        let user_flag = format!("--user={user}");
        let bind = ["create", "clusterrolebinding", &role];
        let to = format!("--clusterrole={role}");
        kubectl
            .run(&[&bind[..], &[&to, &user_flag]].concat())
            .unwrap();
        let classes = format!("{role}-classes");
        let verbs = format!("--verb={verbs}");
        let resource = "--resource=domainclasses.nvlink-domains.io";
        kubectl
            .run(&["create", "clusterrole", &classes, &verbs, resource])
            .unwrap();
        let to = format!("--clusterrole={classes}");
        kubectl
            .run(&["create", "clusterrolebinding", &classes, &to, &user_flag])
            .unwrap();
    }
    let set = |user: &str, label: &str| {
        let kubectl = control_plane().kubectl_as(user).unwrap();
        kubectl.run(&[
            "label",
            "--overwrite",
            "--dry-run=server",
            "namespace",
            "policies-out",
            label,
        ])
    };
    let out = "nvlink-domains.io/webhook=ignore";
    let denied = wait_until("the policy to hold", SOON, || {
        Ok(set("nora", out).err().map(|error| format!("{error:#}")))
    })
    .unwrap();
    assert!(
        denied.contains("rule opt-out:") && denied.contains("nora"),
        "{denied}"
    );
    set("nora", "app=x").unwrap();
    wait_until("clara's right to be known", SOON, || {
        set("clara", out).map(Some)
    })
    .unwrap();
}
