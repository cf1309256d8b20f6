//! `kubectl nvlink check` where the webhook does not answer.

use std::{fs, time::Duration};

use nvlink_tests::{ControlPlane, certificates::Authority, programs, wait_until, workdir};
use serde_json::json;

use super::control_plane;
use crate::check::run;

const SOON: Duration = Duration::from_secs(30);
const REGISTRATION: [&str; 2] = ["mutatingwebhookconfiguration", "nvlink-domains.io"];

/// Waits until the check fails with `part` in its message: the API server learns of a change of
/// the registration after a moment.
fn wait_until_check_says(control_plane: &ControlPlane, part: &str) {
    wait_until("the check to notice the change", SOON, || {
        let (status, printed) = run(programs::PLUGIN, control_plane.kubeconfig(), &["check"]);
        anyhow::ensure!(status == 1 && printed.contains(part), "{status}: {printed}");
        Ok(Some(()))
    })
    .unwrap();
}

#[test]
fn a_check_tells_no_registration_from_an_empty_one_and_from_a_dead_webhook() {
    let (control_plane, _turn) = control_plane();
    let kubectl = control_plane.kubectl();
    let delete = [&["delete", "--ignore-not-found"], &REGISTRATION[..]].concat();
    kubectl.run(&delete).unwrap();
    let missing = "there is no MutatingWebhookConfiguration nvlink-domains.io";
    wait_until_check_says(control_plane, missing);

    // As the chart creates it, before a replica is ready.
    let empty = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "nvlink-domains.io"},
    });
    kubectl.apply(&empty.to_string()).unwrap();
    wait_until_check_says(control_plane, "has no entry class.nvlink-domains.io");

    // Nobody listens at the address.
    let file = workdir::fresh("check").unwrap().join("ca.pem");
    fs::write(&file, Authority::new("check").unwrap().certificate).unwrap();
    let url = format!("https://127.0.0.1:{}", nvlink_tests::port::free().unwrap());
    let print = ["registration", "--url", &url, "--ca-file"];
    let print = [&print[..], &[file.to_str().unwrap()]].concat();
    let dead = programs::run(programs::WEBHOOK, &print, "").unwrap();
    kubectl.apply(&dead).unwrap();
    let down = "does not answer, so pods that name a class are refused";
    wait_until_check_says(control_plane, down);
    kubectl.run(&delete).unwrap();
}
