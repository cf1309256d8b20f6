//! Pods that get other GPUs than the queue planned: an Event, a condition and metrics, once,
//! whoever leads. The test reports the GPUs, as an exporter beside a kubelet does.

use nvlink_tests::wait_until;
use serde_json::{Value, json};

use super::cluster::{Cluster, SOON, placement};

const CLASS: &str = "line";

/// Starts a node of four pairs of GPUs.
fn pairs() -> Cluster {
    Cluster::of(&[("n1", "sim:a100-pcie-pairs")], json!({}))
}

/// Creates a job of two GPUs, and returns its pod on the node and the planned GPUs, ascending.
fn start(cluster: &Cluster, name: &str) -> (Value, Vec<u64>) {
    cluster.create(name, 2);
    let pod = cluster.bound(name);
    let gpus = placement(&pod).unwrap()["gpus"].clone();
    let mut gpus: Vec<u64> = serde_json::from_value(gpus).unwrap();
    gpus.sort_unstable();
    (pod, gpus)
}

/// Reports which pods have which GPUs.
fn report(cluster: &Cluster, held: &[(&Value, [u64; 2])]) {
    let allocations = held.iter().map(|(pod, gpus)| {
        json!({
            "namespace": "team", "pod": pod["metadata"]["name"],
            "podUid": pod["metadata"]["uid"], "container": "main", "gpus": gpus,
        })
    });
    let allocations: Vec<Value> = allocations.collect();
    let status = json!({"status": {"allocations": allocations}}).to_string();
    let patch = ["patch", "nodetopology", "n1", "--subresource=status"];
    let patch = [&patch[..], &["--type=merge", "-p", &status]].concat();
    cluster.plane.kubectl().run(&patch).unwrap();
}

/// Waits until the pod says what became of its plan, and returns the reason and the text.
fn told(cluster: &Cluster, name: &str) -> [String; 2] {
    let told = wait_until(&format!("pod {name} to be told"), SOON, || {
        let pod = cluster.pod(name);
        let conditions = pod["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let ours = conditions.find(|one| one["type"] == "nvlink-domains.io/PlacedAsPlanned");
        anyhow::ensure!(ours.is_some(), "{:#}", pod["status"]);
        let text = |key: &str| Some(ours?[key].as_str()?.to_owned());
        Ok(text("reason").zip(text("message")))
    });
    told.unwrap().into()
}

/// Returns type and text of the Events about the pod's placement.
fn events(cluster: &Cluster, name: &str) -> Vec<[String; 2]> {
    let selector = format!("involvedObject.name={name},reason=PlacedOnOtherGpus");
    let found = cluster.team.get(&["events", "--field-selector", &selector]);
    let items = found.unwrap()["items"].as_array().cloned().unwrap();
    let text = |event: &Value, key: &str| event[key].as_str().unwrap().to_owned();
    let both = items
        .iter()
        .map(|event| [text(event, "type"), text(event, "message")]);
    both.collect()
}

/// Returns the value of a series of the leader.
fn value(cluster: &Cluster, series: &str) -> Option<f64> {
    let webhook = cluster.webhook.as_ref().unwrap();
    let page = webhook.replica.metrics().unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    line.map(|value| value.trim().parse().unwrap())
}

#[track_caller]
fn wait_for(cluster: &Cluster, series: &str, is: impl Fn(Option<f64>) -> bool) {
    wait_until(series, SOON, || {
        let value = value(cluster, series);
        anyhow::ensure!(is(value), "{series} is {value:?}");
        Ok(Some(()))
    })
    .unwrap();
}

fn counter(outcome: &str) -> String {
    format!(
        "nvlink_placement_outcomes_total{{class=\"{CLASS}\",mapping=\"DevicePlugin\",outcome=\"{outcome}\"}}"
    )
}

fn quality(which: &str, pod: &str) -> String {
    format!(
        "nvlink_placement_{which}_quality_ratio{{namespace=\"team\",pod=\"{pod}\",class=\"{CLASS}\"}}"
    )
}

#[test]
fn a_pod_on_other_gpus_is_told_once_whoever_leads() {
    let mut cluster = pairs();
    let (met, gpus) = start(&cluster, "met");
    let (split, planned) = start(&cluster, "split");
    wait_for(&cluster, &quality("planned", "split"), |is| is == Some(1.0));
    assert_eq!(value(&cluster, &quality("actual", "split")), None);
    // One GPU of the plan, and one of another pair.
    let others: Vec<u64> = (0..8).filter(|gpu| !gpus.contains(gpu)).collect();
    let other = others.iter().find(|gpu| !planned.contains(gpu)).unwrap();
    let got = [planned[0].min(*other), planned[0].max(*other)];
    report(&cluster, &[(&met, [gpus[0], gpus[1]]), (&split, got)]);

    let [reason, message] = told(&cluster, "split");
    assert_eq!(reason, "OtherGpus");
    let begins = format!(
        "the pod has GPUs {},{} of node n1, and the queue had planned GPUs {},{}: its communication takes ",
        got[0], got[1], planned[0], planned[1]
    );
    assert!(message.starts_with(&begins), "{message}");
    assert_eq!(told(&cluster, "met")[0], "AsPlanned");
    assert_eq!(
        events(&cluster, "split"),
        [["Warning".to_owned(), message.clone()]]
    );
    assert_eq!(events(&cluster, "met").len(), 0);
    wait_for(&cluster, &counter("other-gpus"), |is| is == Some(1.0));
    wait_for(&cluster, &counter("as-planned"), |is| is == Some(1.0));
    assert_eq!(value(&cluster, &quality("actual", "met")), Some(1.0));
    let slow = value(&cluster, &quality("actual", "split")).unwrap();
    assert!(slow < 0.7, "{slow}");

    // The next leader shows the same, counts nothing again, and says nothing again.
    cluster.restart();
    wait_for(&cluster, &quality("actual", "split"), |is| is == Some(slow));
    let (third, planned) = start(&cluster, "third");
    report(
        &cluster,
        &[(&split, got), (&third, [planned[0], planned[1]])],
    );
    assert_eq!(told(&cluster, "third")[0], "AsPlanned");
    wait_for(&cluster, &counter("as-planned"), |is| is == Some(1.0));
    assert_eq!(value(&cluster, &counter("other-gpus")), Some(0.0));
    assert_eq!(events(&cluster, "split").len(), 1);
    assert_eq!(told(&cluster, "split")[1], message);

    cluster.end("split");
    wait_for(&cluster, &quality("actual", "split"), |is| is.is_none());
    assert_eq!(value(&cluster, &quality("planned", "split")), None);
}

#[test]
fn a_leader_that_dies_between_event_and_condition_leaves_one_event() {
    let mut cluster = pairs();
    cluster.restart_to_die_after("event=1");
    let (pod, planned) = start(&cluster, "pod");
    report(&cluster, &[(&pod, [planned[0], (planned[1] + 2) % 8])]);
    let event = wait_until("the Event", SOON, || {
        Ok(events(&cluster, "pod").into_iter().next())
    });
    let event = event.unwrap();
    let pod = cluster.pod("pod");
    let conditions = pod["status"]["conditions"].to_string();
    assert!(!conditions.contains("PlacedAsPlanned"), "{conditions}");
    cluster.restart();
    assert_eq!(told(&cluster, "pod")[1], event[1]);
    wait_for(&cluster, &counter("other-gpus"), |is| is == Some(1.0));
    assert_eq!(events(&cluster, "pod"), [event]);
}
