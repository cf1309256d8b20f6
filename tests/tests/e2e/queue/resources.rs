//! Pods outside the queue hold CPU: the queue knows, and no job holds GPUs that it cannot use.

use nvlink_tests::wait_until;
use serde_json::{Value, json};

use super::cluster::{Cluster, SOON, job, waits};

/// Returns a pod that asks for `cpus`, and for GPUs unless there are none.
fn asking(name: &str, gpus: u32, cpus: &str) -> Value {
    let mut pod = job(name, gpus);
    let container = &mut pod["spec"]["containers"][0];
    if gpus == 0 {
        container["resources"] = json!({});
    }
    container["resources"]["requests"]["cpu"] = json!(cpus);
    pod
}

#[test]
fn a_job_waits_for_the_cpus_that_a_pod_without_gpus_holds() {
    let cluster = Cluster::start(&["n1"], json!({}));
    cluster.team.create(&asking("build", 0, "60")).unwrap();
    cluster.bound("build");
    cluster.team.create(&asking("hungry", 4, "8")).unwrap();
    wait_until("the job to say what it waits for", SOON, || {
        let pod = cluster.pod("hungry");
        let reason = &pod["metadata"]["annotations"]["nvlink-domains.io/queue-reason"];
        let reason = reason.as_str().unwrap_or_default();
        Ok(reason
            .starts_with("Resources: 4 GPUs are free")
            .then_some(()))
    })
    .unwrap();
    // The GPUs are for whoever can use them.
    cluster.team.create(&asking("modest", 8, "4")).unwrap();
    cluster.bound("modest");
    assert!(waits(&cluster.pod("hungry")));
    cluster.end("modest");
    cluster.end("build");
    cluster.bound("hungry");
}
