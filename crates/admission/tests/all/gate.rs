//! New pods of classes that queue: `tests/golden/gate.txt`.

use nvlink_topology::labels;

use crate::fixture::{
    check_golden, pod,
    story::{Shown, story_of},
};
use serde_json::{Value, json};

/// The gate, the affinity that waits or not, and the decision.
const QUEUED: Shown = &[
    "/metadata/annotations",
    "/spec/affinity",
    "/spec/schedulingGates",
];

fn tell(title: &str, placement: &Value, change: impl FnOnce(&mut Value)) -> String {
    let mut placement = placement.clone();
    placement["whenUnavailable"] = json!("Queue");
    let spec = json!({
        "nodeSelector": {"matchLabels": {"pool": "h100"}}, "placement": placement,
        "access": {"maxGpusPerProject": 16}
    });
    let mut job = pod(4, json!({labels::CLASS: "own"}));
    change(&mut job);
    story_of(title, &spec, job, QUEUED)
}

fn gang(pod: &mut Value, size: Option<&str>) {
    pod["metadata"]["annotations"][labels::GANG] = json!("g");
    if let Some(size) = size {
        pod["metadata"]["annotations"][labels::GANG_SIZE] = json!(size);
    }
}

#[test]
fn pods_of_classes_that_queue() {
    let text = [waiting(), with_others()].concat();
    check_golden("gate.txt", &text.concat());
}

fn waiting() -> Vec<String> {
    let gitlab = |pod: &mut Value| {
        pod["metadata"]["labels"] = json!({"project.runner.gitlab.com/id": "42"});
    };
    let spread = json!({"queueTimeout": "10m", "onQueueTimeout": "Spread"});
    vec![
        tell("it waits", &json!({}), |_| {}),
        tell("it has no name yet", &spread, |pod| {
            pod["metadata"] = json!({
                "generateName": "train-", "annotations": {labels::CLASS: "own"}
            });
        }),
        tell(
            "what waiting costs is known, so it may start outside a domain",
            &json!({"waitingCostPercent": 100}),
            |_| {},
        ),
        tell("a gang", &json!({}), |pod| gang(pod, Some("4"))),
        tell("a gang whose size nobody says", &json!({}), |pod| {
            gang(pod, None)
        }),
        tell("a gang that is too large", &json!({}), |pod| {
            gang(pod, Some("5"))
        }),
        tell(
            "more GPUs than any domain has, but it may leave it",
            &spread,
            |pod| {
                let limits = &mut pod["spec"]["containers"][0]["resources"]["limits"];
                limits["nvidia.com/gpu"] = json!("16");
            },
        ),
        tell("a job of GitLab", &json!({}), gitlab),
        tell("a job of GitLab that may wait for long", &spread, gitlab),
    ]
}

fn with_others() -> Vec<String> {
    let gate = |name: &str| json!([{"name": name}]);
    vec![
        tell("a pod of Kueue", &json!({}), |pod| {
            pod["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "team"});
            pod["spec"]["schedulingGates"] = gate("kueue.x-k8s.io/admission");
        }),
        tell("a pod that waits for somebody else", &json!({}), |pod| {
            pod["spec"]["schedulingGates"] = gate("example.com/quota");
        }),
        tell("another profile of the scheduler", &json!({}), |pod| {
            pod["spec"]["schedulerName"] = json!("bin-packing");
        }),
        tell(
            "it has the gate already, and got another",
            &json!({}),
            |pod| {
                pod["spec"]["schedulingGates"] =
                    json!([{"name": labels::QUEUE_GATE}, {"name": "example.com/quota"}]);
            },
        ),
        tell("it says how long it runs", &json!({}), |pod| {
            pod["metadata"]["annotations"][labels::EXPECTED_DURATION] = json!("90m");
        }),
        tell("it says so in another form", &json!({}), |pod| {
            pod["metadata"]["annotations"][labels::EXPECTED_DURATION] = json!("1h30m");
        }),
    ]
}
