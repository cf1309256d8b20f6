//! From the command line to a certificate in use, what keeps it so, and who is told of it.

use std::{future::Future, pin::Pin, time::Duration};

use anyhow::Context;
use axum_server::tls_rustls::RustlsConfig;
use kube::Client;
use tokio::sync::watch;

use crate::{
    args::TlsArgs,
    certificate::{
        files::{self, Certificate},
        pki::{SecretName, own::OwnCertificate},
    },
    health::Readiness,
    registration::WebhookTarget,
    registration::registrar::Registrar,
};

type Upkeep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A certificate in use.
pub(crate) struct Identity {
    /// What the server is configured with.
    pub(crate) config: RustlsConfig,
    /// Keeps the certificate fresh; never ends.
    pub(crate) upkeep: Upkeep,
    /// Keeps the API server told of it; where it is to be told.
    pub(crate) registrar: Option<Registrar>,
}

/// The certificate that `args` ask for.
///
/// # Errors
/// When there is none: a file cannot be read, a Secret cannot be made.
pub(crate) async fn identity(
    args: TlsArgs,
    client: &Client,
    readiness: &Readiness,
) -> anyhow::Result<Identity> {
    let every = Duration::from_secs(args.tls_poll_seconds);
    let target = args.service.or(args.url);
    let exempt = args.exempt.exempt_namespaces;
    if let (Some(cert), Some(key)) = (args.tls_cert, args.tls_key) {
        let certificate = Certificate::load(cert, key).await?;
        readiness.certificate_until(certificate.expiry());
        let config = certificate.config();
        let following = certificate.follow(every, readiness.clone());
        let Some(target) = target else {
            let upkeep = Box::pin(following);
            return Ok(Identity {
                config,
                upkeep,
                registrar: None,
            });
        };
        let path = args.ca_file.context(
            "--service and --url with --tls-cert need --ca-file: the CA that the API server is to trust",
        )?;
        let (bundle, authority) = files::follow_authority(path, every).await?;
        return Ok(Identity {
            config,
            upkeep: Box::pin(async {
                tokio::join!(following, authority);
            }),
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
        readiness,
    )
    .await
}

async fn own(
    client: &Client,
    secret: SecretName,
    (target, exempt): (WebhookTarget, Vec<String>),
    (every, validity): (Duration, Duration),
    readiness: &Readiness,
) -> anyhow::Result<Identity> {
    let own = OwnCertificate::start(client.clone(), secret, target.names(), validity).await?;
    readiness.certificate_until(own.expiry());
    let bundle: watch::Receiver<String> = own.bundle();
    let config = own.config();
    let registrar = Registrar::new(client.clone(), target, exempt, bundle);
    let upkeep = own.follow(every, registrar.registered(), readiness.clone());
    Ok(Identity {
        config,
        upkeep: Box::pin(upkeep),
        registrar: Some(registrar),
    })
}
