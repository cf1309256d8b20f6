//! The spec and the status of the object are written separately, and never contradict each other.

use nvlink_exporter::{
    placement::Keys,
    publish::status::{StatusOutcome, Wanted, apply, read},
};
use nvlink_topology::{Allocation, NodeTopology, NodeTopologyStatus};
use serde_json::{Value, json};

use super::{
    api_server::{Cluster, start},
    publisher,
};
use crate::support::reading;

/// Returns the same node without its first GPU: the GPUs behind it have moved up.
fn without_first(node: &NodeTopology) -> NodeTopology {
    let mut node = node.clone();
    let spec = &mut node.spec;
    spec.gpus.remove(0);
    for (index, gpu) in (0..).zip(&mut spec.gpus) {
        gpu.index = index;
    }
    spec.edges.clear();
    spec.paths.clear();
    spec.domains.clear();
    spec.nics.clear();
    node
}

fn held(node: &NodeTopology, gpus: &[u32]) -> Wanted {
    let allocation = Allocation {
        namespace: "a".to_owned(),
        pod: "p".to_owned(),
        container: "c".to_owned(),
        gpus: gpus.to_vec(),
        ..Allocation::default()
    };
    Wanted {
        on: Keys::of(&node.spec.gpus),
        status: Some(NodeTopologyStatus {
            allocations: vec![allocation],
        }),
    }
}

/// Returns the UUIDs of the GPUs that are held; none if there is no status.
fn uuids(object: &Value) -> Option<Vec<&str>> {
    let allocations = object["status"]["allocations"].as_array()?;
    let gpus = allocations
        .iter()
        .flat_map(|one| one["gpus"].as_array().unwrap());
    let of = |index: &Value| {
        let all = object["spec"]["gpus"].as_array().unwrap();
        let gpu = all.iter().find(|gpu| gpu["index"] == *index).unwrap();
        gpu["uuid"].as_str().unwrap()
    };
    Some(gpus.map(of).collect())
}

#[tokio::test]
async fn no_reader_finds_a_status_of_other_gpus() {
    let (client, cluster) = start(Cluster::default());
    let mut publisher = publisher(&client, false);
    let eight = reading("sim:dgx-h100").topology;
    let seven = without_first(&eight);
    publisher.publish(&eight).await.unwrap();
    let before = held(&eight, &[3]);
    let write = async |wanted: &Wanted| apply(&client, "gpu-7", wanted).await.unwrap();
    assert_eq!(write(&before).await, StatusOutcome::Written);
    assert_eq!(write(&before).await, StatusOutcome::Same);

    // The same GPU by its new index is not written before the spec has that index.
    let after = held(&seven, &[2]);
    assert_eq!(write(&after).await, StatusOutcome::Behind);
    publisher.publish(&seven).await.unwrap();
    assert_eq!(write(&before).await, StatusOutcome::Behind);
    assert_eq!(write(&after).await, StatusOutcome::Written);

    let cluster = cluster.lock().unwrap();
    let third = eight.spec.gpus[3].uuid.as_deref().unwrap();
    let seen: Vec<_> = cluster.history.iter().map(uuids).collect();
    let says = || Some(vec![third]);
    assert_eq!(seen, [None, says(), None, None, says()]);
}

#[tokio::test]
async fn a_status_stays_while_the_gpus_are_the_same() {
    let (client, cluster) = start(Cluster::default());
    let mut publisher = publisher(&client, false);
    let mut node = reading("sim:dgx-h100").topology;
    publisher.publish(&node).await.unwrap();
    apply(&client, "gpu-7", &held(&node, &[3])).await.unwrap();
    node.spec.nics.clear();
    assert!(publisher.publish(&node).await.unwrap().object);
    let record = read(&client, "gpu-7").await.unwrap();
    assert_eq!(record.allocations[0].gpus, [3]);
    let nobody_knows = Wanted {
        status: None,
        ..held(&node, &[])
    };
    apply(&client, "gpu-7", &nobody_knows).await.unwrap();
    let cluster = cluster.lock().unwrap();
    assert_eq!(cluster.object.as_ref().unwrap()["status"], json!({}));
}
