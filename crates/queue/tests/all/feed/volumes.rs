//! The volumes of pods that wait: where they are, and where they can be made.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use nvlink_cluster::volumes::{StorageClass, Volume, VolumeClaim};
use nvlink_planner::Reason;
use nvlink_queue::{
    notice::{About, Notice},
    placement::id,
};
use serde_json::{Value, json};

use super::{NOW, Queue, near, pod};

const HOST: &str = "kubernetes.io/hostname";

/// Returns two nodes, and a pod with the claim `data` that waits.
fn queue() -> Queue {
    let mut queue = Queue::new();
    near::node(&mut queue, "n1", 4);
    near::node(&mut queue, "n2", 4);
    let mut pod = pod("a", 1, 1);
    pod["spec"]["volumes"] =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    queue.feed.pod(pod);
    queue
}

/// Sets the claim `data`.
fn claim(queue: &mut Queue, spec: Value, annotations: Value) {
    let claim = json!({"metadata": {"annotations": annotations}, "spec": spec});
    let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
    let data = id("team", "data");
    queue
        .feed
        .volume_claim(&data, Some(VolumeClaim::of(&claim)));
}

/// Sets a volume of 10 GiB that the nodes with these names reach.
fn volume(queue: &mut Queue, name: &str, on: &[&str], more: Value) {
    let expressions = json!([{"key": HOST, "operator": "In", "values": on}]);
    let mut volume = json!({
        "spec": {
            "storageClassName": "local", "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"],
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}},
        },
        "status": {"phase": "Available"},
    });
    json_patch::merge(&mut volume, &more);
    let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
    queue.feed.volume(name, Some(Volume::of(&volume)));
}

/// Sets a StorageClass.
fn class(queue: &mut Queue, name: &str, class: Value) {
    let class = serde_json::from_value(class).unwrap();
    queue
        .feed
        .storage_class(name, Some(StorageClass::of(&class)));
}

fn local(size: &str) -> Value {
    json!({
        "storageClassName": "local", "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
    })
}

/// Returns the node for which the pod would be released.
fn starts_on(queue: &mut Queue) -> Option<String> {
    let releases = queue.releases(NOW);
    let seat = releases.first()?.seats.first()?;
    Some(seat.node.as_deref()?.to_owned())
}

#[test]
fn a_pod_goes_to_a_node_that_reaches_its_volume() {
    let mut queue = queue();
    for on in ["n1", "n2"] {
        volume(&mut queue, "pv", &[on], json!({}));
        claim(&mut queue, json!({"volumeName": "pv"}), json!({}));
        assert_eq!(starts_on(&mut queue).as_deref(), Some(on));
    }
    volume(&mut queue, "pv", &["n3"], json!({}));
    assert_eq!(starts_on(&mut queue), None);
    // A volume of the network, and a claim that may not be seen, are everywhere.
    volume(
        &mut queue,
        "pv",
        &[],
        json!({"spec": {"nodeAffinity": null}}),
    );
    assert!(starts_on(&mut queue).is_some());
    volume(&mut queue, "pv", &["n3"], json!({}));
    queue.feed.retain_volume_claims(&[].into());
    assert!(starts_on(&mut queue).is_some());
}

#[test]
fn a_volume_that_waits_for_its_pod_is_where_one_is_left_or_can_be_made() {
    let mut queue = queue();
    let waits = json!({"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"});
    class(&mut queue, "local", waits);
    claim(&mut queue, local("5Gi"), json!({}));
    assert_eq!(starts_on(&mut queue), None, "no volume is left");
    assert!(queue.feed.obstacle(&id("team", "a")).is_some());
    volume(&mut queue, "pv", &["n2"], json!({}));
    assert_eq!(starts_on(&mut queue).as_deref(), Some("n2"));
    for other in [
        json!({"spec": {"capacity": {"storage": "4Gi"}}}),
        json!({"spec": {"accessModes": ["ReadOnlyMany"]}}),
        json!({"spec": {"volumeMode": "Block"}}),
        json!({"spec": {"storageClassName": "other"}}),
        json!({"spec": {"claimRef": {"namespace": "team", "name": "other"}}}),
        json!({"status": {"phase": "Released"}}),
    ] {
        volume(&mut queue, "pv", &["n2"], other.clone());
        assert_eq!(starts_on(&mut queue), None, "{other}");
    }
    let reserved = json!({"spec": {"claimRef": {"namespace": "team", "name": "data"}}, "status": {"phase": "Bound"}});
    volume(&mut queue, "pv", &["n2"], reserved);
    assert_eq!(starts_on(&mut queue).as_deref(), Some("n2"));

    let made = json!({
        "provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": [{"matchLabelExpressions": [{"key": HOST, "values": ["n1"]}]}],
    });
    class(&mut queue, "local", made);
    volume(&mut queue, "pv", &["n3"], json!({}));
    assert_eq!(starts_on(&mut queue).as_deref(), Some("n1"));
    let selected = json!({"volume.kubernetes.io/selected-node": "n2"});
    claim(&mut queue, local("5Gi"), selected);
    // `metadata.name` is the name of the node.
    assert_eq!(starts_on(&mut queue).as_deref(), Some("n2"));
}

#[test]
fn a_claim_whose_class_does_not_exist_is_bound_by_hand() {
    let mut queue = queue();
    let obstacle = |queue: &mut Queue| {
        let _ = starts_on(queue);
        queue.feed.obstacle(&id("team", "a")).is_some()
    };
    claim(&mut queue, local("5Gi"), json!({}));
    assert!(!obstacle(&mut queue), "the classes may not be seen");
    let other = json!({"provisioner": "nfs", "volumeBindingMode": "WaitForFirstConsumer"});
    class(&mut queue, "other", other);
    assert!(obstacle(&mut queue));
}

#[test]
fn a_claim_that_somebody_must_bind_first_is_the_reason() {
    let mut queue = queue();
    class(
        &mut queue,
        "local",
        json!({"provisioner": "nfs", "volumeBindingMode": "Immediate"}),
    );
    claim(&mut queue, local("5Gi"), json!({}));
    assert_eq!(starts_on(&mut queue), None);
    let waiting = queue.planner.round(NOW).waiting.remove(0);
    assert_eq!(waiting.reason, Reason::Incomplete);
    let notice = Notice::new(&waiting, queue.feed.obstacle(&waiting.job));
    let member = queue.feed.member(&id("team", "a")).unwrap();
    assert_eq!(
        notice.why(About::from(member)),
        "PersistentVolumeClaim team/data of pod team/a has no volume yet: `kubectl describe pvc` shows why"
    );
    volume(&mut queue, "pv", &["n2"], json!({}));
    let mut bound = local("5Gi");
    bound["volumeName"] = json!("pv");
    claim(&mut queue, bound, json!({}));
    assert_eq!(starts_on(&mut queue).as_deref(), Some("n2"));
}
