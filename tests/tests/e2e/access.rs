//! Restricted classes: a denial that says how to get in, and the way in.

use nvlink_tests::wait_until;
use serde_json::json;

use std::time::Duration;

use crate::{
    cluster::{control_plane, create_class, webhook},
    pods::{assert_mutated, decision, gpu_pod},
};

const SOON: Duration = Duration::from_secs(30);

/// A namespace where `user` may create pods and nothing else.
fn namespace_for(user: &str, name: &str) -> nvlink_tests::Kubectl {
    webhook();
    let admin = control_plane()
        .namespace(name, &json!({}), &json!({}))
        .unwrap();
    admin
        .run(&[
            "create",
            "role",
            "pods",
            "--verb=create,get",
            "--resource=pods",
        ])
        .unwrap();
    let user = format!("--user={user}");
    admin
        .run(&["create", "rolebinding", "pods", "--role=pods", &user])
        .unwrap();
    admin
}

/// The lines of a denial after "To grant it …:", for the administrator's shell.
fn commands(denial: &str) -> Vec<&str> {
    let mut lines = denial.lines();
    assert!(lines.any(|line| line.contains("To grant it")), "{denial}");
    lines.filter(|line| !line.trim().is_empty()).collect()
}

#[test]
fn a_restricted_class_is_denied_until_the_commands_of_the_denial_were_run() {
    create_class("restricted", &json!({"access": {"mode": "Restricted"}}));
    let admin = namespace_for("alice", "access-denied");
    let alice = control_plane()
        .kubectl_as("alice")
        .unwrap()
        .in_namespace("access-denied");
    let mut pod = gpu_pod("train", 2);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "restricted"});
    let pod_text = pod.to_string();

    let denial = alice.refused(&["create", "-f", "-"], &pod_text).unwrap();
    for part in ["restricted", "alice", "access-denied"] {
        assert!(denial.contains(part), "the denial names {part}: {denial}");
    }
    let commands = commands(&denial);
    assert_eq!(commands.len(), 2, "a role and a binding: {denial}");
    for command in &commands {
        let output = admin.shell(command).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "taken from the denial: {command}: {said}"
        );
    }
    wait_until("alice to be let in", SOON, || {
        alice.run_with(&["create", "-f", "-"], &pod_text).map(Some)
    })
    .unwrap();
    assert_mutated(&admin.get(&["pod", "train"]).unwrap(), "restricted", 2);
}

#[test]
fn a_grant_holds_in_its_namespace_alone() {
    create_class(
        "restricted-here",
        &json!({"access": {"mode": "Restricted"}}),
    );
    let here = namespace_for("bob", "access-here");
    namespace_for("bob", "access-there");
    let rule = json!({
        "apiGroups": ["nvlink-domains.io"],
        "resources": ["domainclasses"],
        "resourceNames": ["restricted-here"],
        "verbs": ["use"],
    });
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "use"},
        "rules": [rule],
    });
    here.create(&role).unwrap();
    here.run(&["create", "rolebinding", "use", "--role=use", "--user=bob"])
        .unwrap();

    let bob = control_plane().kubectl_as("bob").unwrap();
    let mut pod = gpu_pod("train", 2);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "restricted-here"});
    let pod = pod.to_string();
    let create = |namespace| {
        bob.in_namespace(namespace)
            .run_with(&["create", "-f", "-"], &pod)
    };
    wait_until("bob to be let in here", SOON, || {
        create("access-here").map(Some)
    })
    .unwrap();
    let error = format!("{:#}", create("access-there").unwrap_err());
    assert!(error.contains("restricted-here"), "{error}");
}

#[test]
fn a_claim_of_a_restricted_class_is_never_a_denial() {
    let spec =
        json!({"access": {"mode": "Restricted"}, "appliesTo": {"minGpus": 14, "maxGpus": 14}});
    create_class("restricted-claims", &spec);
    namespace_for("carol", "access-claim");
    let carol = control_plane()
        .kubectl_as("carol")
        .unwrap()
        .in_namespace("access-claim");
    let pod = carol.create(&gpu_pod("train", 14)).unwrap();
    assert_eq!(decision(&pod), None);
}

#[test]
fn a_class_that_does_not_exist_is_named_in_the_denial() {
    webhook();
    let kubectl = control_plane()
        .namespace("access-unknown", &json!({}), &json!({}))
        .unwrap();
    let mut pod = gpu_pod("train", 2);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "no-such-class"});
    let denial = kubectl
        .refused(&["create", "-f", "-"], &pod.to_string())
        .unwrap();
    assert!(denial.contains("no-such-class"), "{denial}");
}

/// Waits until an Event in the namespace of `kubectl` holds each of `parts`.
fn wait_for_event(kubectl: &nvlink_tests::Kubectl, parts: &[&str]) {
    wait_until(&format!("an event with {parts:?}"), SOON * 3, || {
        let events = kubectl.get(&["events"])?;
        let events = events["items"].as_array().cloned().unwrap_or_default();
        let mut said = events.iter().filter_map(|event| event["message"].as_str());
        Ok(said
            .find(|said| parts.iter().all(|part| said.contains(part)))
            .map(drop))
    })
    .unwrap();
}

#[test]
fn pods_of_controllers_need_the_right_of_their_service_account() {
    create_class(
        "restricted-owned",
        &json!({"access": {"mode": "Restricted"}}),
    );
    let kubectl = namespace_for("dave", "access-owned");
    let named = json!({"nvlink-domains.io/class": "restricted-owned"});
    let template = |name: &str, restart: &str| {
        let mut pod = gpu_pod("x", 2);
        pod["spec"]["restartPolicy"] = json!(restart);
        json!({
            "metadata": {"labels": {"app": name}, "annotations": named}, "spec": pod["spec"]
        })
    };
    let job = json!({"template": template("once", "Never")});
    for (kind, version, name, spec) in [
        (
            "Deployment",
            "apps/v1",
            "web",
            json!({
                "selector": {"matchLabels": {"app": "web"}}, "template": template("web", "Always")
            }),
        ),
        ("Job", "batch/v1", "once", job.clone()),
        (
            "CronJob",
            "batch/v1",
            "often",
            json!({
                "schedule": "* * * * *", "jobTemplate": {"spec": job}
            }),
        ),
    ] {
        let object = json!({
            "apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec
        });
        kubectl.create(&object).unwrap();
    }
    let denied = ["rule not-authorized", "restricted-owned"];
    for controller in ["replicaset-controller", "job-controller"] {
        wait_for_event(&kubectl, &[&denied[..], &[controller]].concat());
    }
    // The CronJob's first run may be a minute off; the Job that it makes fares as any other.
    kubectl
        .run(&["create", "job", "often-now", "--from=cronjob/often"])
        .unwrap();
    wait_until("the CronJob's Job to be refused", SOON, || {
        let events = kubectl.get(&[
            "events",
            "--field-selector",
            "involvedObject.name=often-now",
        ])?;
        Ok(events
            .to_string()
            .contains("rule not-authorized")
            .then_some(()))
    })
    .unwrap();
    let pods = kubectl.get(&["pods"]).unwrap();
    assert_eq!(pods["items"].as_array().map(Vec::len), Some(0), "{pods:#}");
}

#[test]
fn who_may_not_impersonate_gains_nothing_by_the_headers() {
    create_class(
        "restricted-mask",
        &json!({"access": {"mode": "Restricted"}}),
    );
    let admin = namespace_for("erin", "access-mask");
    // The kubeconfig of the tests impersonates already; erin needs a token of her own for more.
    admin.run(&["create", "serviceaccount", "erin"]).unwrap();
    admin
        .run(&[
            "create",
            "rolebinding",
            "erin",
            "--role=pods",
            "--serviceaccount=access-mask:erin",
        ])
        .unwrap();
    let token = admin.run(&["create", "token", "erin"]).unwrap();
    let mut pod = gpu_pod("train", 2);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "restricted-mask"});
    let pod = pod.to_string();
    let bearer = format!("--token={}", token.trim());
    let create = ["create", "-f", "-", &bearer];
    let denied = admin.refused(&create, &pod).unwrap();
    assert!(
        denied.contains("rule not-authorized") && denied.contains("access-mask:erin"),
        "{denied}"
    );
    for mask in [
        "--as=system:admin",
        "--as=system:serviceaccount:kube-system:default",
    ] {
        let refused = admin
            .refused(&[&create[..], &[mask]].concat(), &pod)
            .unwrap();
        assert!(refused.contains("cannot impersonate"), "{refused}");
    }
}
