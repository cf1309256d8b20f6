//! Who may use a restricted class: by Roles from files, by CI identity, and
//! none of the ways around it.

use std::{fs, path::Path, process::Output};

use serde_json::{Value, json};

use crate::{fails, files, run, text};

const CLASS: &str = "closed";

/// Two groups, a user and a service account may use the class, each somewhere.
const RBAC: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: use-closed, namespace: ci}
rules:
- {apiGroups: [nvlink-domains.io], resources: [domainclasses], resourceNames: [closed], verbs: [use]}
- {apiGroups: [""], resources: [pods], verbs: ["*"]}
---
apiVersion: v1
kind: List
items:
- apiVersion: rbac.authorization.k8s.io/v1
  kind: RoleBinding
  metadata: {name: trainers, namespace: ci}
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: use-closed}
  subjects:
  - {kind: ServiceAccount, name: trainer, namespace: ci}
  - {kind: ServiceAccount, name: shared, namespace: other}
  - {apiGroup: rbac.authorization.k8s.io, kind: User, name: ada}
- apiVersion: rbac.authorization.k8s.io/v1
  kind: ClusterRoleBinding
  metadata: {name: chiefs}
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: all-classes}
  subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: chiefs}]
- apiVersion: rbac.authorization.k8s.io/v1
  kind: RoleBinding
  metadata: {name: lost, namespace: ci}
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: gone}
  subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: bob}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: all-classes}
rules: [{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}]
"#;

/// A document of `kind` in `namespace` whose pods name the class.
fn document(kind: &str, namespace: &str, account: &str) -> Value {
    let annotations = json!({"nvlink-domains.io/class": CLASS});
    let spec = json!({"serviceAccountName": account, "containers": [{
        "name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}
    }]});
    let metadata = json!({"name": "train", "namespace": namespace, "annotations": annotations});
    match kind {
        "Pod" => json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}),
        _ => json!({
            "apiVersion": "batch/v1", "kind": kind,
            "metadata": {"name": "train", "namespace": namespace},
            "spec": {"template": {"metadata": {"annotations": annotations}, "spec": spec}}
        }),
    }
}

fn preview(directory: &Path, arguments: &[&str], document: &Value) -> Output {
    let first = [
        "preview",
        "--class",
        "classes.yaml",
        "-o",
        "text",
        "-f",
        "-",
    ];
    run(
        directory,
        &[&first[..], arguments].concat(),
        &document.to_string(),
    )
}

#[test]
fn roles_and_bindings_from_files() {
    let directory = files();
    fs::write(directory.path().join("rbac.yaml"), RBAC).unwrap();
    let account = "system:serviceaccount:other:shared";
    for (kind, namespace, runs_as, who, allowed) in [
        ("Pod", "ci", "default", &["--user", "ada"][..], true),
        ("Pod", "other", "default", &["--user", "ada"], false),
        ("Pod", "ci", "default", &["--user", "bob"], false),
        ("Pod", "ci", "trainer", &["--user", "bob"], true),
        ("Pod", "other", "trainer", &["--user", "bob"], false),
        ("Pod", "ci", "default", &["--user", account], true),
        (
            "Pod",
            "other",
            "x",
            &["--user", "bob", "--group", "chiefs"],
            true,
        ),
        (
            "Pod",
            "other",
            "x",
            &["--as", "bob", "--as-group", "chefs"],
            false,
        ),
        ("Pod", "other", "x", &["--group", "system:masters"], true),
        // The job controller makes the pods, whoever made the Job.
        ("Job", "ci", "default", &["--user", "ada"], false),
        ("Job", "ci", "trainer", &["--user", "bob"], true),
    ] {
        let arguments = [&["--rbac", "rbac.yaml"], who].concat();
        let output = preview(
            directory.path(),
            &arguments,
            &document(kind, namespace, runs_as),
        );
        let (said, notes) = (text(&output.stdout), text(&output.stderr));
        let code = i32::from(!allowed);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{kind} {namespace} {who:?}: {said}"
        );
        assert_eq!(
            said.contains("refused by rule not-authorized"),
            !allowed,
            "{said}"
        );
        assert!(notes.contains("RoleBinding ci/lost (gone)"), "{notes}");
        assert!(!said.contains("no rights were given"), "{said}");
    }
}

#[test]
fn the_remedy_of_a_denial_is_one() {
    let directory = files();
    let job = document("Job", "ci", "trainer");
    let denied = text(&preview(directory.path(), &[], &job).stdout);
    let role = denied.lines().find_map(|line| {
        let rest = line.trim().strip_prefix("echo '")?;
        rest.strip_suffix("' | kubectl apply -f -")
    });
    fs::write(directory.path().join("role.json"), role.expect(&denied)).unwrap();
    // What `kubectl create rolebinding` makes of the second command.
    let command = "kubectl create rolebinding use-closed-trainer --role=use-closed --serviceaccount=ci:trainer -n ci";
    assert!(denied.contains(command), "{denied}");
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "use-closed-trainer", "namespace": "ci"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "use-closed"},
        "subjects": [{"kind": "ServiceAccount", "name": "trainer", "namespace": "ci"}]
    });
    fs::write(directory.path().join("binding.json"), binding.to_string()).unwrap();
    let granted = ["--cluster", "role.json,binding.json"];
    let output = preview(directory.path(), &granted, &job);
    assert!(output.status.success(), "{}", text(&output.stdout));
}

#[test]
fn ci_identity() {
    let directory = files();
    let class = |provider: Value| {
        let access = json!({"mode": "Restricted", "ciProjects": [provider]});
        let class = json!({
            "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
            "metadata": {"name": CLASS}, "spec": {"access": access}
        });
        fs::write(directory.path().join("class.json"), class.to_string()).unwrap();
    };
    let code = |document: &Value, who: &[&str]| {
        let first = ["preview", "--class", "class.json", "-o", "text", "-f", "-"];
        let output = run(
            directory.path(),
            &[&first[..], who].concat(),
            &document.to_string(),
        );
        (output.status.code().unwrap(), text(&output.stdout))
    };
    class(json!({
        "provider": "gitlab", "projectIds": [42],
        "runners": [{"namespace": "gitlab", "serviceAccount": "runner"}]
    }));
    let mut pod = document("Pod", "ci", "default");
    let runner = ["--user", "system:serviceaccount:gitlab:runner"];
    pod["metadata"]["labels"] = json!({"project.runner.gitlab.com/id": "42"});
    assert_eq!(code(&pod, &runner).0, 0, "{}", code(&pod, &runner).1);
    assert_eq!(code(&pod, &[]).0, 1, "the label alone is nobody's word");
    pod["metadata"]["labels"] = json!({"project.runner.gitlab.com/id": "43"});
    let (status, said) = code(&pod, &runner);
    assert_eq!(status, 1);
    assert!(
        said.contains("kubectl patch domainclasses.nvlink-domains.io closed"),
        "{said}"
    );

    // Buildkite's stack makes Jobs, so its runner is the job controller.
    class(json!({
        "provider": "buildkite",
        "identities": [{"namespace": "ci", "serviceAccount": "agent"}],
        "runners": [{"namespace": "kube-system", "serviceAccount": "job-controller"}]
    }));
    assert_eq!(code(&document("Job", "ci", "agent"), &[]).0, 0);
    assert_eq!(code(&document("Job", "ci", "default"), &[]).0, 1);
    assert_eq!(code(&document("Pod", "ci", "agent"), &[]).0, 1);
}

#[test]
fn ways_around_a_class_are_refused() {
    let directory = files();
    let plain = |spec: Value| {
        let mut pod = document("Pod", "ci", "default");
        pod["metadata"]["annotations"] = json!({});
        json_patch::merge(&mut pod["spec"], &spec);
        pod
    };
    let container = |field: &str, value: Value| {
        let mut pod = plain(json!({}));
        pod["spec"]["containers"][0][field] = value;
        pod
    };
    for (pod, rule) in [
        (plain(json!({"nodeName": "pair"})), "node-name"),
        (
            plain(json!({"tolerations": [{"operator": "Exists"}]})),
            "toleration",
        ),
        (
            container(
                "env",
                json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
            ),
            "visible-devices",
        ),
    ] {
        let output = preview(directory.path(), &[], &pod);
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains(&format!("refused by rule {rule}: ")),
            "{said}"
        );
    }
    let output = preview(
        directory.path(),
        &["--allow-use", CLASS],
        &plain(json!({"nodeName": "pair"})),
    );
    assert!(output.status.success(), "{}", text(&output.stdout));
}

#[test]
fn a_pod_that_a_cluster_has_was_placed_by_the_scheduler() {
    let directory = files();
    let mut pod = document("Pod", "ci", "default");
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "fast"});
    pod["metadata"]["uid"] = json!("705ab4f5");
    pod["spec"]["nodeName"] = json!("pair");
    let arguments = [
        "preview",
        "--class",
        "classes.yaml",
        "-o",
        "json",
        "-f",
        "-",
    ];
    let output = run(directory.path(), &arguments, &pod.to_string());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let after: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(after["spec"]["nodeName"], "pair");
    assert_eq!(
        after["metadata"]["labels"]["nvlink-domains.io/class"],
        "fast"
    );
}

#[test]
fn namespaces_of_a_cluster() {
    let directory = files();
    let namespaces = "\
{apiVersion: v1, kind: Namespace, metadata: {name: defaulted, annotations: {nvlink-domains.io/default-class: closed}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: left, labels: {nvlink-domains.io/webhook: ignore}}}
";
    fs::write(directory.path().join("namespaces.yaml"), namespaces).unwrap();
    let decide = |namespace: &str| {
        let mut pod = document("Pod", namespace, "default");
        pod["metadata"]["annotations"] = json!({});
        preview(directory.path(), &["--cluster", "namespaces.yaml"], &pod)
    };
    let output = decide("defaulted");
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("the default class of namespace defaulted"),
        "{said}"
    );
    for (namespace, why) in [
        ("left", "nvlink-domains.io/webhook=ignore"),
        ("kube-system", "exempt"),
        ("nvlink-system", "exempt"),
    ] {
        let output = decide(namespace);
        let said = text(&output.stdout);
        assert!(output.status.success() && said.contains(why), "{said}");
    }
}

#[test]
fn the_report_of_a_refusal() {
    let directory = files();
    let pod = document("Pod", "ci", "default").to_string();
    let arguments = [
        "preview",
        "--class",
        "classes.yaml",
        "-f",
        "-",
        "-o",
        "report",
    ];
    let output = run(directory.path(), &arguments, &pod);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let verdict = &report[0];
    assert_eq!(
        [
            &verdict["allowed"],
            &verdict["rule"],
            &verdict["class"],
            &verdict["user"]
        ],
        [
            &json!(false),
            &json!("not-authorized"),
            &json!(CLASS),
            &json!("preview")
        ]
    );
    assert!(
        verdict["message"]
            .as_str()
            .unwrap()
            .contains("kubectl apply -f -")
    );
    // Other forms print nothing that could be taken for a good document.
    for form in ["yaml", "diff", "patch", "json"] {
        let arguments = ["preview", "--class", "classes.yaml", "-f", "-", "-o", form];
        fails(
            &run(directory.path(), &arguments, &pod),
            1,
            &["refused by rule not-authorized"],
        );
    }
}
