//! Restricted classes: the denial names the commands that grant access, and the commands work.

use nvlink_tests::{Kubectl, wait_until};
use serde_json::{Value, json};

use std::time::Duration;

use crate::{
    pods::{assert_mutated, decision, gpu_pod},
    shared::{control_plane, create_class, webhook},
};

const SOON: Duration = Duration::from_secs(30);

/// Creates a namespace where `user` may only create pods. Returns the administrator's
/// kubectl in it.
fn namespace_for(user: &str, name: &str) -> Kubectl {
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

/// Returns the lines of a denial after "To grant this right …:", which are commands for the
/// administrator's shell.
fn commands(denial: &str) -> Vec<&str> {
    let mut lines = denial.lines();
    assert!(
        lines.any(|line| line.contains("To grant this right")),
        "{denial}"
    );
    lines.filter(|line| !line.trim().is_empty()).collect()
}

#[test]
fn a_restricted_class_is_denied_until_the_commands_in_the_denial_are_run() {
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
            "command from the denial: {command}: {said}"
        );
    }
    wait_until("alice to be admitted", SOON, || {
        alice.run_with(&["create", "-f", "-"], &pod_text).map(Some)
    })
    .unwrap();
    assert_mutated(&admin.get(&["pod", "train"]).unwrap(), "restricted", 2);
}

/// Runs the commands in the denial of `pod` as an administrator, and waits until the same
/// pod is admitted; nothing is stored. Returns the denial.
#[track_caller]
fn passes_after_its_remedy(admin: &Kubectl, user: &str, pod: &Value) -> String {
    let user = control_plane().kubectl_as(user).unwrap();
    let user = user.in_namespace(admin.namespace());
    let create = ["create", "--dry-run=server", "-f", "-"];
    let pod = pod.to_string();
    let denial = user.refused(&create, &pod).unwrap();
    for command in commands(&denial) {
        let output = admin.shell(command).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {said}");
    }
    wait_until(&format!("the remedy of {denial}"), SOON, || {
        user.run_with(&create, &pod).map(Some)
    })
    .unwrap();
    denial
}

#[test]
fn a_pod_is_admitted_after_the_remedy_for_each_rule() {
    let spec = json!({
        "access": {"mode": "Restricted"},
        "nodeSelector": {"matchLabels": {"pool": "ways"}}
    });
    create_class("restricted-ways", &spec);
    let admin = namespace_for("alice", "access-ways");
    let tolerates = json!([{"key": "nvlink-domains.io/class", "value": "restricted-ways"}]);
    for (rule, part, field, value) in [
        (
            "not-authorized",
            "metadata",
            "annotations",
            json!({"nvlink-domains.io/class": "restricted-ways"}),
        ),
        ("toleration", "spec", "tolerations", tolerates),
        (
            "node-selector",
            "spec",
            "nodeSelector",
            json!({"pool": "ways"}),
        ),
    ] {
        // Each rule uses its own service account, so that no grant helps another.
        admin.run(&["create", "serviceaccount", rule]).unwrap();
        let mut pod = gpu_pod("train", 2);
        pod["spec"]["serviceAccountName"] = json!(rule);
        pod[part][field] = value;
        let denial = passes_after_its_remedy(&admin, "alice", &pod);
        assert!(denial.contains(&format!("rule {rule}:")), "{denial}");
    }
}

#[test]
fn a_ci_project_is_admitted_after_the_class_lists_it() {
    let runner = |name: &str| json!([{"namespace": "access-ci", "serviceAccount": name}]);
    let spec = json!({"access": {"mode": "Restricted", "ciProjects": [
        {"provider": "gitlab", "projectIds": [1], "runners": runner("listed")},
        {"provider": "gitlab", "rootNamespaceIds": [7], "runners": runner("group")},
        {"provider": "tekton", "identities": [{"namespace": "x", "serviceAccount": "y"}], "runners": runner("tekton")},
    ]}});
    create_class("restricted-ci", &spec);
    let admin = namespace_for("system:serviceaccount:access-ci:listed", "access-ci");
    for name in ["group", "tekton"] {
        let user = format!("--user=system:serviceaccount:access-ci:{name}");
        admin
            .run(&["create", "rolebinding", name, "--role=pods", &user])
            .unwrap();
    }
    for (runner, id, project) in [
        ("listed", "42", "project 42"),
        ("group", "43", "project 43"),
        ("tekton", "44", "service account access-ci/default"),
    ] {
        let mut pod = gpu_pod("train", 2);
        pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "restricted-ci"});
        pod["metadata"]["labels"] = json!({"project.runner.gitlab.com/id": id});
        let user = format!("system:serviceaccount:access-ci:{runner}");
        let denial = passes_after_its_remedy(&admin, &user, &pod);
        let to = format!("To grant this right to {project}:");
        assert!(denial.contains(&to), "{to} is not in {denial}");
        // The project is listed only for this runner, so another project is refused.
        pod["metadata"]["labels"] = json!({"project.runner.gitlab.com/id": "99"});
        pod["spec"]["serviceAccountName"] = json!("other");
        let user = control_plane().kubectl_as(&user).unwrap();
        user.in_namespace("access-ci")
            .refused(&["create", "--dry-run=server", "-f", "-"], &pod.to_string())
            .unwrap();
    }
}

#[test]
fn kubectl_prints_warnings_about_the_changes() {
    create_class("told", &json!({}));
    create_class(
        "told-restricted",
        &json!({"access": {"mode": "Restricted"}}),
    );
    let admin = namespace_for("frida", "access-told");
    let warnings = |pod: &Value| {
        let output = admin
            .output(&["create", "--dry-run=server", "-f", "-"], &pod.to_string())
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let ours = said
            .lines()
            .filter_map(|line| line.strip_prefix("Warning: nvlink-domains: "));
        ours.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut pod = gpu_pod("train", 2);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "told"});
    let said = warnings(&pod);
    assert!(
        said[0].starts_with("class \"told\", named by the pod: 2 GPUs within one nvlink-domain"),
        "{said:?}"
    );
    // The pod is in no class, but tolerates the taint of a restricted one.
    let mut pod = gpu_pod("logs", 0);
    pod["spec"]["tolerations"] =
        json!([{"key": "nvlink-domains.io/class", "value": "told-restricted"}]);
    let said = warnings(&pod);
    assert!(
        said[0].starts_with("NVIDIA_VISIBLE_DEVICES=void is set in main:"),
        "{said:?}"
    );
    assert_eq!(warnings(&gpu_pod("plain", 0)), [""; 0]);
}

#[test]
fn a_grant_applies_only_in_its_namespace() {
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
    wait_until("bob to be admitted here", SOON, || {
        create("access-here").map(Some)
    })
    .unwrap();
    let error = format!("{:#}", create("access-there").unwrap_err());
    assert!(error.contains("restricted-here"), "{error}");
}

#[test]
fn a_restricted_class_that_only_claims_a_pod_does_not_refuse_it() {
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
fn the_denial_names_a_class_that_does_not_exist() {
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

/// Waits until the message of an Event in the namespace of `kubectl` contains each of `parts`.
fn wait_for_event(kubectl: &Kubectl, parts: &[&str]) {
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

/// Returns controllers that create pods of the class `restricted-owned`: a Deployment
/// `web`, a Job `once` and a CronJob `often`.
fn owners() -> [Value; 3] {
    let template = |name: &str, restart: &str| {
        let mut pod = gpu_pod("x", 2);
        pod["spec"]["restartPolicy"] = json!(restart);
        let named = json!({"nvlink-domains.io/class": "restricted-owned"});
        json!({
            "metadata": {"labels": {"app": name}, "annotations": named}, "spec": pod["spec"]
        })
    };
    let deployment = json!({
        "selector": {"matchLabels": {"app": "web"}}, "template": template("web", "Always")
    });
    let job = json!({"template": template("once", "Never")});
    let often = json!({"schedule": "* * * * *", "jobTemplate": {"spec": job}});
    [
        ("Deployment", "apps/v1", "web", deployment),
        ("Job", "batch/v1", "once", job),
        ("CronJob", "batch/v1", "often", often),
    ]
    .map(|(kind, version, name, spec)| {
        json!({
            "apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec
        })
    })
}

#[test]
fn pods_of_controllers_need_the_right_of_their_service_account() {
    let restricted = json!({"access": {"mode": "Restricted"}});
    create_class("restricted-owned", &restricted);
    let kubectl = namespace_for("dave", "access-owned");
    for owner in owners() {
        kubectl.create(&owner).unwrap();
    }
    let denied = ["rule not-authorized", "restricted-owned"];
    for controller in ["replicaset-controller", "job-controller"] {
        wait_for_event(&kubectl, &[&denied[..], &[controller]].concat());
    }
    // The CronJob's first run may be a minute away; the Job that it would create is
    // treated like any other.
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
fn impersonation_headers_do_not_help_a_user_who_may_not_impersonate() {
    create_class(
        "restricted-mask",
        &json!({"access": {"mode": "Restricted"}}),
    );
    let admin = namespace_for("erin", "access-mask");
    // The kubeconfig of the tests already impersonates; erin needs her own token to add
    // impersonation.
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
    // With validation, kubectl would fetch the schema with the same headers, and its
    // error would be less clear.
    let create = ["create", "--validate=false", "-f", "-", &bearer];
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
