//! A webhook that answers only API servers with a client certificate.
//!
//! It uses its own control plane, whose API server presents a certificate.

use std::{fs, path::Path, time::Duration};

use anyhow::Result;
use axum::http::Request;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use nvlink_tests::{
    ControlPlane, Webhook,
    certificates::{Authority, ServerFiles},
    controlplane::Options,
    wait_until, webhook, workdir,
};
use serde_json::json;

use crate::pods::{decision, gpu_pod};

const SOON: Duration = Duration::from_secs(60);

/// Returns the webhook's answer to a client that presents the certificate `shown`.
pub(crate) async fn ask(
    webhook: &Webhook,
    shown: Option<&ServerFiles>,
    review: &str,
) -> Result<String> {
    let user = match shown {
        Some(files) => json!({"client-certificate": files.certificate, "client-key": files.key}),
        None => json!({}),
    };
    let file = json!({
        "clusters": [{"name": "w", "cluster": {
            "server": webhook.url, "certificate-authority": webhook.authority
        }}],
        "users": [{"name": "w", "user": user}],
        "contexts": [{"name": "w", "context": {"cluster": "w", "user": "w"}}],
        "current-context": "w"
    });
    let file: Kubeconfig = serde_json::from_value(file)?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    let request = Request::post("/mutate").body(review.into())?;
    Ok(Client::try_from(config)?.request_text(request).await?)
}

fn mutated(cluster: &ControlPlane) -> Result<()> {
    let mut pod = gpu_pod("probe", 2);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "clients"});
    let create = ["create", "--dry-run=server", "-f", "-", "-o", "json"];
    let stored = cluster.kubectl().run_with(&create, &pod.to_string())?;
    let decision = decision(&serde_json::from_str(&stored)?);
    anyhow::ensure!(decision.is_some(), "{stored}");
    Ok(())
}

fn start(directory: &Path, shown: &ServerFiles) -> (ControlPlane, Webhook) {
    let cluster = ControlPlane::start_with(Options {
        shown: Some(shown),
        ..Options::default()
    })
    .unwrap();
    webhook::install_crds(cluster.kubectl()).unwrap();
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
        "metadata": {"name": "clients"}, "spec": {}
    });
    cluster.kubectl().create(&class).unwrap();
    let file = directory.join("clients.pem");
    let arguments = ["--client-ca-file", &file.to_string_lossy()];
    let arguments = [&arguments[..], &["--tls-poll-seconds", "1"]].concat();
    let webhook = Webhook::start_with(cluster.kubeconfig(), &arguments).unwrap();
    webhook.register(cluster.kubectl()).unwrap();
    (cluster, webhook)
}

#[test]
fn only_clients_with_a_certificate_are_answered() {
    let directory = workdir::fresh("clients").unwrap();
    let [own, other] = ["own", "other"].map(|name| Authority::new(name).unwrap());
    let shown = own.client("api-server", &directory).unwrap();
    let foreign = other.client("stranger", &directory).unwrap();
    let server = own.issue("server", &directory).unwrap();
    fs::write(directory.join("clients.pem"), &own.certificate).unwrap();
    let (cluster, webhook) = start(&directory, &shown);
    wait_until("the webhook to answer the API server", SOON, || {
        mutated(&cluster).map(Some)
    })
    .unwrap();

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let ask = |shown: Option<&ServerFiles>| runtime.block_on(ask(&webhook, shown, "{}"));
    assert!(ask(Some(&shown)).unwrap().contains("AdmissionReview"));
    // A server certificate does not identify a client.
    for shown in [None, Some(&foreign), Some(&server)] {
        ask(shown).unwrap_err();
    }

    // After the CA changes, clients with a certificate of the former CA need a new one.
    fs::write(directory.join("clients.pem"), &other.certificate).unwrap();
    wait_until("the other CA to be used", SOON, || {
        ask(Some(&foreign)).map(Some)
    })
    .unwrap();
    ask(Some(&shown)).unwrap_err();
    fs::write(directory.join("clients.pem"), "no certificate").unwrap();
    wait_until("the file to be refused", SOON, || {
        let log = webhook.replica.process.log();
        Ok(log.contains("cannot reload the client CA").then_some(()))
    })
    .unwrap();
    ask(Some(&foreign)).unwrap();
}
