//! A job that waits in the queue, and leaves it because its class does not queue any more: all that
//! the queue has rights for.

use std::time::Duration;

use nvlink_tests::{Kubectl, wait_until};
use serde_json::{Value, json};

use crate::pods::spec;

const SOON: Duration = Duration::from_secs(90);
const CLASS: &str = "queued";

/// The rights that no test of this cluster uses: an API server is asked for a pod again only after somebody else
/// has changed it, and the kinds of operators are not installed. No DRA driver is here, so nobody makes
/// claims; the tests of claims run with these rights. No pod is released, so the queue does not look for its
/// volumes. The verb `release` is for the policies, not for a request.
pub(crate) fn is_seldom(right: &str) -> bool {
    let operators = of_operators();
    let claims = ["create", "delete", "get"].map(|verb| format!("{verb} resourceclaims"));
    right == "get pods"
        || right == "get persistentvolumeclaims"
        || right == "list endpointslices"
        || claims.iter().any(|claims| claims == right)
        || right == "release domainclasses"
        || operators
            .iter()
            .any(|plural| right == format!("get {plural}"))
}

/// The plurals of the kinds that say how many pods a job has, but for Job.
fn of_operators() -> [&'static str; 11] {
    [
        "jobsets",
        "leaderworkersets",
        "jaxjobs",
        "mpijobs",
        "paddlejobs",
        "pytorchjobs",
        "tfjobs",
        "xgboostjobs",
        "rayclusters",
        "podgroups",
        "workloads",
    ]
}

fn set_class(all: &Kubectl, when: &str) {
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
        "metadata": {"name": CLASS}, "spec": {"placement": {"whenUnavailable": when}},
    });
    all.apply(&class.to_string()).unwrap();
}

/// Returns the pods of the job.
pub(crate) fn pods(team: &Kubectl) -> anyhow::Result<Vec<Value>> {
    let found = team.get(&["pods", "-l", "job-name=queued"])?;
    Ok(found["items"].as_array().cloned().unwrap_or_default())
}

pub(crate) fn is_gated(pod: &Value) -> bool {
    pod["spec"]["schedulingGates"].is_array()
}

fn condition(pod: &Value) -> Option<&str> {
    let conditions = pod["status"]["conditions"].as_array()?;
    let ours = conditions
        .iter()
        .find(|one| one["type"] == "nvlink-domains.io/Queued");
    ours?["status"].as_str()
}

/// Creates a class that queues and a job of two pods, and waits until the pods show that they wait.
pub(crate) fn wait(all: &Kubectl, team: &Kubectl) {
    set_class(all, "Queue");
    let annotations = json!({"nvlink-domains.io/class": CLASS, "nvlink-domains.io/gang": "pair"});
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "queued"},
        "spec": {
            "parallelism": 2, "completions": 2,
            "template": {"metadata": {"annotations": annotations}, "spec": spec(4)},
        },
    });
    // The webhook refuses pods until it has seen the class, and the Job tries again.
    team.create(&job).unwrap();
    wait_until("two pods to wait", SOON, || {
        let pods = pods(team)?;
        let wait = pods
            .iter()
            .all(|pod| is_gated(pod) && condition(pod) == Some("True"));
        anyhow::ensure!(pods.len() == 2 && wait, "{pods:#?}");
        Ok(Some(()))
    })
    .unwrap();
}

/// Waits until both pods have left the queue, and say so.
pub(crate) fn assert_left(team: &Kubectl) {
    wait_until("the pods to leave the queue", SOON, || {
        let pods = pods(team)?;
        let left = pods
            .iter()
            .all(|pod| !is_gated(pod) && condition(pod) == Some("False"));
        anyhow::ensure!(pods.len() == 2 && left, "{pods:#?}");
        Ok(Some(()))
    })
    .unwrap();
}

/// Uses each right of the queue.
pub(crate) fn wait_and_leave(all: &Kubectl, team: &Kubectl) {
    wait(all, team);
    set_class(all, "Pending");
    assert_left(team);
    clean(all, team);
}

/// Removes the job and the class.
pub(crate) fn clean(all: &Kubectl, team: &Kubectl) {
    team.run(&["delete", "job", "queued"]).unwrap();
    let found = ["delete", "domainclass", CLASS, "--ignore-not-found"];
    all.run(&found).unwrap();
}
