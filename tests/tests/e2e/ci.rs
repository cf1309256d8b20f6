//! What happens to the pods that CI systems create (`ci.yaml`), with the classes and rights of
//! `deploy/examples`, under the webhook and the policies: `golden/ci.txt`.
//!
//! It uses its own control plane, because the policies apply to all namespaces.

use std::{collections::BTreeSet, fmt::Write, fs, path::PathBuf, time::Duration};

use nvlink_tests::{
    ControlPlane, Helm, Kubectl, Webhook,
    programs::{self, WEBHOOK},
    wait_until, webhook,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::pods::decision;

const SOON: Duration = Duration::from_secs(60);
const QUEUE: &str = "nvlink-domains.io/queue";

/// A pod, as a CI system creates it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Made {
    /// The CI system.
    ci: String,
    /// The directory of `deploy/examples`.
    example: String,
    /// Who creates it.
    by: String,
    namespace: String,
    /// The project for which it counts.
    project: String,
    pod: Value,
}

pub(crate) fn example(name: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/examples");
    let path = PathBuf::from(path).join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn made() -> Vec<Made> {
    serde_saphyr::from_str(include_str!("ci.yaml")).unwrap()
}

/// Starts a cluster with the classes of the examples, and all who create pods.
fn start(all: &[Made]) -> (ControlPlane, Webhook) {
    let plane = ControlPlane::start().unwrap();
    let kubectl = plane.kubectl();
    webhook::install_crds(kubectl).unwrap();
    kubectl
        .run(&["create", "namespace", "nvlink-system"])
        .unwrap();
    let rights = Helm::new().unwrap().template("webhook/rbac.yaml", "");
    kubectl.apply(&rights.unwrap()).unwrap();
    let namespaces: BTreeSet<&str> = all.iter().map(|one| &*one.namespace).collect();
    for name in namespaces {
        let space = plane.namespace(name, &json!({}), &json!({})).unwrap();
        let accounts = all.iter().filter(|one| one.namespace == name);
        let accounts = accounts.filter_map(|one| one.pod["spec"]["serviceAccountName"].as_str());
        for account in accounts.collect::<BTreeSet<&str>>() {
            space.run(&["create", "serviceaccount", account]).unwrap();
        }
    }
    let_create_pods(kubectl, all);
    let examples: BTreeSet<&str> = all.iter().map(|one| &*one.example).collect();
    for name in examples {
        kubectl
            .apply(&example(&format!("{name}/class.yaml")))
            .unwrap();
    }
    let account = "system:serviceaccount:nvlink-system:nvlink-webhook";
    let account = plane.kubeconfig_for(account).unwrap();
    let webhook = Webhook::start_with(&account, &["--without-controller"]).unwrap();
    webhook.register(kubectl).unwrap();
    let policies = programs::run(WEBHOOK, &["policies"], "").unwrap();
    kubectl
        .run_with(&["apply", "--server-side", "-f", "-"], &policies)
        .unwrap();
    webhook::write_index(kubectl).unwrap();
    (plane, webhook)
}

/// Lets all makers create pods, and somebody else.
fn let_create_pods(kubectl: &Kubectl, all: &[Made]) {
    let pods = [
        "create",
        "clusterrole",
        "pods",
        "--verb=create",
        "--resource=pods",
    ];
    kubectl.run(&pods).unwrap();
    let makers: BTreeSet<&str> = all.iter().map(|one| &*one.by).chain(["mallory"]).collect();
    for (number, by) in makers.into_iter().enumerate() {
        let (name, user) = (format!("pods-{number}"), format!("--user={by}"));
        let bind = [
            "create",
            "clusterrolebinding",
            &name,
            "--clusterrole=pods",
            &user,
        ];
        kubectl.run(&bind).unwrap();
    }
}

/// Returns the pod as it would be stored.
fn stored(kubectl: &Kubectl, one: &Made) -> anyhow::Result<(Value, String)> {
    let mut pod = one.pod.clone();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    let create = ["create", "--dry-run=server", "-f", "-", "-o", "json"];
    let output = kubectl.output(&create, &pod.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    anyhow::ensure!(output.status.success(), "{said}");
    Ok((serde_json::from_slice(&output.stdout)?, said))
}

/// Says what became of a pod.
fn told(one: &Made, pod: &Value, said: &str) -> String {
    let mut text = format!("# {}\n", one.ci);
    let decision = decision(pod).unwrap_or_else(|| panic!("{}: no decision: {pod:#}", one.ci));
    let parts = [
        "class",
        "gpus",
        "scope",
        "gangScope",
        "pattern",
        "gang",
        "pods",
        "scheduler",
        "handedOver",
    ];
    let parts = parts
        .iter()
        .filter_map(|key| Some((*key, decision.get(*key)?)));
    let parts: Vec<_> = parts.map(|(key, value)| format!("{key} {value}")).collect();
    writeln!(text, "decision: {}", parts.join(", ")).unwrap();
    let gates = pod["spec"]["schedulingGates"].as_array();
    let gates: Vec<_> = gates
        .into_iter()
        .flatten()
        .map(|gate| gate["name"].as_str().unwrap())
        .collect();
    writeln!(text, "gates: {}", gates.join(", ")).unwrap();
    let near = pod["spec"]["affinity"].get("podAffinity");
    let near = near
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(|kinds| kinds.keys());
    writeln!(
        text,
        "pod affinity: {}",
        near.cloned().collect::<Vec<_>>().join(", ")
    )
    .unwrap();
    let added = pod["metadata"]["annotations"].as_object().unwrap();
    let added = added
        .iter()
        .filter(|(key, _)| !key.starts_with("nvlink-domains.io/"));
    for (key, value) in
        added.filter(|(key, _)| one.pod["metadata"]["annotations"].get(*key).is_none())
    {
        writeln!(text, "annotation: {key}: {value}").unwrap();
    }
    let ours = said
        .lines()
        .filter_map(|line| line.strip_prefix("Warning: nvlink-domains: "));
    ours.for_each(|line| writeln!(text, "warning: {line}").unwrap());
    text + "\n"
}

#[test]
fn the_pods_of_each_ci_system_get_the_class_of_its_example() {
    let all = made();
    let (plane, _webhook) = start(&all);
    let by = |user: &str, one: &Made| plane.kubectl_as(user).unwrap().in_namespace(&one.namespace);
    wait_until("webhook and policies", SOON, || {
        let said =
            by("mallory", &all[0]).refused(&["create", "--dry-run=server", "-f", "-"], &{
                let mut pod = all[0].pod.clone();
                (pod["apiVersion"], pod["kind"]) = (json!("v1"), json!("Pod"));
                pod["spec"]["serviceAccountName"] = json!("default");
                pod.to_string()
            })?;
        Ok(said.contains("rule not-authorized").then_some(()))
    })
    .unwrap();
    let mut text = String::new();
    for one in &all {
        let (pod, said) =
            wait_until(&one.ci, SOON, || stored(&by(&one.by, one), one).map(Some)).unwrap();
        let labels = &pod["metadata"]["labels"];
        assert_eq!(
            labels["nvlink-domains.io/project"], one.project,
            "{}",
            one.ci
        );
        let gates = pod["spec"]["schedulingGates"].to_string();
        let queues =
            example(&format!("{}/class.yaml", one.example)).contains("whenUnavailable: Queue");
        assert_eq!(gates.contains(QUEUE), queues, "{}: {gates}", one.ci);
        text += &told(one, &pod, &said);
        refuses_others(&by("mallory", one), one);
    }
    check_golden(&text);
}

/// The same pod of somebody else, as an account without the right.
fn refuses_others(mallory: &Kubectl, one: &Made) {
    let mut pod = one.pod.clone();
    (pod["apiVersion"], pod["kind"]) = (json!("v1"), json!("Pod"));
    pod["spec"]["serviceAccountName"] = json!("default");
    let create = ["create", "--dry-run=server", "-f", "-"];
    let said = mallory.refused(&create, &pod.to_string()).unwrap();
    assert!(said.contains("rule not-authorized"), "{}: {said}", one.ci);
}

/// Compares with the golden file, or writes it if `UPDATE_GOLDEN` is set.
fn check_golden(text: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/golden/ci.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(PathBuf::from(path).parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let wanted = fs::read_to_string(path).unwrap_or_default();
    assert!(
        wanted == text,
        "{path} differs (UPDATE_GOLDEN=1 changes it):\n{text}"
    );
}
