//! A pod that loses its node between release and binding, as its Job sees it.

use nvlink_tests::wait_until;
use serde_json::{Value, json};

use super::cluster::{Cluster, SOON, job, waits};

/// Returns a Job that may not fail once, whose pod no scheduler binds.
fn strict() -> Value {
    let mut spec = job("unused", 8)["spec"].clone();
    spec["schedulerName"] = json!("nobody");
    spec["restartPolicy"] = json!("Never");
    let disrupted = json!([{"type": "DisruptionTarget", "status": "True"}]);
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "strict"},
        "spec": {
            "backoffLimit": 0,
            "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": disrupted}]},
            "template": {"spec": spec},
        },
    })
}

#[test]
fn a_job_does_not_count_a_pod_whose_node_was_lost() {
    let cluster = Cluster::start(&["n1", "n2"], json!({}));
    let pods = || -> anyhow::Result<Vec<Value>> {
        let pods = cluster.team.get(&["pods", "-l", "job-name=strict"])?;
        Ok(pods["items"].as_array().cloned().unwrap_or_default())
    };
    cluster.team.create(&strict()).unwrap();
    let node = wait_until("the pod to be released", SOON, || {
        let pods = pods()?;
        let released = pods.iter().find(|pod| !waits(pod));
        Ok(released.and_then(super::cluster::placement))
    })
    .unwrap()["node"]
        .clone();
    let all = cluster.plane.kubectl();
    all.run(&["delete", "node", node.as_str().unwrap()])
        .unwrap();
    let pods = wait_until("a successor", SOON * 2, || {
        let pods = pods()?;
        Ok((pods.len() == 2).then_some(pods))
    })
    .unwrap();
    let failed = pods.iter().find(|pod| pod["status"]["phase"] == "Failed");
    let failed = failed.unwrap_or_else(|| panic!("{pods:#?}"));
    assert_eq!(failed["status"]["reason"], "QueueNodeLost");
    let conditions = failed["status"]["conditions"].to_string();
    assert!(
        conditions.contains(r#""type":"DisruptionTarget""#),
        "{conditions}"
    );
    let job = cluster.team.get(&["job", "strict"]).unwrap();
    let conditions = job["status"]["conditions"].to_string();
    assert!(!conditions.contains("\"Failed\""), "{job:#}");
}
