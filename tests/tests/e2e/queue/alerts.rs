//! Faults of the queue, from the fault to the receiver of the alert.

use std::time::Instant;

use nvlink_tests::{Kubectl, Sample, wait_until};
use serde_json::json;

use super::cluster::Cluster;
use crate::alerts::watch::{SOON, Targets, Wanted, Watch, rules};

/// Releases that are refused.
const RELEASES: &[Wanted<'_>] = &[("refused", "NvlinkQueueStuck")];
const LEADER: &[Wanted<'_>] = &[("", "NvlinkQueueNoLeader")];
pub(crate) const ALERTS: &[Wanted<'_>] = &[RELEASES[0], LEADER[0]];

/// Refuses, as policies of others may, that pods are released.
fn refuse_releases(all: &Kubectl) {
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "example.com"},
        "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]
            }]},
            "validations": [{"expression": "size(object.spec.?schedulingGates.orValue([])) == size(oldObject.spec.?schedulingGates.orValue([]))"}]
        }
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "example.com"},
        "spec": {"policyName": "example.com", "validationActions": ["Deny"]}
    });
    all.create(&policy).unwrap();
    all.create(&binding).unwrap();
    // The API server reads policies now and then: a pod that comes before would be released.
    let probe = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"},
        "spec": {
            "schedulingGates": [{"name": "example.com/probe"}],
            "containers": [{"name": "main", "image": "busybox"}]
        }
    });
    all.create(&probe).unwrap();
    let remove = r#"[{"op": "remove", "path": "/spec/schedulingGates/0"}]"#;
    let patch = ["patch", "pod", "probe", "--type=json", "--dry-run=server"];
    wait_until("the policy to be in effect", SOON, || {
        let answer = all.output(&[&patch[..], &["-p", remove]].concat(), "")?;
        Ok((!answer.status.success()).then_some(()))
    })
    .unwrap();
    all.run(&["delete", "pod", "probe", "--force", "--grace-period=0"])
        .unwrap();
}

/// Lets another program hold the Lease, as one of an old installation would.
fn take_lease(all: &Kubectl, seconds: u32) {
    let spec = json!({"spec": {"holderIdentity": "old", "leaseDurationSeconds": seconds}});
    let patch = [
        "patch",
        "lease",
        "nvlink-webhook",
        "-n",
        "default",
        "--type=merge",
        "-p",
    ];
    all.run(&[&patch[..], &[&spec.to_string()]].concat())
        .unwrap();
}

#[test]
fn what_is_wrong_with_the_queue_is_notified() {
    let cluster = Cluster::start(&["n1", "n2"], json!({}));
    let all = cluster.plane.kubectl();
    let replicas = Targets::new();
    replicas.set(&[&cluster.webhook.as_ref().unwrap().replica.admin]);
    let others = ["exporter.yaml", "fabric.yaml", "jobs.yaml", "webhook.yaml"];
    let watch = Watch::of(vec![replicas.job("nvlink-webhook")], &rules(&others), 1);

    refuse_releases(all);
    let begin = Instant::now();
    cluster.create("refused", 1);
    watch.wait_until_firing(begin, RELEASES);
    all.run(&["delete", "validatingadmissionpolicybinding", "example.com"])
        .unwrap();
    watch.wait_until_resolved(RELEASES);

    // Both nodes have eight GPUs, so that one of the jobs waits.
    for number in 0..3 {
        cluster.create(&format!("late-{number}"), 8);
    }
    let waits = "sum(nvlink_webhook_queue_waiting_gpus) > 0";
    let any = |samples: &[Sample]| !samples.is_empty();
    watch.prometheus.wait_for(waits, SOON, any).unwrap();
    let begin = Instant::now();
    take_lease(all, 3_600);
    watch.wait_until_firing(begin, LEADER);
    take_lease(all, 1);
    watch.wait_until_resolved(LEADER);
}
