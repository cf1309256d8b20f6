//! The cluster as JSON, for programs: `/api/v1/cluster`. Keys that do not apply are absent.

use nvlink_cluster::gpus::node::{Gpu, Node};
use serde_json::{Map, Value, json};

use super::board::{Group, Row};

/// Returns a node.
pub(super) fn of_row(row: &Row) -> Value {
    let mut value = Map::new();
    let mut set = |key: &str, one: Option<Value>| {
        if let Some(one) = one {
            value.insert(key.to_owned(), one);
        }
    };
    set("name", Some(json!(row.name)));
    set("rack", row.place.rack.as_ref().map(|rack| json!(rack)));
    set("zone", row.place.zone.as_ref().map(|zone| json!(zone)));
    set("tray", row.tray().map(|tray| json!(tray)));
    match row.published.as_ref() {
        Ok(node) => {
            let gpus = node.gpus.iter().map(|gpu| of_gpu(node, gpu));
            set("gpus", Some(gpus.collect()));
            set("lost", (!node.lost.is_empty()).then(|| json!(node.lost)));
            let missing = (node.missing > 0).then(|| json!(node.missing));
            set("missingGpus", missing);
            set("siblingsGpus", row.usual.map(|usual| json!(usual)));
            let siblings = node.slow.map(|ratio| json!(ratio));
            set("siblingsRatio", siblings);
            set("free", row.free().map(|free| json!(free)));
            let most = row.largest_free_set();
            set("largestFreeSet", most.map(|most| json!(most)));
            set("jobs", jobs(row, node));
        }
        Err(reason) => set("error", Some(json!(reason))),
    }
    Value::Object(value)
}

fn of_gpu(node: &Node, gpu: &Gpu) -> Value {
    let mut value = json!({ "index": gpu.index });
    let domain = node.domain_of(gpu.index).map(|domain| domain.id.as_str());
    for (key, text) in [
        ("uuid", gpu.uuid.as_deref()),
        ("model", gpu.model.as_deref()),
        ("domain", domain),
    ] {
        if let Some(text) = text {
            value[key] = json!(text);
        }
    }
    if let Some(links) = gpu.links {
        value["links"] = json!(links);
    }
    if !gpu.faults.is_empty() {
        value["faults"] = json!(gpu.faults);
    }
    value
}

fn jobs(row: &Row, node: &Node) -> Option<Value> {
    let held = node.allocations.as_ref()?.iter().zip(&row.jobs);
    let job = held.map(|(held, job)| {
        let mut value = json!({
            "namespace": held.namespace, "pod": held.pod,
            "container": held.container, "gpus": held.gpus,
        });
        let pod = job.pod.as_deref();
        let pattern = pod.and_then(|pod| pod.pattern);
        let optional = [
            ("class", pod.and_then(|pod| pod.class.clone())),
            ("project", pod.and_then(|pod| pod.project.clone())),
            ("pattern", pattern.map(|pattern| pattern.to_string())),
        ];
        for (key, text) in optional {
            if let Some(text) = text {
                value[key] = json!(text);
            }
        }
        if let Some(quality) = job.quality {
            value["quality"] = json!(quality);
        }
        value
    });
    Some(job.collect())
}

/// Returns a group, with the names of its nodes.
pub(super) fn of_group(group: &Group) -> Value {
    let names: Vec<&str> = group.rows.iter().map(|row| row.name.as_str()).collect();
    let mut value = json!({"title": group.kind.title(), "totals": group.totals, "nodes": names});
    if let Some(expected) = group.expected {
        value["expectedGpus"] = json!(expected);
    }
    if !group.away.is_empty() {
        value["awayTrays"] = json!(group.away);
    }
    value
}
