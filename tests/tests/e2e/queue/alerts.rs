//! Faults of the queue, from the fault to the receiver of the alert.

use std::time::{Duration, Instant};

use nvlink_tests::Kubectl;
use serde_json::json;

use super::cluster::Cluster;
use crate::alerts::watch::{Targets, Wanted, Watch, rules};

const CLASS: &str = "line";
/// Releases that are refused, and starts at another time than was expected.
const RELEASES: &[Wanted<'_>] = &[("refused", "NvlinkQueueReleasesFailing")];
const EXPECTED: &[Wanted<'_>] = &[(CLASS, "NvlinkQueueEtaFarOff")];
const LEADER: &[Wanted<'_>] = &[("", "NvlinkQueueNoLeader")];
pub(crate) const ALERTS: &[Wanted<'_>] = &[RELEASES[0], EXPECTED[0], LEADER[0]];

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
}

/// Creates small jobs until the alert is delivered: each of them is tried less and less often.
fn wait_until_refused(cluster: &Cluster, watch: &Watch) {
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| watch.wait_until_firing(begin, RELEASES));
        let mut created = 0;
        while !waiter.is_finished() {
            cluster.create(&format!("refused-{created}"), 1);
            created += 1;
            std::thread::sleep(Duration::from_secs(1));
        }
        waiter.join().unwrap();
    });
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

    // Two jobs say that they hold all GPUs for an hour, and end at once.
    let holders = ["one", "two"];
    for name in holders {
        cluster.create_for(name, 8, "60m");
        cluster.bound(name);
    }
    let waiters: Vec<String> = (0..10).map(|n| format!("early-{n}")).collect();
    for name in &waiters {
        cluster.create_for(name, 1, "60m");
    }
    for name in &waiters {
        super::showing::shows(&cluster, name, "Full");
    }
    let begin = Instant::now();
    holders.iter().for_each(|name| cluster.end(name));
    watch.wait_until_firing(begin, EXPECTED);

    refuse_releases(all);
    wait_until_refused(&cluster, &watch);
    all.run(&["delete", "validatingadmissionpolicybinding", "example.com"])
        .unwrap();
    watch.wait_until_resolved(RELEASES);

    let begin = Instant::now();
    take_lease(all, 3_600);
    watch.wait_until_firing(begin, LEADER);
    take_lease(all, 1);
    watch.wait_until_resolved(LEADER);
}
