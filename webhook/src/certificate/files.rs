//! The server certificate, from files that may change at any time.
//!
//! The kubelet updates a Secret volume by swapping a symlink, which a file watch
//! notices at most once. So the files are read again at regular intervals.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum_server::tls_rustls::RustlsConfig;
use nvlink_runtime::files;
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use super::clients::{Clients, server};
use crate::{certificate::pki, health::Readiness};

/// Why there is no certificate. The message contains the reason, so the reason is
/// not a `source`: printing the chain of errors would print it twice.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path}: {reason}")]
    Read { path: String, reason: io::Error },
    /// The files do not hold a certificate and its key.
    #[error("{cert} and {key} do not hold a certificate and its key: {reason}")]
    Parse {
        cert: String,
        key: String,
        reason: io::Error,
    },
    /// The CA file holds no valid certificate.
    #[error("{0}")]
    Authority(String),
}

/// The files of a certificate and its key, and their content in use.
#[derive(Clone, Debug)]
pub struct Certificate {
    cert: PathBuf,
    key: PathBuf,
    taken: (Vec<u8>, Vec<u8>),
    expiry: SystemTime,
    clients: Option<Arc<Clients>>,
    config: RustlsConfig,
}

impl Certificate {
    /// Reads the files. The server accepts only `clients`, if there are any.
    ///
    /// # Errors
    /// When they cannot be read, or do not match each other.
    pub async fn load(
        cert: PathBuf,
        key: PathBuf,
        clients: Option<Arc<Clients>>,
    ) -> Result<Self, TlsError> {
        let pair = (read(&cert).await?, read(&key).await?);
        let unfit = |reason| unfit(&cert, &key, reason);
        let config = server(&pair.0, &pair.1, clients.clone()).map_err(unfit)?;
        let config = RustlsConfig::from_config(config);
        let expiry = expiry(&pair.0).map_err(unfit)?;
        Ok(Self {
            cert,
            key,
            taken: pair,
            expiry,
            clients,
            config,
        })
    }

    /// Returns when the certificate in use expires.
    #[must_use]
    pub fn expiry(&self) -> SystemTime {
        self.expiry
    }

    /// Returns the server's TLS configuration, which follows the files.
    #[must_use]
    pub fn config(&self) -> RustlsConfig {
        self.config.clone()
    }

    /// Reads the files again, and uses their content if it is new and valid.
    /// Connections stay open. Returns whether the certificate changed.
    ///
    /// # Errors
    /// When they cannot be read or do not match each other: the certificate in
    /// use stays, and the next call retries.
    pub async fn reload(&mut self) -> Result<bool, TlsError> {
        let pair = (read(&self.cert).await?, read(&self.key).await?);
        if pair == self.taken {
            return Ok(false);
        }
        let unfit = |reason| unfit(&self.cert, &self.key, reason);
        let expiry = expiry(&pair.0).map_err(unfit)?;
        let config = server(&pair.0, &pair.1, self.clients.clone()).map_err(unfit)?;
        self.config.reload_from_config(config);
        self.expiry = expiry;
        self.taken = pair;
        Ok(true)
    }

    pub async fn follow(mut self, every: Duration, readiness: Readiness) {
        let mut tick = interval(every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            match self.reload().await {
                Ok(false) => {}
                Ok(true) => {
                    readiness.certificate_taken(self.expiry);
                    tracing::info!(cert = %self.cert.display(), "certificate reloaded");
                }
                Err(error) => {
                    readiness.certificate_kept();
                    tracing::warn!(%error, "cannot reload the certificate; keeping the one in use");
                }
            }
        }
    }
}

fn expiry(pem: &[u8]) -> io::Result<SystemTime> {
    pki::expiry("the file", pem).map_err(io::Error::other)
}

fn unfit(cert: &Path, key: &Path, reason: io::Error) -> TlsError {
    TlsError::Parse {
        cert: cert.display().to_string(),
        key: key.display().to_string(),
        reason,
    }
}

/// The file of a CA, and its last valid content.
#[derive(Clone, Debug)]
pub struct Authority {
    path: PathBuf,
    bundle: watch::Sender<String>,
}

impl Authority {
    /// Reads the file.
    ///
    /// # Errors
    /// When it cannot be read, or holds no certificate.
    pub async fn load(path: PathBuf) -> Result<Self, TlsError> {
        let bundle = watch::Sender::new(authority(&path).await?);
        Ok(Self { path, bundle })
    }

    /// Returns a receiver of the file's content, which follows the file.
    #[must_use]
    pub fn bundle(&self) -> watch::Receiver<String> {
        self.bundle.subscribe()
    }

    /// Reads the file again, forever.
    pub async fn follow(self, every: Duration) {
        loop {
            tokio::time::sleep(every).await;
            match authority(&self.path).await {
                Ok(bundle) => {
                    self.bundle.send_if_modified(|known| {
                        let new = *known != bundle;
                        if new {
                            *known = bundle;
                        }
                        new
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot reload the CA; keeping the registered one");
                }
            }
        }
    }
}

async fn authority(path: &Path) -> Result<String, TlsError> {
    let bytes = read(path).await?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match pki::expiry(&path.display().to_string(), text.as_bytes()) {
        Ok(_) => Ok(text),
        Err(error) => Err(TlsError::Authority(error.to_string())),
    }
}

pub(super) async fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let read = files::read_aside(path.to_owned()).await;
    read.map_err(|reason| TlsError::Read {
        path: path.display().to_string(),
        reason,
    })
}
