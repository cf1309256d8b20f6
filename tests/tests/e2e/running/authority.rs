//! The webhook's own CA in its Secret, and the registration that the webhook repairs.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, SystemTime},
};

use nvlink_tests::{Kubectl, Replica, wait_until};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::{Value, json};

use super::{control_plane, registered};
use crate::pods::{decision, gpu_pod};

const SOON: Duration = Duration::from_secs(60);

/// Returns a pod that names a class: the API server refuses it if it cannot reach the webhook.
fn named(name: &str) -> Value {
    let mut pod = gpu_pod(name, 2);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "nvlink"});
    pod
}

/// Returns a free address for a replica, and the URL for the API server.
fn free_address() -> (SocketAddr, String) {
    let address = SocketAddr::from(([127, 0, 0, 1], nvlink_tests::port::free().unwrap()));
    (address, format!("https://{address}"))
}

fn dry_run(kubectl: &Kubectl, pod: &Value) -> anyhow::Result<Value> {
    let arguments = ["create", "--dry-run=server", "-f", "-", "-o", "json"];
    Ok(serde_json::from_str(
        &kubectl.run_with(&arguments, &pod.to_string())?,
    )?)
}

fn wait_until_decided(kubectl: &Kubectl) {
    wait_until("the API server to reach the webhook", SOON, || {
        Ok(decision(&dry_run(kubectl, &named("probe"))?).map(drop))
    })
    .unwrap();
}

fn secret(kubectl: &Kubectl) -> Value {
    kubectl.get(&["secret", "webhook-ca"]).unwrap()["data"].clone()
}

/// Returns the number of whole days for which the certificate of `replica` is valid.
fn days_left(replica: &Replica) -> u64 {
    const EXPIRY: &str = "nvlink_webhook_certificate_expiry_timestamp_seconds ";
    let page = replica.metrics().unwrap();
    let expiry: u64 = page
        .lines()
        .find_map(|line| line.strip_prefix(EXPIRY)?.parse().ok())
        .unwrap();
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    (expiry - now.as_secs()) / 86_400
}

#[test]
fn replicas_share_the_ca_and_repair_the_registration() {
    let (control_plane, _turn) = control_plane();
    let kubectl = control_plane
        .namespace("own-authority", &json!({}), &json!({}))
        .unwrap();
    // The CAs of other replicas would stay in the registration for a while.
    let left = [
        "delete",
        "mutatingwebhookconfiguration",
        "nvlink-domains.io",
        "--ignore-not-found",
    ];
    control_plane.kubectl().run(&left).unwrap();
    // The registration has the address of the first replica only; the second has the same names.
    let (address, url) = free_address();
    let kubeconfig = control_plane.kubeconfig();
    let arguments = [
        "--ca-secret",
        "own-authority/webhook-ca",
        "--url",
        &url,
        "--tls-poll-seconds",
        "1",
    ];
    // Both start at once: one fills the Secret, which is empty, and the other uses it.
    let empty = ["create", "secret", "generic", "webhook-ca"];
    kubectl.run(&empty).unwrap();
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| Replica::start_on(address, kubeconfig, &arguments).unwrap());
        let second = Replica::start(kubeconfig, &arguments).unwrap();
        (first.join().unwrap(), second)
    });
    wait_until_decided(&kubectl);
    let logs = first.process.log() + &second.process.log();
    assert_eq!(logs.matches("created a new CA").count(), 1, "{logs}");
    let before = secret(&kubectl);

    repaired_by_itself(control_plane.kubectl());
    wait_until_decided(&kubectl);
    let days = days_left(&first);
    assert!((88..=90).contains(&days), "{days} days");

    // An administrator requests a new CA, and a replica creates the Secret; no pod is refused meanwhile.
    kubectl.run(&["delete", "secret", "webhook-ca"]).unwrap();
    wait_until("the new authority to be in use", SOON, || {
        dry_run(&kubectl, &named("meanwhile"))?;
        let renewed = |one: &Replica| one.process.log().contains("certificate renewed");
        Ok((renewed(&first) && renewed(&second)).then_some(()))
    })
    .unwrap();
    let after = secret(&kubectl);
    assert_ne!(before["tls.crt"], after["tls.crt"]);
    wait_until_decided(&kubectl);
}

/// Asserts that the webhook repairs changes to the registration.
fn repaired_by_itself(kubectl: &Kubectl) {
    let whole = registered(kubectl).unwrap();
    let breaks = [
        vec![
            "patch",
            "--type=json",
            "-p",
            r#"[{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]"#,
        ],
        vec![
            "patch",
            "--type=json",
            "-p",
            r#"[{"op": "replace", "path": "/webhooks/1/clientConfig/caBundle", "value": ""}]"#,
        ],
        vec![
            "patch",
            "--type=json",
            "-p",
            r#"[{"op": "remove", "path": "/webhooks/0"}]"#,
        ],
        vec!["delete"],
    ];
    for mut arguments in breaks {
        arguments.splice(1..1, ["mutatingwebhookconfiguration", "nvlink-domains.io"]);
        kubectl.run(&arguments).unwrap();
        wait_until("the registration to be repaired", SOON, || {
            let found = registered(kubectl)?;
            // A removed entry may return in another position.
            let sorted = |whole: &Value| {
                let mut entries = whole["webhooks"].as_array().cloned().unwrap_or_default();
                entries.sort_by_key(|entry| entry["name"].to_string());
                entries
            };
            Ok((sorted(&found) == sorted(&whole)).then_some(()))
        })
        .unwrap();
    }
}

#[test]
fn replicas_with_different_flags_log_the_difference() {
    let (control_plane, _turn) = control_plane();
    control_plane
        .namespace("quarrel", &json!({}), &json!({}))
        .unwrap();
    let (address, url) = free_address();
    let kubeconfig = control_plane.kubeconfig();
    let arguments = ["--ca-secret", "quarrel/ca", "--url", &url];
    let first = Replica::start_on(address, kubeconfig, &arguments).unwrap();
    let other = [&arguments[..], &["--exempt-namespace", "elsewhere"]].concat();
    let second = Replica::start(kubeconfig, &other).unwrap();
    let said = wait_until("a replica to log the conflict", SOON, || {
        let log = first.process.log() + &second.process.log();
        let mut lines = log.lines();
        Ok(lines
            .find(|line| line.contains("somebody keeps changing the registration"))
            .map(str::to_owned))
    })
    .unwrap();
    assert!(said.contains("webhooks[0].namespaceSelector"), "{said}");
}

/// Somebody registered a webhook by URL with a plain `kubectl apply`, and then it runs as a Service.
#[test]
fn a_registration_by_url_becomes_one_by_service() {
    let (control_plane, _turn) = control_plane();
    let kubectl = control_plane.kubectl();
    control_plane
        .namespace("readdressed", &json!({}), &json!({}))
        .unwrap();
    let name = ["mutatingwebhookconfiguration", "nvlink-domains.io"];
    let delete = [&["delete", "--ignore-not-found"], &name[..]].concat();
    kubectl.run(&delete).unwrap();
    let (_, url) = free_address();
    let file = nvlink_tests::workdir::fresh("readdressed")
        .unwrap()
        .join("ca.pem");
    std::fs::write(&file, old_authority().0).unwrap();
    let file = file.to_string_lossy();
    let print = ["registration", "--url", &url, "--ca-file", &file];
    let program = nvlink_tests::programs::WEBHOOK;
    let by_url = nvlink_tests::programs::run(program, &print, "").unwrap();
    kubectl.run_with(&["apply", "-f", "-"], &by_url).unwrap();

    let service = ["--service", "readdressed/hook"];
    let arguments = [&["--ca-secret", "readdressed/ca"], &service[..]].concat();
    let replica = Replica::start(control_plane.kubeconfig(), &arguments).unwrap();
    wait_until("the registration to name the service", SOON, || {
        let found = registered(kubectl)?;
        let entries = found["webhooks"].as_array().cloned().unwrap_or_default();
        let by_service = |entry: &Value| {
            let config = &entry["clientConfig"];
            config["service"]["name"] == "hook" && config["url"].is_null()
        };
        Ok((entries.len() == 2 && entries.iter().all(by_service)).then_some(()))
    })
    .unwrap();
    wait_until("the metric", SOON, || {
        let page = replica.metrics()?;
        Ok(page.contains("nvlink_webhook_registered 1\n").then_some(()))
    })
    .unwrap();
    let page = replica.metrics().unwrap();
    let failures = "nvlink_webhook_registration_failures_total 0\n";
    assert!(page.contains(failures), "{page}");
    let log = replica.process.log();
    let said = log.matches("replaced the addresses in the registration");
    assert_eq!(said.count(), 1, "{log}");
    drop(replica);
    // Nobody serves at the address: pods of other tests must not wait for it.
    kubectl.run(&delete).unwrap();
}

/// Returns a CA of which more than two thirds of the lifetime are over (1970 to 2050).
fn old_authority() -> (String, String) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_before = rcgen::date_time_ymd(1970, 1, 1);
    params.not_after = rcgen::date_time_ymd(2050, 1, 1);
    let key = KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

#[test]
fn a_namespace_can_be_exempted_by_a_label() {
    let (control_plane, _turn) = control_plane();
    let labels = json!({"nvlink-domains.io/webhook": "ignore"});
    let kubectl = control_plane
        .namespace("left-alone", &labels, &json!({}))
        .unwrap();
    let other = control_plane
        .namespace("not-left-alone", &json!({}), &json!({}))
        .unwrap();
    let (address, url) = free_address();
    let arguments = ["--ca-secret", "left-alone/ca", "--url", &url];
    let _replica = Replica::start_on(address, control_plane.kubeconfig(), &arguments).unwrap();
    wait_until_decided(&other);
    assert_eq!(
        decision(&dry_run(&kubectl, &gpu_pod("plain", 2)).unwrap()),
        None
    );
}

#[test]
fn the_status_of_a_class_reports_whether_it_is_accepted() {
    let (control_plane, _turn) = control_plane();
    let kubectl = control_plane
        .namespace("accepted", &json!({}), &json!({}))
        .unwrap();
    let (address, url) = free_address();
    let arguments = ["--ca-secret", "accepted/ca", "--url", &url];
    let _replica = Replica::start_on(address, control_plane.kubeconfig(), &arguments).unwrap();
    let class = |mapping: &str| {
        json!({
            "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
            "metadata": {"name": "changing"},
            "spec": {
                "placement": {"whenUnavailable": "Queue"}, "devices": {"mapping": mapping}
            },
        })
    };
    for mapping in ["Claim", "DevicePlugin"] {
        kubectl.apply(&class(mapping).to_string()).unwrap();
        wait_until("the class's condition", SOON, || {
            let class = kubectl.get(&["domainclass", "changing"])?;
            let condition = &class["status"]["conditions"][0];
            let current = condition["observedGeneration"] == class["metadata"]["generation"];
            let told = condition["status"] == "True" && condition["reason"] == "Valid";
            anyhow::ensure!(current && told, "{condition}");
            Ok(Some(()))
        })
        .unwrap();
    }
}

#[test]
fn an_old_ca_is_replaced_in_time_and_a_foreign_secret_is_not_changed() {
    let (control_plane, _turn) = control_plane();
    let kubectl = control_plane
        .namespace("old-authority", &json!({}), &json!({}))
        .unwrap();
    let (certificate, key) = old_authority();
    let data = |tls: &str, key: &str, ca: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "name": "webhook-ca", "annotations": {"nvlink-domains.io/renewed-by": "nvlink-webhook"},
            },
            "type": "kubernetes.io/tls", "stringData": {"tls.crt": tls, "tls.key": key, "ca.crt": ca},
        })
    };
    kubectl
        .create(&data(&certificate, &key, &certificate))
        .unwrap();
    let (address, url) = free_address();
    let arguments = ["--ca-secret", "old-authority/webhook-ca", "--url", &url];
    let replica = Replica::start_on(address, control_plane.kubeconfig(), &arguments).unwrap();
    wait_until_decided(&kubectl);
    // The bundle, in base64, has the new CA before the old one, which stays trusted.
    let bundle = secret(&kubectl)["ca.crt"].as_str().unwrap().len();
    let one = certificate.len() * 4 / 3;
    assert!(bundle > one * 3 / 2, "{bundle}, one is {one}");
    drop(replica);

    kubectl.run(&["delete", "secret", "webhook-ca"]).unwrap();
    kubectl.create(&data("mine", "my key", "my own")).unwrap();
    let before = secret(&kubectl);
    let error = Replica::start_on(address, control_plane.kubeconfig(), &arguments).unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.contains("old-authority/webhook-ca does not hold the webhook's CA"),
        "{error}"
    );
    assert_eq!(secret(&kubectl), before);
}
