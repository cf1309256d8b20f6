//! The server certificate, from files that change under us.
//!
//! The kubelet updates a Secret volume by swapping a symlink, of which a
//! file watch hears once at most. So the content is read again and again.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use axum_server::tls_rustls::RustlsConfig;
use tokio::time::{MissedTickBehavior, interval};

use crate::metrics::Metrics;

/// Why there is no certificate. The reason stands in the message, so it is no
/// `source`: who prints the chain would print it twice.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path}: {reason}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        reason: io::Error,
    },
    /// The files hold no certificate with its key.
    #[error("{cert} and {key} are not a certificate with its key: {reason}")]
    Parse {
        /// The certificate's file.
        cert: String,
        /// The key's file.
        key: String,
        /// Why.
        reason: io::Error,
    },
}

/// The files of a certificate and its key, and what they held when last taken.
#[derive(Debug)]
pub struct Certificate {
    cert: PathBuf,
    key: PathBuf,
    taken: (Vec<u8>, Vec<u8>),
    config: RustlsConfig,
}

impl Certificate {
    /// Reads the files.
    ///
    /// # Errors
    /// When they cannot be read, or do not fit each other.
    pub async fn load(cert: PathBuf, key: PathBuf) -> Result<Self, TlsError> {
        let pair = (read(&cert).await?, read(&key).await?);
        let config = RustlsConfig::from_pem(pair.0.clone(), pair.1.clone()).await;
        let config = config.map_err(|reason| TlsError::Parse {
            cert: cert.display().to_string(),
            key: key.display().to_string(),
            reason,
        })?;
        Ok(Self {
            cert,
            key,
            taken: pair,
            config,
        })
    }

    /// What the server is configured with; follows the files.
    #[must_use]
    pub fn config(&self) -> RustlsConfig {
        self.config.clone()
    }

    /// Reads the files again, and takes what they hold if it is new and fits.
    /// Connections stay open. Returns whether something new was taken.
    ///
    /// # Errors
    /// When they cannot be read or do not fit each other: the certificate in
    /// use stays, and what was refused is tried again next time.
    pub async fn reload(&mut self) -> Result<bool, TlsError> {
        let pair = (read(&self.cert).await?, read(&self.key).await?);
        if pair == self.taken {
            return Ok(false);
        }
        let reloaded = self
            .config
            .reload_from_pem(pair.0.clone(), pair.1.clone())
            .await;
        reloaded.map_err(|reason| TlsError::Parse {
            cert: self.cert.display().to_string(),
            key: self.key.display().to_string(),
            reason,
        })?;
        self.taken = pair;
        Ok(true)
    }

    /// Reloads for ever.
    pub async fn follow(mut self, every: Duration, metrics: Arc<Metrics>) {
        let mut tick = interval(every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            match self.reload().await {
                Ok(false) => {}
                Ok(true) => {
                    metrics.certificate(true);
                    tracing::info!(cert = %self.cert.display(), "certificate reloaded");
                }
                Err(error) => {
                    metrics.certificate(false);
                    tracing::warn!(%error, "keeping the certificate in use");
                }
            }
        }
    }
}

async fn read(path: &PathBuf) -> Result<Vec<u8>, TlsError> {
    let read = tokio::fs::read(path).await;
    read.map_err(|reason| TlsError::Read {
        path: path.display().to_string(),
        reason,
    })
}
