//! `kubectl nvlink check`: what it reports about a webhook that answers, and why it cannot tell.
//! `running/check.rs` has the webhooks that do not answer.

use std::path::Path;

use nvlink_tests::programs;
use serde_json::json;

use crate::shared::{control_plane, create_class, namespace_without_webhook, webhook};

/// Runs one of our programs. Returns its exit status, and what it printed.
pub(crate) fn run(program: &str, kubeconfig: &Path, arguments: &[&str]) -> (i32, String) {
    let program = programs::path(program).unwrap();
    let mut command = nvlink_tests::command(program);
    let output = command.args(arguments).env("KUBECONFIG", kubeconfig);
    let output = output.output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8(printed).unwrap();
    (output.status.code().unwrap(), printed)
}

/// Runs the check in `namespace` as `user`, or as the administrator.
fn check(user: Option<&str>, namespace: &str, flags: &[&str]) -> (i32, String) {
    let kubeconfig = match user {
        None => control_plane().kubeconfig().to_owned(),
        Some(user) => control_plane().kubeconfig_for(user).unwrap(),
    };
    run(
        programs::PLUGIN,
        &kubeconfig,
        &[&["check", "--namespace", namespace], flags].concat(),
    )
}

#[track_caller]
fn assert_says((status, printed): (i32, String), expected: i32, parts: &[&str]) {
    assert_eq!(status, expected, "{printed}");
    for part in parts {
        assert!(printed.contains(part), "no {part:?} in: {printed}");
    }
}

#[test]
fn a_webhook_that_answers_is_shown_with_its_decision() {
    create_class("checked", &json!({"placement": {"scope": "nvlink-domain"}}));
    let elsewhere = json!({"devices": {"resourceName": "nvidia.com/gpu-checked"}});
    let kubectl = control_plane().kubectl();
    kubectl
        .create(&json!({
            "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
            "metadata": {"name": "checked-elsewhere"}, "spec": elsewhere,
        }))
        .unwrap();
    // The API server refuses pods there that are not restricted.
    let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    let kubectl = control_plane().namespace("checked", &labels, &json!({}));
    let answers = "the webhook answers: it refuses a pod in namespace checked";
    assert_says(check(None, "checked", &[]), 0, &[answers]);
    let decided = "a pod with 1 nvidia.com/gpu gets class \"checked\", because the pod names the \
        class: scope nvlink-domain, pattern ";
    let class = check(None, "checked", &["--class", "checked"]);
    assert_says(class, 0, &[answers, decided]);

    let missing = check(None, "checked", &["--class", "checked-not"]);
    let refused = "refuses a pod that names class \"checked-not\": rule unknown-class";
    assert_says(missing, 1, &[refused]);
    let other = check(None, "checked", &["--class", "checked-elsewhere"]);
    assert_says(other, 1, &["is not for pods that request nvidia.com/gpu"]);
    let pods = kubectl.unwrap().get(&["pods"]).unwrap();
    assert_eq!(pods["items"], json!([]));
}

#[test]
fn an_exempt_namespace_is_said_to_be_exempt() {
    let admin = namespace_without_webhook("check-exempt");
    let exempt = check(None, "check-exempt", &[]);
    assert_says(exempt, 1, &["namespace check-exempt is exempt"]);

    // Who may only create pods does not learn more than this.
    for made in [
        &["role", "carl", "--verb=create", "--resource=pods"][..],
        &["rolebinding", "carl", "--role=carl", "--user=carl"],
    ] {
        admin.run(&[&["create"], made].concat()).unwrap();
    }
    let either = "either it is not registered, or namespace check-exempt is exempt";
    assert_says(check(Some("carl"), "check-exempt", &[]), 1, &[either]);
}

#[test]
fn a_check_that_does_not_reach_the_webhook_says_why() {
    webhook();
    let rights = check(Some("carla"), "default", &[]);
    let grant = "--verb=create --resource=pods -n default";
    assert_says(
        rights,
        2,
        &["the right to create pods in namespace default", grant],
    );
    let missing = check(None, "check-missing", &[]);
    assert_says(missing, 2, &["\"check-missing\" not found"]);
    let (status, printed) = run(programs::PLUGIN, Path::new("/nonexistent"), &["check"]);
    assert_says((status, printed), 2, &["no access to the cluster"]);
}
