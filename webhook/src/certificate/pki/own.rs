//! Certificates by our own authority.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum_server::tls_rustls::RustlsConfig;
use kube::Client;
use rustls::ServerConfig;
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use super::{Leaf, PkiError, SecretName, Trust, secret};
use crate::{
    certificate::clients::{Clients, server},
    health::Readiness,
};

/// What the API server gets to hear of a changed configuration before a
/// certificate of the new authority is shown to it.
const SETTLE: Duration = Duration::from_secs(5);

/// A certificate of our own authority, renewed for ever.
#[derive(Clone)]
pub struct OwnCertificate {
    client: Client,
    secret: SecretName,
    names: Vec<String>,
    validity: Duration,
    trust: Trust,
    leaf: Leaf,
    clients: Option<Arc<Clients>>,
    config: RustlsConfig,
    bundle: watch::Sender<String>,
}

impl OwnCertificate {
    /// Takes the authority from its Secret, or makes it, and a certificate for `names`,
    /// which is for `clients` alone, where there are any.
    ///
    /// # Errors
    /// When the Secret cannot be read or made, or holds something else.
    pub async fn start(
        client: Client,
        secret: SecretName,
        names: Vec<String>,
        validity: Duration,
        clients: Option<Arc<Clients>>,
    ) -> Result<Self, PkiError> {
        let now = SystemTime::now();
        let trust = secret::ensure(&client, &secret, None, now).await?;
        let leaf = trust.signing.issue(&names, now, validity)?;
        let config = RustlsConfig::from_config(show(&leaf, clients.clone())?);
        let bundle = watch::Sender::new(trust.bundle.clone());
        Ok(Self {
            client,
            secret,
            names,
            validity,
            trust,
            leaf,
            clients,
            config,
            bundle,
        })
    }

    /// What the server is configured with; follows the certificate.
    #[must_use]
    pub fn config(&self) -> RustlsConfig {
        self.config.clone()
    }

    /// The authorities that the API server is to trust; follows the Secret.
    #[must_use]
    pub fn bundle(&self) -> watch::Receiver<String> {
        self.bundle.subscribe()
    }

    /// When the certificate in use ceases to be valid.
    #[must_use]
    pub fn expiry(&self) -> SystemTime {
        self.leaf.expiry()
    }

    /// Looks at the Secret and at the clock for ever. `registered` is the
    /// bundle that the API server was told last.
    pub async fn follow(
        mut self,
        every: Duration,
        registered: watch::Receiver<String>,
        readiness: Readiness,
    ) {
        let mut tick = interval(every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let now = SystemTime::now();
            let found = secret::ensure(&self.client, &self.secret, Some(&self.trust), now).await;
            let whole = found.is_ok();
            let renewed = match found {
                Ok(found) => self.take(found, now, &registered).await,
                Err(error) => {
                    tracing::warn!(%error, "going on with the authority in memory");
                    self.renew(now)
                }
            };
            match renewed {
                Ok(true) => {
                    readiness.certificate_taken(self.leaf.expiry());
                    tracing::info!("certificate renewed");
                }
                Ok(false) if whole => {}
                Ok(false) => readiness.certificate_kept(),
                Err(error) => {
                    readiness.certificate_kept();
                    tracing::warn!(%error, "keeping the certificate in use");
                }
            }
        }
    }

    /// Takes what the Secret holds. Whether the certificate was renewed.
    async fn take(
        &mut self,
        found: Trust,
        now: SystemTime,
        registered: &watch::Receiver<String>,
    ) -> Result<bool, PkiError> {
        if found.bundle != self.trust.bundle {
            self.bundle.send_replace(found.bundle.clone());
        }
        if found.signing == self.trust.signing {
            self.trust = found;
            return self.renew(now);
        }
        // What the API server does not trust yet is not shown to it: it is told
        // first, and the certificate follows at a later look.
        if *registered.borrow() != found.bundle {
            return self.renew(now);
        }
        tokio::time::sleep(SETTLE).await;
        self.trust = found;
        self.issue(now).map(|()| true)
    }

    /// A new certificate by the same authority, where it is time.
    fn renew(&mut self, now: SystemTime) -> Result<bool, PkiError> {
        if !self.leaf.is_due(now) {
            return Ok(false);
        }
        self.issue(now).map(|()| true)
    }

    /// New connections meet the new certificate; open ones stay.
    fn issue(&mut self, now: SystemTime) -> Result<(), PkiError> {
        self.leaf = self.trust.signing.issue(&self.names, now, self.validity)?;
        let config = show(&self.leaf, self.clients.clone())?;
        self.config.reload_from_config(config);
        Ok(())
    }
}

fn show(leaf: &Leaf, clients: Option<Arc<Clients>>) -> Result<Arc<ServerConfig>, PkiError> {
    let config = server(leaf.certificate.as_bytes(), leaf.key.as_bytes(), clients);
    config.map_err(|error| PkiError::Parse {
        what: "the certificate that was just made".to_owned(),
        reason: error.to_string(),
    })
}
