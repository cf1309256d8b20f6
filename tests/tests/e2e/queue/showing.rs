//! What a waiting pod shows, what the queue counts, and what is left when the pod starts.

use std::time::Duration;

use nvlink_tests::wait_until;
use serde_json::{Value, json};

use super::cluster::{Cluster, SOON, waits};

const CONDITION: &str = "nvlink-domains.io/Queued";

fn condition(pod: &Value) -> Option<&Value> {
    let conditions = pod["status"]["conditions"].as_array()?;
    conditions.iter().find(|one| one["type"] == CONDITION)
}

fn annotation<'a>(pod: &'a Value, name: &str) -> Option<&'a str> {
    pod["metadata"]["annotations"][format!("nvlink-domains.io/queue-{name}")].as_str()
}

/// Waits until the pod shows that it waits for this reason, and returns it.
pub(super) fn shows(cluster: &Cluster, name: &str, reason: &str) -> Value {
    wait_until(&format!("pod {name} to show {reason}"), SOON, || {
        let pod = cluster.pod(name);
        let shown = condition(&pod).is_some_and(|one| {
            (&one["status"], &one["reason"]) == (&json!("True"), &json!(reason))
        });
        anyhow::ensure!(shown, "{:#}", pod["status"]);
        Ok(Some(pod))
    })
    .unwrap()
}

/// Waits until a pod says that it waits no more.
fn left(cluster: &Cluster, name: &str) -> Value {
    let left = wait_until("the condition to end", SOON, || {
        let pod = cluster.pod(name);
        let status = condition(&pod).map(|one| one["status"].clone());
        anyhow::ensure!(status == Some(json!("False")), "{:#}", pod["status"]);
        Ok(Some(pod))
    });
    left.unwrap()
}

/// Returns the texts of the Events of the queue about a pod.
fn events(cluster: &Cluster, name: &str) -> Vec<String> {
    let selector = format!("involvedObject.name={name},reason=Queued");
    let found = cluster.team.get(&["events", "--field-selector", &selector]);
    let items = found.unwrap()["items"].as_array().cloned().unwrap();
    let texts = items.iter().map(|event| event["message"].as_str().unwrap());
    texts.map(str::to_owned).collect()
}

fn metrics(cluster: &Cluster) -> String {
    let webhook = cluster.webhook.as_ref().unwrap();
    webhook.replica.metrics().unwrap()
}

#[track_caller]
fn counts(page: &str, series: &[&str]) {
    for line in series {
        let line = format!("nvlink_webhook_queue_{line}");
        let found = page.lines().any(|one| one.starts_with(&line));
        assert!(found, "{line} is not in\n{page}");
    }
}

#[test]
fn a_waiting_pod_shows_why_and_its_start_until_it_is_released() {
    let cluster = Cluster::start(&["n1"], json!({}));
    cluster.create_for("holds", 8, "30m");
    cluster.bound("holds");
    cluster.create_for("next", 8, "30m");
    // Pods that were created in the same second have the order of their names.
    std::thread::sleep(Duration::from_secs(1));
    cluster.create_for("last", 4, "60m");
    let next = shows(&cluster, "next", "Insufficient");
    let message = condition(&next).unwrap()["message"].as_str().unwrap();
    let begins = "it needs 8 GPUs in one NVLink domain, and none is free; position 1 of class line; expected to start at ";
    assert!(message.starts_with(begins), "{message}");
    assert_eq!(annotation(&next, "position"), Some("1"));
    assert!(
        annotation(&next, "reason")
            .unwrap()
            .starts_with("Insufficient: ")
    );
    let eta = annotation(&next, "eta").unwrap();
    let last = shows(&cluster, "last", "Insufficient");
    assert_eq!(annotation(&last, "position"), Some("2"));
    // The first job holds the node for 30 minutes, and the next one for 30 more.
    let later = annotation(&last, "eta").unwrap();
    assert!(later > eta, "{later} {eta}");
    let first = wait_until("an Event", SOON, || {
        Ok(events(&cluster, "next").into_iter().next())
    });
    assert_eq!(first.unwrap(), message);
    counts(
        &metrics(&cluster),
        &[
            "waiting_pods{class=\"line\",reason=\"insufficient\"} 2",
            "waiting_gpus{class=\"line\"} 12",
            "releases_total{class=\"line\",kind=\"turn\"} 1",
            "writes_total{write=\"release\",outcome=\"written\"} 1",
            "wait_duration_seconds_count{class=\"line\"} 1",
        ],
    );
    assert_shown_until_released(&cluster);
}

fn assert_shown_until_released(cluster: &Cluster) {
    cluster.end("holds");
    cluster.bound("next");
    let next = left(cluster, "next");
    let message = condition(&next).unwrap()["message"].as_str().unwrap();
    assert_eq!(message, "released to node n1: it was its turn");
    for name in ["reason", "position", "eta"] {
        assert_eq!(annotation(&next, name), None);
    }
    // The position is not written at once.
    wait_until("the position of the last job", SOON, || {
        let pod = cluster.pod("last");
        Ok((waits(&pod) && annotation(&pod, "position") == Some("1")).then_some(()))
    })
    .unwrap();
    assert_eq!(events(cluster, "next").len(), 1);
    assert_eq!(events(cluster, "last").len(), 1, "no flood");
    counts(
        &metrics(cluster),
        &[
            "waiting_gpus{class=\"line\"} 4",
            "releases_total{class=\"line\",kind=\"turn\"} 2",
            "eta_error_seconds_count{class=\"line\"} 1",
        ],
    );
}

#[test]
fn a_later_leader_shows_on_and_says_nothing_twice() {
    let mut cluster = Cluster::start(&["n1"], json!({}));
    cluster.create_for("holds", 8, "30m");
    cluster.bound("holds");
    cluster.create_for("waits", 8, "30m");
    let before = shows(&cluster, "waits", "Insufficient");
    // A leader writes the condition, then the Event.
    wait_until("the Event", SOON, || {
        Ok((events(&cluster, "waits").len() == 1).then_some(()))
    })
    .unwrap();
    cluster.restart();
    wait_until("the next leader to count", SOON, || {
        let line = "nvlink_webhook_queue_waiting_pods{class=\"line\",reason=\"insufficient\"} 1";
        Ok(metrics(&cluster).contains(line).then_some(()))
    })
    .unwrap();
    cluster.create_for("later", 8, "30m");
    shows(&cluster, "later", "Insufficient");
    let after = cluster.pod("waits");
    assert_eq!(condition(&after), condition(&before));
    assert_eq!(events(&cluster, "waits").len(), 1);
}
