//! Jobs in the queue of a class: some start, one starts earlier than expected, one is rejected,
//! and one waits for as long as the test runs.

use std::time::Duration;

use anyhow::{Result, ensure};
use nvlink_tests::{Kubectl, wait_until};
use serde_json::{Value, json};

use super::world::{PROJECT, RESTRICTED, named};

const SOON: Duration = Duration::from_secs(120);

/// Lets the class queue; without a time, its jobs wait forever.
fn set_timeout(kubectl: &Kubectl, timeout: Option<&str>) -> Result<()> {
    let placement = json!({"whenUnavailable": "Queue", "queueTimeout": timeout});
    let patch = json!({"spec": {"placement": placement}}).to_string();
    let arguments = [
        "patch",
        "domainclass",
        RESTRICTED,
        "--type=merge",
        "-p",
        &patch,
    ];
    kubectl.run(&arguments).map(drop)
}

/// Creates a job of one GPU, which needs nothing of the topology, once the class queues.
fn create(kubectl: &Kubectl, name: &str) -> Result<()> {
    let mut pod = named(name, RESTRICTED);
    pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = json!("1");
    pod["metadata"]["annotations"]["nvlink-domains.io/expected-duration"] = json!("60m");
    wait_until("the class to queue", SOON, || {
        let dry_run = ["create", "--dry-run=server", "-f", "-", "-o", "json"];
        let answer: Value = serde_json::from_str(&kubectl.run_with(&dry_run, &pod.to_string())?)?;
        ensure!(answer["spec"]["schedulingGates"].is_array(), "{answer:#}");
        Ok(Some(()))
    })?;
    kubectl.create(&pod).map(drop)
}

fn wait_for(kubectl: &Kubectl, pod: &str, is_so: impl Fn(&Value) -> bool) -> Result<()> {
    wait_until(&format!("pod {pod}"), SOON, || {
        let pod = kubectl.get(&["pod", pod])?;
        ensure!(is_so(&pod), "{pod:#}");
        Ok(Some(()))
    })
}

fn is_bound(pod: &Value) -> bool {
    pod["spec"]["nodeName"].is_string()
}

/// Runs jobs on a node of eight GPUs.
pub(super) fn happen(kubectl: &Kubectl) -> Result<()> {
    let project = kubectl.in_namespace(PROJECT);
    set_timeout(kubectl, None)?;
    for n in 0..8 {
        let name = format!("queued-{n}");
        create(&project, &name)?;
        wait_for(&project, &name, is_bound)?;
    }
    set_timeout(kubectl, Some("5s"))?;
    create(&project, "rejected")?;
    wait_for(&project, "rejected", |pod| {
        pod["status"]["phase"] == "Failed"
    })?;
    set_timeout(kubectl, None)?;
    create(&project, "sooner")?;
    wait_for(&project, "sooner", |pod| {
        pod["metadata"]["annotations"]["nvlink-domains.io/queue-eta"].is_string()
    })?;
    let status = json!({"status": {"phase": "Succeeded"}}).to_string();
    let end = [
        "patch",
        "pod",
        "queued-0",
        "--subresource=status",
        "--type=merge",
        "-p",
        &status,
    ];
    project.run(&end)?;
    wait_for(&project, "sooner", is_bound)?;
    create(&project, "waits")
}
