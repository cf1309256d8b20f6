//! Certificates by our own authority.

use std::time::{Duration, SystemTime};

use axum_server::tls_rustls::RustlsConfig;
use kube::Client;
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use super::{Leaf, PkiError, SecretName, Trust, secret};
use crate::health::Readiness;

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
    config: RustlsConfig,
    bundle: watch::Sender<String>,
}

impl OwnCertificate {
    /// Takes the authority from its Secret, or makes it, and a certificate for `names`.
    ///
    /// # Errors
    /// When the Secret cannot be read or made, or holds something else.
    pub async fn start(
        client: Client,
        secret: SecretName,
        names: Vec<String>,
        validity: Duration,
    ) -> Result<Self, PkiError> {
        let now = SystemTime::now();
        let trust = secret::ensure(&client, &secret, None, now).await?;
        let leaf = trust.signing.issue(&names, now, validity)?;
        let config = RustlsConfig::from_pem(pem(&leaf.certificate), pem(&leaf.key));
        let config = config.await.map_err(unfit)?;
        let bundle = watch::Sender::new(trust.bundle.clone());
        Ok(Self {
            client,
            secret,
            names,
            validity,
            trust,
            leaf,
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
                    self.renew(now).await
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
            return self.renew(now).await;
        }
        // What the API server does not trust yet is not shown to it: it is told
        // first, and the certificate follows at a later look.
        if *registered.borrow() != found.bundle {
            return self.renew(now).await;
        }
        tokio::time::sleep(SETTLE).await;
        self.trust = found;
        self.issue(now).await.map(|()| true)
    }

    /// A new certificate by the same authority, where it is time.
    async fn renew(&mut self, now: SystemTime) -> Result<bool, PkiError> {
        if !self.leaf.is_due(now) {
            return Ok(false);
        }
        self.issue(now).await.map(|()| true)
    }

    /// New connections meet the new certificate; open ones stay.
    async fn issue(&mut self, now: SystemTime) -> Result<(), PkiError> {
        self.leaf = self.trust.signing.issue(&self.names, now, self.validity)?;
        let shown = self
            .config
            .reload_from_pem(pem(&self.leaf.certificate), pem(&self.leaf.key));
        shown.await.map_err(unfit)
    }
}

fn pem(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn unfit(error: std::io::Error) -> PkiError {
    PkiError::Parse {
        what: "the certificate that was just made".to_owned(),
        reason: error.to_string(),
    }
}
