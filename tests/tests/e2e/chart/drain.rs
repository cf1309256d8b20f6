//! Uninstalling while jobs wait in the queue: none is stuck.

use serde_json::{Value, json};

use super::{Installed, control_plane, documents, lifecycle::start_webhook};
use crate::{
    check,
    pods::{decision, gpu_pod},
    queued,
    shared::dry_run,
};
use nvlink_tests::{Kubectl, programs::WEBHOOK, wait_until};

/// Runs what `helm uninstall` runs first, with the account and the rights that it gets.
fn drain(control_plane: &nvlink_tests::ControlPlane, helm: &nvlink_tests::Helm) -> String {
    let mut objects = documents(&helm.template("webhook/drain.yaml", "").unwrap());
    let job = objects.pop().unwrap();
    for one in objects.iter().chain([&job]) {
        let hook = &one["metadata"]["annotations"]["helm.sh/hook"];
        assert_eq!(hook, "pre-delete", "{one:#}");
    }
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    let kubectl = control_plane.kubectl();
    kubectl.apply(&objects).unwrap();
    let pod = &job["spec"]["template"]["spec"];
    let account = pod["serviceAccountName"].as_str().unwrap();
    let account = format!("system:serviceaccount:nvlink-system:{account}");
    let account = control_plane.kubeconfig_for(&account).unwrap();
    let arguments = pod["containers"][0]["args"].as_array().unwrap();
    let arguments: Vec<_> = arguments.iter().filter_map(Value::as_str).collect();
    let (status, printed) = check::run(WEBHOOK, &account, &arguments);
    assert_eq!(status, 0, "{printed}");
    kubectl.run_with(&["delete", "-f", "-"], &objects).unwrap();
    printed
}

/// Creates a pod that waits for GPUs by a claim.
fn wait_for_a_claim(all: &Kubectl, team: &Kubectl) {
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
        "metadata": {"name": "exact"},
        "spec": {"placement": {"whenUnavailable": "Queue"}, "devices": {"mapping": "Claim"}},
    });
    all.create(&class).unwrap();
    let mut pod = gpu_pod("exact", 2);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "exact"});
    wait_until("the class to queue", super::SOON, || {
        let seen = dry_run(team, &pod).ok();
        Ok(seen.filter(queued::is_gated).map(drop))
    })
    .unwrap();
    team.create(&pod).unwrap();
}

fn delete_the_claimant(all: &Kubectl, team: &Kubectl) {
    team.run(&["delete", "pod", "exact", "--force", "--grace-period=0"])
        .unwrap();
    all.run(&["delete", "domainclass", "exact"]).unwrap();
}

/// Asserts that the pod has failed for which nobody would make the claim.
fn has_failed(team: &Kubectl) {
    let failed = team.get(&["pod", "exact"]).unwrap();
    assert_eq!(failed["status"]["reason"], "QueueRemoved");
    assert!(queued::is_gated(&failed), "{failed:#}");
}

#[test]
fn no_waiting_pod_is_stuck_after_an_uninstall() {
    let (control_plane, _turn) = control_plane();
    let installed = Installed::with(control_plane, "");
    let webhook = start_webhook(control_plane, &installed.helm, "");
    let all = control_plane.kubectl();
    let team = control_plane
        .namespace("drained", &json!({}), &json!({}))
        .unwrap();
    queued::wait(all, &team);
    wait_for_a_claim(all, &team);

    // The leader still runs.
    let printed = drain(control_plane, &installed.helm);
    let (released, failed) = printed.split_once('\n').unwrap();
    assert_eq!(released, "released 2 waiting pods");
    let reason = "failed 1 waiting pods with the reason QueueRemoved: ";
    assert!(failed.starts_with(reason), "{printed}");
    has_failed(&team);
    queued::assert_left(&team);
    for pod in queued::pods(&team).unwrap() {
        let annotations = pod["metadata"]["annotations"].to_string();
        assert!(!annotations.contains("nvlink-domains.io/queue-"), "{pod:#}");
    }
    let mut pod = gpu_pod("later", 2);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "queued"});
    let later = dry_run(&team, &pod).unwrap();
    assert!(
        decision(&later).is_none() && !queued::is_gated(&later),
        "{later:#}"
    );
    let nothing = drain(control_plane, &installed.helm);
    assert_eq!(
        nothing, "released 0 waiting pods\n",
        "one has failed behind its gate"
    );
    delete_the_claimant(all, &team);

    installed
        .helm
        .on_release("uninstall", &["--no-hooks"])
        .unwrap();
    drop(webhook);
    // The scheduler may take the pods now: it has looked at them.
    wait_until("the scheduler to try the pods", super::SOON, || {
        let pods = queued::pods(&team)?;
        let tried = |pod: &Value| {
            pod["status"]["conditions"]
                .to_string()
                .contains("Unschedulable")
        };
        Ok(pods.iter().all(tried).then_some(()))
    })
    .unwrap();
    queued::clean(all, &team);
}
