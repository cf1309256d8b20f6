//! Certificates from the webhook's own CA.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum_server::tls_rustls::RustlsConfig;
use rustls::ServerConfig;
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use super::{Leaf, PkiError, SecretName, Trust, keeper::Upkeep};
use crate::{
    certificate::{
        clients::{Clients, server},
        files::SETTLE,
        registered::Registered,
    },
    health::Readiness,
};

/// A certificate of the webhook's own CA, which is renewed in time.
#[derive(Clone)]
pub struct OwnCertificate {
    upkeep: Upkeep,
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
    /// Takes the CA from its Secret, and issues a certificate for `names`.
    /// The server accepts only `clients`, if there are any.
    ///
    /// # Errors
    /// When the Secret cannot be read or written, or holds something else.
    pub async fn start(
        upkeep: Upkeep,
        secret: SecretName,
        names: Vec<String>,
        validity: Duration,
        clients: Option<Arc<Clients>>,
    ) -> Result<Self, PkiError> {
        let now = SystemTime::now();
        let trust = upkeep.first(&secret, now).await?;
        let leaf = trust.signing.issue(&names, now, validity)?;
        let config = RustlsConfig::from_config(show(&leaf, clients.clone())?);
        let bundle = watch::Sender::new(trust.bundle.clone());
        Ok(Self {
            upkeep,
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

    /// Returns the server's TLS configuration, which follows the certificate.
    #[must_use]
    pub fn config(&self) -> RustlsConfig {
        self.config.clone()
    }

    /// Returns a receiver of the CAs that the API server must trust, which follows the Secret.
    #[must_use]
    pub fn bundle(&self) -> watch::Receiver<String> {
        self.bundle.subscribe()
    }

    /// Returns when the certificate in use expires.
    #[must_use]
    pub fn expiry(&self) -> SystemTime {
        self.leaf.expiry()
    }

    /// Checks the Secret and the clock, forever. `registered` tells which CAs the API server trusts.
    pub async fn follow(mut self, every: Duration, registered: Registered, readiness: Readiness) {
        let mut tick = interval(every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let now = SystemTime::now();
            let found = self.upkeep.look(&self.secret, &self.trust, now).await;
            let whole = found.is_ok();
            let renewed = match found {
                Ok(found) => self.take(found, now, &registered).await,
                Err(error) => {
                    tracing::warn!(%error, "continuing with the CA in memory");
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
                    tracing::warn!(%error, "cannot renew the certificate; keeping the one in use");
                }
            }
        }
    }

    /// Switches to the CA that the Secret holds; returns whether the certificate was renewed.
    async fn take(
        &mut self,
        found: Trust,
        now: SystemTime,
        registered: &Registered,
    ) -> Result<bool, PkiError> {
        if found.bundle != self.trust.bundle {
            self.bundle.send_replace(found.bundle.clone());
        }
        if found.signing == self.trust.signing {
            self.trust = found;
            return self.renew(now);
        }
        // Register the new CA first: the API server does not trust it yet. A later
        // call issues the certificate.
        if !registered.trusts(&found.bundle).await {
            return self.renew(now);
        }
        tokio::time::sleep(SETTLE).await;
        self.trust = found;
        self.issue(now).map(|()| true)
    }

    /// Issues a new certificate from the same CA if it is time, and returns whether it did.
    fn renew(&mut self, now: SystemTime) -> Result<bool, PkiError> {
        if !self.leaf.is_due(now) {
            return Ok(false);
        }
        self.issue(now).map(|()| true)
    }

    /// Issues a certificate. New connections use it; open ones continue.
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
        what: "the PEM of the new certificate".to_owned(),
        reason: error.to_string(),
    })
}
