//! The webhook with only the rights that the chart gives it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use nvlink_tests::{ControlPlane, Controller, Helm, Kubectl, Replica, port, wait_until};
use serde_json::{Value, json};

use super::{control_plane, registered};
use crate::{
    pods::{decision, gpu_pod},
    queued,
};

const SOON: Duration = Duration::from_secs(60);

/// Returns the API server's answer to a pod of `class`, which is not stored.
fn try_pod(kubectl: &Kubectl, class: &str) -> anyhow::Result<Value> {
    let mut pod = gpu_pod("probe", 2);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": class});
    let arguments = ["create", "--dry-run=server", "-f", "-", "-o", "json"];
    let made = kubectl.run_with(&arguments, &pod.to_string())?;
    Ok(serde_json::from_str(&made)?)
}

fn says_that_the_namespace_is_missing(admin: &Path, arguments: &[&str]) {
    let error = Controller::start(admin, arguments).unwrap_err();
    let error = format!("{error:#}");
    let remedy = "namespace nvlink-system does not exist: kubectl create namespace nvlink-system";
    assert!(error.contains(remedy), "{error}");
}

/// The chart's account may not create the Secret. Runs the command of the error instead, which
/// creates it empty.
fn creates_the_secret_as_the_error_says(all: &Kubectl, account: &Path, arguments: &[&str]) {
    let error = Controller::start(account, arguments).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("cannot create resource"), "{error}");
    let remedy = "kubectl create secret generic webhook-ca --namespace nvlink-system";
    assert!(error.contains(remedy), "{error}");
    let output = all.shell(remedy).unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn is_refused(ada: &Kubectl) {
    wait_until("the class to be refused", SOON, || {
        let Err(refused) = try_pod(ada, "closed") else {
            anyhow::bail!("the pod was admitted");
        };
        let refused = format!("{refused:#}");
        anyhow::ensure!(refused.contains("rule not-authorized"), "{refused}");
        Ok(Some(()))
    })
    .unwrap();
}

/// Creates a restricted class, and waits for its conditions.
fn make_closed_class(kubectl: &Kubectl) {
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
        "metadata": {"name": "closed"}, "spec": {"access": {"mode": "Restricted"}},
    });
    kubectl.create(&class).unwrap();
    wait_until("the class to be accepted", SOON, || {
        let shown = kubectl.run(&["get", "domainclass", "closed"])?;
        Ok(shown.contains("True").then_some(()))
    })
    .unwrap();
    wait_until("the nodes of the class to be checked", SOON, || {
        let class = kubectl.run(&["get", "domainclass", "closed", "-o", "yaml"])?;
        anyhow::ensure!(!class.contains("PodsUnknown"), "{class}");
        Ok(class.contains("type: Isolated").then_some(()))
    })
    .unwrap();
}

/// Returns the kubeconfig of an account of the chart.
fn account(control_plane: &ControlPlane, name: &str) -> PathBuf {
    let account = format!("system:serviceaccount:nvlink-system:{name}");
    control_plane.kubeconfig_for(&account).unwrap()
}

/// The webhook is registered only once a replica behind its Service is ready.
fn waits_for_a_ready_replica(all: &Kubectl, account: &Path) {
    let slice = |ready: bool| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {
                "name": "nvlink-webhook-1", "namespace": "nvlink-system",
                "labels": {"kubernetes.io/service-name": "nvlink-webhook"},
            },
            "endpoints": [{"addresses": ["10.1.2.3"], "conditions": {"ready": ready}}],
        })
    };
    all.apply(&slice(false).to_string()).unwrap();
    let of_chart = ["--ca-secret", "nvlink-system/webhook-ca", "--service"];
    let of_chart = [&of_chart[..], &["nvlink-system/nvlink-webhook"]].concat();
    let controller = Controller::start(account, &of_chart).unwrap();
    wait_until("the controller to wait", SOON, || {
        let log = controller.process.log();
        Ok(log.contains("waiting until a replica").then_some(()))
    })
    .unwrap();
    assert_eq!(registered(all).unwrap()["webhooks"], Value::Null);
    all.apply(&slice(true).to_string()).unwrap();
    wait_until("the webhook to be registered", SOON, || {
        let entries = registered(all)?["webhooks"].as_array().map(Vec::len);
        Ok((entries == Some(2)).then_some(()))
    })
    .unwrap();
}

/// Uses each right once: the CA, the registration, the watches, an access review for a
/// class, the conditions of a class, and the queue.
#[test]
fn the_rights_of_the_chart_are_enough() {
    let (control_plane, _turn) = control_plane();
    let address = port::address().unwrap();
    let url = format!("https://{address}");
    let arguments = ["--ca-secret", "nvlink-system/webhook-ca", "--url", &url];
    says_that_the_namespace_is_missing(control_plane.kubeconfig(), &arguments);
    let all = control_plane.kubectl();
    all.run(&["create", "namespace", "nvlink-system"]).unwrap();
    let helm = Helm::new().unwrap();
    // Of other tests on this control plane.
    all.run(&[&["delete", "--ignore-not-found"], &NAME[..]].concat())
        .unwrap();
    for template in [
        "webhook/rbac.yaml",
        "webhook/controller-rbac.yaml",
        "webhook/registration.yaml",
    ] {
        all.apply(&helm.template(template, "").unwrap()).unwrap();
    }
    let controls = account(control_plane, "nvlink-webhook-controller");
    creates_the_secret_as_the_error_says(all, &controls, &arguments);
    waits_for_a_ready_replica(all, &controls);
    let controller = Controller::start(&controls, &arguments).unwrap();
    let serves = account(control_plane, "nvlink-webhook");
    let arguments = [&["--without-controller"], &arguments[..]].concat();
    let replica = Replica::start_on(address, &serves, &arguments).unwrap();
    let team = control_plane
        .namespace("least-rights", &json!({}), &json!({}))
        .unwrap();
    wait_until("the API server to reach the webhook", SOON, || {
        Ok(decision(&try_pod(&team, "nvlink")?).map(drop))
    })
    .unwrap();

    make_closed_class(all);
    // The administrator may use each class; no controller aggregates the role `edit` here.
    for made in [
        &["role", "ada", "--verb=create", "--resource=pods"][..],
        &["rolebinding", "ada", "--role=ada", "--user=ada"],
    ] {
        team.run(&[&["create"], made].concat()).unwrap();
    }
    let ada = control_plane.kubectl_as("ada").unwrap();
    let ada = ada.in_namespace("least-rights");
    is_refused(&ada);
    queued::wait_and_leave(all, &team);
    repairs_but_does_not_create(all, &controller);
    let log = replica.process.log();
    assert!(!log.contains("forbidden"), "{log}");
    all.run(&["delete", "domainclass", "closed"]).unwrap();
}

const NAME: [&str; 2] = ["mutatingwebhookconfiguration", "nvlink-domains.io"];

/// The webhook restores an entry that somebody removed. A registration that somebody deleted stays
/// deleted, as the chart's is when it is uninstalled.
fn repairs_but_does_not_create(all: &Kubectl, controller: &Controller) {
    let first = r#"[{"op": "remove", "path": "/webhooks/0"}]"#;
    let patch = ["patch", "--type=json", "-p", first];
    all.run(&[&patch[..], &NAME].concat()).unwrap();
    wait_until("the registration to be restored", SOON, || {
        let entries = registered(all)?["webhooks"].as_array().map(Vec::len);
        Ok((entries == Some(2)).then_some(()))
    })
    .unwrap();
    let log = controller.process.log();
    assert!(!log.contains("forbidden"), "{log}");
    all.run(&[&["delete"], &NAME[..]].concat()).unwrap();
    wait_until("the webhook to report it", SOON, || {
        let log = controller.process.log();
        anyhow::ensure!(log.contains("may not create it: install"), "{log}");
        Ok(Some(()))
    })
    .unwrap();
    registered(all).unwrap_err();
}
