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
        pki::{keeper::Upkeep, own::OwnCertificate},
        registered::Registered,
    },
    health::Readiness,
    registration::{WebhookTarget, registrar::Registrar},
};

/// The name of the part that renews the certificate.
const UPKEEP: &str = "upkeep of the certificate";

/// A certificate in use.
pub(crate) struct Identity {
    /// The server's TLS configuration.
    pub(crate) config: RustlsConfig,
    /// Maintains the registration, if this process does.
    pub(crate) registrar: Option<Registrar>,
}

/// Sets up the certificate that `args` request; `supervisor` renews it from now on. With `alone`,
/// this process does what the controller does, too.
///
/// # Errors
/// When a file cannot be read, or a Secret cannot be created.
pub(crate) async fn identity(
    args: TlsArgs,
    alone: bool,
    client: &Client,
    readiness: &Readiness,
    supervisor: &Supervisor,
) -> anyhow::Result<Identity> {
    let every = Duration::from_secs(args.trust.tls_poll_seconds);
    let clients = clients(args.client_ca_file, every, supervisor).await?;
    let validity = Duration::from_secs(u64::from(args.certificate_days) * 24 * 3600);
    let trust = args.trust;
    let target = trust.service.or(trust.url);
    let exempt = trust.exempt.exempt_namespaces;
    let register = |target, bundle| match alone {
        true => Some(Registrar::new(client.clone(), target, exempt, bundle)),
        false => None,
    };
    let place = Place {
        client,
        every,
        readiness,
        supervisor,
    };
    if let (Some(cert), Some(key)) = (args.tls_cert, args.tls_key) {
        let ca = target.as_ref().and(trust.ca_file);
        let files = Files { cert, key, ca };
        return of_files(place, files, clients, target, register).await;
    }
    let (secret, target) = trust
        .ca_secret
        .zip(target)
        .context("set --tls-cert and --tls-key, or --ca-secret and --service (or --url)")?;
    let upkeep = match alone {
        true => Upkeep::Here(client.clone()),
        false => Upkeep::Elsewhere(client.clone()),
    };
    let own = OwnCertificate::start(upkeep, secret, target.names(), validity, clients).await?;
    own_certificate(place, own, target, register)
}

/// Where a certificate is used.
struct Place<'a> {
    client: &'a Client,
    every: Duration,
    readiness: &'a Readiness,
    supervisor: &'a Supervisor,
}

impl Place<'_> {
    /// Returns what tells whether the API server trusts a CA.
    fn registered(&self, registrar: Option<&Registrar>) -> Registered {
        match registrar {
            Some(registrar) => Registered::Here(registrar.registered()),
            None => Registered::Elsewhere(self.client.clone()),
        }
    }
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
    place: Place<'_>,
    files: Files,
    clients: Option<Arc<Clients>>,
    target: Option<WebhookTarget>,
    register: impl FnOnce(WebhookTarget, watch::Receiver<String>) -> Option<Registrar>,
) -> anyhow::Result<Identity> {
    anyhow::ensure!(
        target.is_none() || files.ca.is_some(),
        "--service and --url with --tls-cert need --ca-file: the CA that the API server must trust",
    );
    let certificate = Certificate::load(files, clients).await?;
    place.readiness.certificate_until(certificate.expiry());
    let config = certificate.config();
    // Without a target, somebody registers the webhook by hand.
    let by_hand = target.is_none();
    let registrar = target.and_then(|target| register(target, certificate.bundle()));
    let registered = (!by_hand).then(|| place.registered(registrar.as_ref()));
    let (every, readiness) = (place.every, place.readiness.clone());
    place.supervisor.keep(UPKEEP, Weight::Vital, move || {
        certificate
            .clone()
            .follow(every, registered.clone(), readiness.clone())
    });
    Ok(Identity { config, registrar })
}

fn own_certificate(
    place: Place<'_>,
    own: OwnCertificate,
    target: WebhookTarget,
    register: impl FnOnce(WebhookTarget, watch::Receiver<String>) -> Option<Registrar>,
) -> anyhow::Result<Identity> {
    place.readiness.certificate_until(own.expiry());
    let config = own.config();
    let registrar = register(target, own.bundle());
    let registered = place.registered(registrar.as_ref());
    let (every, readiness) = (place.every, place.readiness.clone());
    place.supervisor.keep(UPKEEP, Weight::Vital, move || {
        own.clone()
            .follow(every, registered.clone(), readiness.clone())
    });
    Ok(Identity { config, registrar })
}
