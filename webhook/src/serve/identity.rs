//! Sets up, from the flags, the certificate, its renewal and its registration.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use axum_server::tls_rustls::RustlsConfig;
use kube::Client;
use nvlink_runtime::supervise::{Supervisor, Weight};
use tokio::sync::watch;

use crate::{
    args::TlsArgs,
    certificate::{
        clients::Clients,
        files::{Certificate, Files},
        pki::{SecretName, own::OwnCertificate},
    },
    health::Readiness,
    registration::WebhookTarget,
    registration::registrar::Registrar,
};

/// The name of the part that renews the certificate.
const UPKEEP: &str = "upkeep of the certificate";

/// A certificate in use.
pub(crate) struct Identity {
    /// The server's TLS configuration.
    pub(crate) config: RustlsConfig,
    /// Maintains the registration, if `args` request one.
    pub(crate) registrar: Option<Registrar>,
}

/// Sets up the certificate that `args` request; `supervisor` renews it from now on.
///
/// # Errors
/// When a file cannot be read, or a Secret cannot be created.
pub(crate) async fn identity(
    args: TlsArgs,
    client: &Client,
    readiness: &Readiness,
    supervisor: &Supervisor,
) -> anyhow::Result<Identity> {
    let every = Duration::from_secs(args.tls_poll_seconds);
    let clients = clients(args.client_ca_file, every, supervisor).await?;
    let target = args.service.or(args.url);
    let exempt = args.exempt.exempt_namespaces;
    if let (Some(cert), Some(key)) = (args.tls_cert, args.tls_key) {
        let registered = target.map(|target| (target, exempt));
        let ca = registered.as_ref().and(args.ca_file);
        let files = Files { cert, key, ca };
        return of_files(
            client,
            files,
            registered,
            (every, clients),
            (readiness, supervisor),
        )
        .await;
    }
    let (secret, target) = args
        .ca_secret
        .zip(target)
        .context("set --tls-cert and --tls-key, or --ca-secret and --service (or --url)")?;
    let validity = Duration::from_secs(u64::from(args.certificate_days) * 24 * 3600);
    own(
        client,
        secret,
        (target, exempt),
        (every, validity),
        clients,
        (readiness, supervisor),
    )
    .await
}

/// Returns the CA that callers need a certificate of; none if anybody may call.
async fn clients(
    file: Option<PathBuf>,
    every: Duration,
    supervisor: &Supervisor,
) -> anyhow::Result<Option<Arc<Clients>>> {
    let Some(file) = file else {
        tracing::info!(
            "anybody who reaches the port can find out who may use which class: restrict callers to the API servers with --client-ca-file or a NetworkPolicy"
        );
        return Ok(None);
    };
    let clients = Clients::load(file).await?;
    let followed = Arc::clone(&clients);
    supervisor.keep("look at the CA of the clients", Weight::Vital, move || {
        Arc::clone(&followed).follow(every)
    });
    Ok(Some(clients))
}

async fn of_files(
    client: &Client,
    files: Files,
    registered: Option<(WebhookTarget, Vec<String>)>,
    (every, clients): (Duration, Option<Arc<Clients>>),
    (readiness, supervisor): (&Readiness, &Supervisor),
) -> anyhow::Result<Identity> {
    anyhow::ensure!(
        registered.is_none() || files.ca.is_some(),
        "--service and --url with --tls-cert need --ca-file: the CA that the API server must trust",
    );
    let certificate = Certificate::load(files, clients).await?;
    readiness.certificate_until(certificate.expiry());
    let config = certificate.config();
    let registrar = registered.map(|(target, exempt)| {
        Registrar::new(client.clone(), target, exempt, certificate.bundle())
    });
    let registered = registrar.as_ref().map(Registrar::registered);
    let readiness = readiness.clone();
    supervisor.keep(UPKEEP, Weight::Vital, move || {
        certificate
            .clone()
            .follow(every, registered.clone(), readiness.clone())
    });
    Ok(Identity { config, registrar })
}

async fn own(
    client: &Client,
    secret: SecretName,
    (target, exempt): (WebhookTarget, Vec<String>),
    (every, validity): (Duration, Duration),
    clients: Option<Arc<Clients>>,
    (readiness, supervisor): (&Readiness, &Supervisor),
) -> anyhow::Result<Identity> {
    let own = OwnCertificate::start(client.clone(), secret, target.names(), validity, clients);
    let own = own.await?;
    readiness.certificate_until(own.expiry());
    let bundle: watch::Receiver<String> = own.bundle();
    let config = own.config();
    let registrar = Registrar::new(client.clone(), target, exempt, bundle);
    let (registered, readiness) = (registrar.registered(), readiness.clone());
    supervisor.keep(UPKEEP, Weight::Vital, move || {
        own.clone()
            .follow(every, registered.clone(), readiness.clone())
    });
    Ok(Identity {
        config,
        registrar: Some(registrar),
    })
}
