//! What the queue planned and what the kubelet gave: with a device plugin that knows no links, and
//! with `nvlink-exporter device-plugin` before it.

use nvlink_tests::{Choice, LabNode, wait_until};
use serde_json::{Value, json};

use super::{Bench, SOON, claimed::device_class, cluster};

const PROFILE: &str = "a100-pcie-pairs";

/// Creates a class that queues.
fn queue(class: &str, mapping: &str) {
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
        "metadata": {"name": class},
        "spec": {"placement": {"whenUnavailable": "Queue"}, "devices": {"mapping": mapping}},
    });
    cluster().control_plane.kubectl().create(&class).unwrap();
}

/// Runs a pod of the class once the webhook has seen it, and returns the planned GPUs, ascending,
/// the reason of its condition and the text.
fn run(bench: &Bench, class: &str, name: &str) -> (Vec<u64>, String, String) {
    wait_until("the class to queue", SOON, || {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "annotations": {"nvlink-domains.io/class": class}},
            "spec": super::spec(bench.lab.name(), 2, "true"),
        });
        let dry_run = ["create", "--dry-run=server", "-f", "-", "-o", "json"];
        let text = bench.kubectl.run_with(&dry_run, &pod.to_string())?;
        let pod: Value = serde_json::from_str(&text)?;
        Ok(pod["spec"]["schedulingGates"].is_array().then_some(()))
    })
    .unwrap();
    bench.run_pod_of(class, name, 2);
    let told = wait_until("what became of the plan", SOON, || {
        let pod = bench.kubectl.get(&["pod", name])?;
        let conditions = pod["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let ours = conditions.find(|one| one["type"] == "nvlink-domains.io/PlacedAsPlanned");
        anyhow::ensure!(ours.is_some(), "{:#}", pod["status"]);
        let text = |key: &str| Some(ours?[key].as_str()?.to_owned());
        let both = text("reason").zip(text("message"));
        Ok(both.map(|(reason, message)| (pod, reason, message)))
    });
    let (pod, reason, message) = told.unwrap();
    let plan = &pod["metadata"]["annotations"]["nvlink-domains.io/queue-placement"];
    let plan: Value = serde_json::from_str(plan.as_str().unwrap()).unwrap();
    let mut gpus: Vec<u64> = serde_json::from_value(plan["gpus"].clone()).unwrap();
    gpus.sort_unstable();
    (gpus, reason, message)
}

#[test]
fn a_plugin_that_knows_no_links_gives_other_gpus_and_the_pod_says_so() {
    let node = LabNode::new("lab-unplanned", PROFILE).choosing(Choice::Scattered);
    let bench = Bench::start_with(&node, PROFILE);
    queue("plugged", "DevicePlugin");
    let (planned, reason, message) = run(&bench, "plugged", "unplanned");
    assert_eq!(reason, "OtherGpus", "{planned:?}: {message}");
    let held = crate::allocations::held(&bench.wait_for_pod("unplanned", 2), "unplanned");
    assert_eq!(planned[0] / 2, planned[1] / 2, "a pair");
    assert_ne!(held[0] / 2, held[1] / 2, "no pair");
    let begins = format!(
        "the pod has GPUs {},{} of node lab-unplanned, ",
        held[0], held[1]
    );
    assert!(message.starts_with(&begins), "{message}");
    let selector = "involvedObject.name=unplanned,reason=PlacedOnOtherGpus";
    let events = ["events", "--field-selector", selector];
    let events = bench.kubectl.get(&events).unwrap();
    let events = events["items"].as_array().unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["message"], message);
}

/// Asserts that two pods of the class get what was planned for them.
fn get_what_was_planned(bench: &Bench, class: &str) {
    for name in ["1", "2"].map(|number| format!("{class}-{number}")) {
        let (planned, reason, message) = run(bench, class, &name);
        assert_eq!(reason, "AsPlanned", "{planned:?}: {message}");
        let held = crate::allocations::held(&bench.wait_for_pod(&name, 2), &name);
        let held: Vec<u64> = held.into_iter().map(u64::from).collect();
        assert_eq!(held, planned);
    }
}

#[test]
fn with_the_plugin_before_it_a_pod_gets_what_was_planned() {
    let node = LabNode::new("lab-planned", PROFILE)
        .choosing(Choice::Scattered)
        .preferring();
    let bench = Bench::start_with(&node, PROFILE);
    queue("preferring", "Preferred");
    get_what_was_planned(&bench, "preferring");
}

#[test]
fn with_claims_a_pod_gets_what_was_planned() {
    if device_class() {
        let node = LabNode::new("lab-claimed", PROFILE).claimed();
        get_what_was_planned(&Bench::start_with(&node, PROFILE), "claimed");
    }
}
