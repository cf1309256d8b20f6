//! Pods of other schedulers, and classes that hand their pods over to them:
//! `tests/golden/handover*.txt`.

use nvlink_topology::labels;

use crate::fixture::{
    check_golden, pod,
    story::{Shown, story_of},
};
use serde_json::{Value, json};

/// Requests and labels of other schedulers, and our affinity, without the decision.
const HANDED_OVER: Shown = &[
    "/metadata/labels",
    "/metadata/annotations/k",
    "/metadata/annotations/v",
    "/spec/affinity",
    "/spec/schedulerName",
];

fn job(changes: Value) -> Value {
    let mut pod = pod(4, json!({labels::CLASS: "own"}));
    for (pointer, value) in changes.as_object().unwrap() {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        if parent == "/metadata/labels" && pod.pointer(parent).is_none() {
            pod["metadata"]["labels"] = json!({});
        }
        let key = key.replace("~1", "/");
        pod.pointer_mut(parent).unwrap()[key] = value.clone();
    }
    pod
}

fn tell(title: &str, scheduler: Value, changes: Value) -> String {
    let spec = json!({
        "nodeSelector": {"matchLabels": {"pool": "h100"}}, "minBandwidth": "300GBps",
        "scheduler": scheduler
    });
    story_of(title, &spec, job(changes), HANDED_OVER)
}

const QUEUE: &str = "/metadata/labels/kueue.x-k8s.io~1queue-name";
const PODSET: &str = "/metadata/labels/kueue.x-k8s.io~1podset";
const GANG: &str = "/metadata/annotations/nvlink-domains.io~1gang";
const SCOPE: &str = "/metadata/annotations/nvlink-domains.io~1scope";
const GANG_SCOPE: &str = "/metadata/annotations/nvlink-domains.io~1gang-scope";
const COMMAND: &str = "/spec/containers/0/command";
/// A launcher whose flags show that the job has other pods.
const TWO_NODES: [&str; 3] = ["torchrun", "--nnodes=2", "train.py"];
const NAME: &str = "/spec/schedulerName";
const GATES: &str = "/spec/schedulingGates";
const OWNERS: &str = "/metadata/ownerReferences";

fn kueue() -> Value {
    json!({"integration": "Kueue"})
}

/// The level that each job requests. All nodes that may hold the job must have its label.
#[test]
fn levels_of_requests() {
    let text = [
        tell(
            "a single pod needs only node affinity",
            kueue(),
            json!({QUEUE: "team"}),
        ),
        tell(
            "a gang prefers one domain of Kueue",
            kueue(),
            json!({QUEUE: "team", GANG: "g"}),
        ),
        tell(
            "a gang requests one domain from Kueue",
            kueue(),
            json!({QUEUE: "team", GANG: "g", GANG_SCOPE: "nvlink-domain"}),
        ),
        tell(
            "a gang requests one node from Kueue",
            kueue(),
            json!({QUEUE: "team", GANG: "g", GANG_SCOPE: "node"}),
        ),
        tell(
            "several nodes without a gang prefer to share a domain",
            kueue(),
            json!({QUEUE: "team", COMMAND: TWO_NODES}),
        ),
        tell(
            "several nodes without a gang share a rack",
            kueue(),
            json!({QUEUE: "team", COMMAND: TWO_NODES, SCOPE: "rack"}),
        ),
    ];
    check_golden("handover-levels.txt", &text.concat());
}

#[test]
fn pods_of_kueue() {
    let owner = json!([{
        "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true
    }]);
    let own = "/metadata/annotations/kueue.x-k8s.io~1podset-preferred-topology";
    let required = "/metadata/annotations/kueue.x-k8s.io~1podset-required-topology";
    let unconstrained = "/metadata/annotations/kueue.x-k8s.io~1podset-unconstrained-topology";
    let topology = json!([{"name": "kueue.x-k8s.io/topology"}]);
    let both = json!([{"name": "kueue.x-k8s.io/admission"}, {"name": "kueue.x-k8s.io/topology"}]);
    let text = [
        tell(
            "a pod that Kueue has gated gets the request",
            kueue(),
            json!({
                QUEUE: "team", GANG: "g", GATES: [{"name": "kueue.x-k8s.io/admission"}]
            }),
        ),
        tell(
            "a pod that Kueue has placed gets no request",
            kueue(),
            json!({
                QUEUE: "team", GANG: "g", GATES: [{"name": "kueue.x-k8s.io/topology"}]
            }),
        ),
        tell(
            "a pod that Kueue has gated twice gets the request",
            kueue(),
            json!({QUEUE: "team", GANG: "g", GATES: both}),
        ),
        tell(
            "a pod of a Job that Kueue has placed without a topology",
            kueue(),
            json!({GANG: "g", OWNERS: owner, GATES: topology, PODSET: "main", unconstrained: "true"}),
        ),
        tell(
            "a pod of a Job that Kueue has placed as its template asks",
            kueue(),
            json!({GANG: "g", OWNERS: owner, GATES: topology, PODSET: "main", required: "nvlink-domains.io/domain"}),
        ),
        tell(
            "the user wants no topology of Kueue",
            kueue(),
            json!({QUEUE: "team", GANG: "g", GATES: both, unconstrained: "true"}),
        ),
        tell(
            "a pod that Kueue has gated twice, and the class does not hand over",
            json!({}),
            json!({QUEUE: "team", GANG: "g", GANG_SCOPE: "nvlink-domain", GATES: both}),
        ),
        tell(
            "a pod of a Job that Kueue has placed without a topology, and the class does not hand over",
            json!({}),
            json!({GANG: "g", OWNERS: owner, GATES: topology, PODSET: "main", unconstrained: "true"}),
        ),
        tell(
            "the user's own request to Kueue is kept",
            kueue(),
            json!({
                QUEUE: "team", GANG: "g", own: "rack"
            }),
        ),
        tell(
            "Kueue reads the template of a Job",
            kueue(),
            json!({QUEUE: "team", GANG: "g", OWNERS: owner}),
        ),
        tell("not a pod of Kueue", kueue(), json!({GANG: "g"})),
        tell(
            "a pod of Kueue, and the class does not hand over",
            json!({}),
            json!({QUEUE: "team", GANG: "g"}),
        ),
    ];
    check_golden("handover-kueue.txt", &text.concat());
}

#[test]
fn pods_of_kai() {
    let kai = || json!({"integration": "KAI", "topology": "cluster", "queue": "research"});
    let queue = "/metadata/labels/kai.scheduler~1queue";
    let text = [
        tell(
            "a single pod for KAI",
            kai(),
            json!({NAME: "kai-scheduler"}),
        ),
        tell(
            "a gang of KAI",
            kai(),
            json!({NAME: "kai-scheduler", GANG: "g"}),
        ),
        tell(
            "a pod of KAI with its own queue",
            kai(),
            json!({NAME: "kai-scheduler", GANG: "g", queue: "mine"}),
        ),
        tell(
            "not a pod of KAI",
            kai(),
            json!({NAME: "default-scheduler"}),
        ),
    ];
    check_golden("handover-kai.txt", &text.concat());
}

#[test]
fn pods_of_volcano_and_others() {
    let volcano = || json!({"integration": "Volcano", "highestTier": 1});
    let mode = "/metadata/annotations/volcano.sh~1network-topology-mode";
    let group = "/metadata/annotations/scheduling.k8s.io~1group-name";
    let text = [
        tell(
            "a single pod for Volcano",
            volcano(),
            json!({NAME: "volcano"}),
        ),
        tell(
            "a gang of Volcano",
            volcano(),
            json!({NAME: "volcano", GANG: "g"}),
        ),
        tell(
            "the user's own request to Volcano is kept",
            volcano(),
            json!({
                NAME: "volcano", GANG: "g", mode: "soft"
            }),
        ),
        tell(
            "a pod of a Volcano group",
            volcano(),
            json!({NAME: "volcano", GANG: "g", group: "g"}),
        ),
        tell("Koordinator", json!({}), json!({NAME: "koord-scheduler"})),
        tell(
            "HAMi",
            json!({"integration": "None"}),
            json!({NAME: "hami-scheduler"}),
        ),
    ];
    check_golden("handover.txt", &text.concat());
}
