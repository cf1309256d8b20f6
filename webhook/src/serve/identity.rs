//! From the command line to a certificate in use, what keeps it so, and who is told of it.

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
        files::{Authority, Certificate},
        pki::{SecretName, own::OwnCertificate},
    },
    health::Readiness,
    registration::WebhookTarget,
    registration::registrar::Registrar,
};

/// What keeps the certificate fresh.
const UPKEEP: &str = "upkeep of the certificate";

/// A certificate in use.
pub(crate) struct Identity {
    /// What the server is configured with.
    pub(crate) config: RustlsConfig,
    /// Keeps the API server told of it; where it is to be told.
    pub(crate) registrar: Option<Registrar>,
}

/// The certificate that `args` ask for, which `supervisor` keeps fresh from now on.
///
/// # Errors
/// When there is none: a file cannot be read, a Secret cannot be made.
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
        let certificate = Certificate::load(cert, key, clients).await?;
        readiness.certificate_until(certificate.expiry());
        let config = certificate.config();
        let readiness = readiness.clone();
        supervisor.keep(UPKEEP, Weight::Vital, move || {
            certificate.clone().follow(every, readiness.clone())
        });
        let Some(target) = target else {
            return Ok(Identity {
                config,
                registrar: None,
            });
        };
        let path = args.ca_file.context(
            "--service and --url with --tls-cert need --ca-file: the CA that the API server is to trust",
        )?;
        let authority = Authority::load(path).await?;
        let bundle = authority.bundle();
        supervisor.keep("look at the file of the CA", Weight::Vital, move || {
            authority.clone().follow(every)
        });
        return Ok(Identity {
            config,
            registrar: Some(Registrar::new(client.clone(), target, exempt, bundle)),
        });
    }
    let (secret, target) = args
        .ca_secret
        .zip(target)
        .context("give --tls-cert and --tls-key, or --ca-secret and --service (or --url)")?;
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

/// Who may call, where that is not anybody.
async fn clients(
    file: Option<PathBuf>,
    every: Duration,
    supervisor: &Supervisor,
) -> anyhow::Result<Option<Arc<Clients>>> {
    let Some(file) = file else {
        tracing::info!(
            "whoever reaches the port may ask who may use which class: --client-ca-file, or a NetworkPolicy, leaves the API servers alone"
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
