//! One of several replicas leads: only it writes the status of classes.

use std::time::Duration;

use nvlink_tests::{Kubectl, Replica, certificates::Authority, wait_until, workdir};
use serde_json::json;

use super::control_plane;

/// A lease that is not renewed expires after 15 seconds.
const SOON: Duration = Duration::from_secs(60);

fn replica(kubeconfig: &std::path::Path) -> Replica {
    let directory = workdir::fresh("leader").unwrap();
    let files = Authority::new("leader").unwrap();
    let files = files.issue("tls", &directory).unwrap();
    let [cert, key] = [&files.certificate, &files.key].map(|path| path.to_string_lossy());
    let arguments = ["--tls-cert", &cert, "--tls-key", &key];
    let lease = ["--lease-name", "test-of-leaders", "--drain-seconds", "0"];
    Replica::start(kubeconfig, &[&arguments[..], &lease[..]].concat()).unwrap()
}

fn leads(replica: &Replica) -> bool {
    replica
        .metrics()
        .unwrap()
        .contains("nvlink_webhook_leader 1\n")
}

fn waits_to_lead(replica: &Replica) {
    let leads = || Ok(leads(replica).then_some(()));
    wait_until("the replica to lead", SOON, leads).unwrap();
}

fn holder(kubectl: &Kubectl) -> anyhow::Result<String> {
    let lease = kubectl.get(&["lease", "test-of-leaders", "-n", "default"])?;
    let holder = lease["spec"]["holderIdentity"].as_str();
    Ok(holder.unwrap_or_default().to_owned())
}

/// Creates a class, waits for its condition, and deletes it.
fn is_accepted(kubectl: &Kubectl, name: &str) {
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
        "metadata": {"name": name}, "spec": {},
    });
    kubectl.create(&class).unwrap();
    wait_until("the class to be accepted", SOON, || {
        let shown = kubectl.run(&["get", "domainclass", name])?;
        Ok(shown.contains("True").then_some(()))
    })
    .unwrap();
    kubectl.run(&["delete", "domainclass", name]).unwrap();
}

#[test]
fn one_replica_leads_until_it_ends_and_then_another_takes_over() {
    let (control_plane, _turn) = control_plane();
    let kubectl = control_plane.kubectl();
    let first = replica(control_plane.kubeconfig());
    waits_to_lead(&first);
    let held = holder(kubectl).unwrap();
    let second = replica(control_plane.kubeconfig());
    is_accepted(kubectl, "led-by-the-first");
    assert!(leads(&first) && !leads(&second));
    assert_eq!(holder(kubectl).unwrap(), held);

    // It releases the lease: its name is no longer in the lease when the process has ended.
    let ended = first.process.terminate(SOON).unwrap();
    assert_eq!(ended.code(), Some(0));
    assert_ne!(holder(kubectl).unwrap(), held);
    waits_to_lead(&second);
    is_accepted(kubectl, "led-by-the-second");

    let third = replica(control_plane.kubeconfig());
    assert!(!leads(&third));
    drop(second); // SIGKILL
    waits_to_lead(&third);
    is_accepted(kubectl, "led-by-the-third");
    let log = third.process.log();
    // On a busy machine, the API server may be late once.
    let wrong = |line: &str| line.contains("cannot") && !line.contains("did not answer within");
    assert!(!log.lines().any(wrong), "{log}");
}
