//! Clusters for the tests of the page.

use std::sync::Arc;

use nvlink_admission::{
    decide::Settings,
    view::{SharedView, View},
};
use nvlink_cluster::{
    gpus::{Hardwares, Marks},
    informer::Extent,
    mirror::{Mirror, Pod, pod::Queued},
};
use nvlink_topology::{Allocation, Fault, NodeTopologySpec, Tray, labels};
use nvlink_webhook::{
    metrics::Outcome,
    page::Page,
    recent::{Decision, Recent},
};
use serde_json::{Value, json};

/// Returns a page of the replica `webhook-0`, and where its decisions are kept.
pub(crate) fn page() -> (Arc<Page>, Recent) {
    let recent = Recent::keeping();
    let mut view = View::default();
    for (node, rack) in [("h100-1", "r1"), ("h100-2", "r2")] {
        let rack = ("topology.kubernetes.io/rack".to_owned(), rack.to_owned());
        view.set_node(node, [rack].into());
    }
    for (node, gpus) in [("tray-1", "24"), ("tray-2", "a <dozen>")] {
        let gpus = (labels::FABRIC_GPUS.to_owned(), gpus.to_owned());
        view.set_node(node, [gpus].into());
    }
    let view = SharedView::new(view);
    let page = Page::new(
        Mirror::default(),
        recent.clone(),
        view,
        Settings::default(),
        "webhook-0",
    );
    (Arc::new(page), recent)
}

/// Returns a board of `gpus` GPUs behind switches, of which GPU `broken` misses two links.
pub(crate) fn switched(node: &str, gpus: u32, broken: Option<u32>) -> NodeTopologySpec {
    let gpu = |index: u32| {
        let link = |n: u32| match broken == Some(index) && n < 2 {
            true => json!({"index": n, "up": false}),
            false => json!({
                "index": n, "up": true, "bytesPerSecond": 26_562_500_000_u64,
                "remote": {"kind": "switch"},
            }),
        };
        json!({
            "index": index, "uuid": format!("GPU-{node}-{index}"), "numaNode": index / 4,
            "model": "NVIDIA H100 80GB HBM3", "links": (0..18).map(link).collect::<Value>(),
        })
    };
    let gpus: Value = (0..gpus).map(gpu).collect();
    complete(node, json!({"source": {"kind": "sim"}, "gpus": gpus}))
}

/// Returns a board whose benchmarks measure below those of its siblings.
fn slow(node: &str) -> NodeTopologySpec {
    let mut spec = switched(node, 8, None);
    let comparisons = [(4, 0.95), (8, 0.78)].map(|(gpus, ratio)| {
        json!({
            "model": "NVIDIA H100 80GB HBM3", "path": "NVLINK", "gpus": gpus, "ratio": ratio, "runs": 5,
        })
    });
    spec.comparisons = serde_json::from_value(json!(comparisons)).unwrap();
    spec
}

/// Returns a tray of four GPUs of a fabric. The trays of `tray-1` and `tray-2` are the first and the last of
/// three.
pub(crate) fn tray(node: &str) -> NodeTopologySpec {
    let mut spec = switched(node, 4, None);
    let fabric = json!({"clusterUuid": "11111111-2222-3333-4444-555555555555", "clique": 7});
    let fabric = serde_json::from_value(fabric).unwrap();
    spec.domains[0].fabric = Some(fabric);
    let index = if node == "tray-2" { 2 } else { 0 };
    spec.tray = Some(Tray {
        chassis: "1821325191344".to_owned(),
        index,
        slot: index + 10,
    });
    spec.complete(node).unwrap();
    spec
}

/// Returns two bridged pairs.
pub(crate) fn pairs(node: &str) -> NodeTopologySpec {
    let gpu = |index: u32| {
        let peer = format!("0000000{}:00:00.0", index ^ 1);
        let link = |n: u32| json!({"index": n, "up": true, "bytesPerSecond": 14_062_500_000_u64, "remote": {"kind": "gpu", "pciBusId": peer}});
        json!({
            "index": index, "pciBusId": format!("0000000{index}:00:00.0"), "model": "NVIDIA RTX A6000",
            "links": (0..4).map(link).collect::<Value>(),
        })
    };
    let gpus: Value = (0..4).map(gpu).collect();
    complete(node, json!({"source": {"kind": "sim"}, "gpus": gpus}))
}

fn complete(node: &str, spec: Value) -> NodeTopologySpec {
    let mut spec: NodeTopologySpec = serde_json::from_value(spec).unwrap();
    spec.complete(node).unwrap();
    spec
}

pub(crate) fn held(namespace: &str, pod: &str, gpus: &[u32]) -> Allocation {
    Allocation {
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        container: "main".to_owned(),
        gpus: gpus.to_vec(),
        ..Allocation::default()
    }
}

pub(crate) fn set(page: &Page, node: &str, spec: &NodeTopologySpec, held: &[Allocation]) {
    let published = Hardwares::default().node(spec, Marks::default(), Some(held.to_vec()));
    page.mirror.set_node(node, Arc::new(Ok(published)));
}

/// Returns a tray whose GPUs all lack the same link.
fn degraded(name: &str) -> NodeTopologySpec {
    let mut tray = tray(name);
    tray.domains[0].faults = vec![Fault::MissingLinks];
    tray
}

/// Fills a page with something of everything.
pub(crate) fn fill(page: &Page, recent: &Recent) {
    let whole = [0, 1, 2, 3, 4, 5, 6, 7];
    let jobs = [
        held("ci", "train-1", &whole[..4]),
        held("ci", "train-2", &[6]),
    ];
    set(page, "h100-2", &switched("h100-2", 8, Some(5)), &jobs);
    let job = [held("research", "llm-0", &whole)];
    set(page, "h100-10", &slow("h100-10"), &job);
    set(page, "h100-1", &switched("h100-1", 8, None), &[]);
    let across = [held("ci", "across", &[1, 2])];
    set(page, "a6000", &pairs("a6000"), &across);
    set(
        page,
        "tray-1",
        &degraded("tray-1"),
        &[held("ci", "gang-0", &[0, 1])],
    );
    let unknown = degraded("tray-2");
    let marks = json!({"gpus": [{"index": 3, "faults": ["xid-74"]}], "lost": [{"index": 4, "uuid": "GPU-lost"}]});
    let marks = serde_json::from_value(marks).unwrap();
    let unknown = Hardwares::default().node(&unknown, marks, None);
    page.mirror.set_node("tray-2", Arc::new(Ok(unknown)));
    let reason = "spec.gpus: missing field `index`".to_owned();
    page.mirror.set_node("odd", Arc::new(Err(reason)));
    let pod = Pod {
        class: Some("high".to_owned()),
        project: Some("gitlab.42".to_owned()),
        pattern: "all-to-all".parse().ok(),
        ..Pod::default()
    };
    page.mirror
        .set_pod(("ci".to_owned(), "train-1".to_owned()), pod);
    wait(page);
    page.mirror.all_nodes(|_| true);
    page.mirror.all_pods(|_| true, Extent::OfClasses);
    decide(recent);
}

/// Sets a pod that shows its position.
pub(crate) fn waits(page: &Page, name: &str, class: &str, owner: Option<&str>, queued: Queued) {
    let queued = Queued {
        owner: owner.map(str::to_owned),
        since: "2026-08-01T10:00:00Z".parse().ok(),
        ..queued
    };
    let pod = Pod {
        class: Some(class.to_owned()),
        project: Some("gitlab.7".to_owned()),
        gpus: 8,
        queued: Some(Box::new(queued)),
        ..Pod::default()
    };
    let name = ("ci".to_owned(), name.to_owned());
    page.mirror.set_pod(name, pod);
}

fn wait(page: &Page) {
    let shows = |reason: &str, position, eta: &str| Queued {
        reason: reason.to_owned(),
        position: Some(position),
        eta: eta.parse().ok(),
        ..Queued::default()
    };
    let full = "Insufficient: it needs 8 GPUs in one NVLink domain, and none is free";
    let first = shows(full, 1, "2026-08-01T14:05:20Z");
    waits(page, "next", "high", None, first.clone());
    waits(page, "other", "low", None, first);
    for pod in ["gang-a", "gang-b"] {
        let behind = "Behind: GPUs are free, but 1 job ahead of it needs them";
        waits(page, pod, "high", Some("job"), shows(behind, 2, ""));
    }
}

fn decide(recent: &Recent) {
    let at = |seconds| std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    let named =
        "class \"high\", named by the pod: 4 GPUs within one nvlink-domain, pattern all-to-all";
    recent.add(|| Decision {
        time: at(1_800_000_000),
        gpus: Some(4),
        project: Some("gitlab.42".to_owned()),
        ..Decision::new(Outcome::Mutated, "ci", "train-1", named).about(Some("high"))
    });
    recent.add(|| Decision {
        time: at(1_800_000_001),
        rule: Some("not-authorized"),
        ..Decision::new(Outcome::Denied, "eve", "x*", "eve may not use <high>").about(Some("high"))
    });
    recent.add(|| Decision {
        time: at(1_800_000_002),
        ..Decision::new(Outcome::Overloaded, "", "", "too many requests")
    });
}
