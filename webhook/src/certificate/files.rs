//! The server certificate, from files that may change at any time.
//!
//! The kubelet updates a Secret volume by swapping a symlink, which a file watch
//! notices at most once. So the files are read again at regular intervals.
//! The kubelets of two replicas do so at different times, so for some minutes two CAs may be
//! in use: each replica registers its own beside what the others have registered
//! ([`crate::registration::registrar`]).

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

use super::{
    clients::{Clients, server},
    registered::Registered,
};
use crate::{certificate::pki, health::Readiness};

/// Time for the API server to load a changed configuration before it is presented
/// with a certificate of the new CA.
pub(super) const SETTLE: Duration = Duration::from_secs(5);

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

/// The files of a certificate, of its key, and of the CA that signed it if that is to be registered.
#[derive(Clone, Debug)]
pub struct Files {
    pub cert: PathBuf,
    pub key: PathBuf,
    pub ca: Option<PathBuf>,
}

/// What the files hold.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Content {
    cert: Vec<u8>,
    key: Vec<u8>,
    /// Empty without a CA.
    ca: String,
}

impl Files {
    async fn read(&self) -> Result<Content, TlsError> {
        Ok(Content {
            cert: read(&self.cert).await?,
            key: read(&self.key).await?,
            ca: match &self.ca {
                Some(path) => authority(path).await?,
                None => String::new(),
            },
        })
    }

    fn unfit(&self, reason: io::Error) -> TlsError {
        TlsError::Parse {
            cert: self.cert.display().to_string(),
            key: self.key.display().to_string(),
            reason,
        }
    }
}

/// A certificate from files, and their content in use.
#[derive(Clone, Debug)]
pub struct Certificate {
    files: Files,
    taken: Content,
    expiry: SystemTime,
    clients: Option<Arc<Clients>>,
    config: RustlsConfig,
    bundle: watch::Sender<String>,
}

impl Certificate {
    /// Reads the files. The server accepts only `clients`, if there are any.
    ///
    /// # Errors
    /// When they cannot be read, or do not match each other.
    pub async fn load(files: Files, clients: Option<Arc<Clients>>) -> Result<Self, TlsError> {
        let taken = files.read().await?;
        let config = server(&taken.cert, &taken.key, clients.clone());
        let config = RustlsConfig::from_config(config.map_err(|reason| files.unfit(reason))?);
        let expiry = expiry(&taken.cert).map_err(|reason| files.unfit(reason))?;
        Ok(Self {
            bundle: watch::Sender::new(taken.ca.clone()),
            files,
            taken,
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

    /// Returns a receiver of the CAs that the API server must trust, which follows the files: that
    /// of the certificate in use, and before a change also the next one.
    #[must_use]
    pub fn bundle(&self) -> watch::Receiver<String> {
        self.bundle.subscribe()
    }

    /// Reads the files again, and uses their content if it is new and valid. A certificate that
    /// comes with another CA is used once that is `registered`.
    /// Connections stay open. Returns whether the certificate changed.
    ///
    /// # Errors
    /// When they cannot be read or do not match each other: the certificate in
    /// use stays, and the next call retries.
    pub async fn reload(&mut self, registered: Option<&Registered>) -> Result<bool, TlsError> {
        let found = self.files.read().await?;
        if found != self.taken && found != self.files.read().await? {
            // They are being replaced, perhaps one after the other.
            return Ok(false);
        }
        let unfit = |reason| self.files.unfit(reason);
        let expiry = expiry(&found.cert).map_err(unfit)?;
        let config = server(&found.cert, &found.key, self.clients.clone()).map_err(unfit)?;
        let bundle = pki::joined(&found.ca, [&*self.taken.ca]);
        self.publish(&bundle);
        // A new CA may come before its certificate: until then, the one in use needs its own.
        if found.cert == self.taken.cert {
            return Ok(false);
        }
        if let Some(registered) = registered.filter(|_| found.ca != self.taken.ca) {
            // The API server trusts no expired one either.
            let lives = SystemTime::now() < self.expiry;
            if lives && !registered.trusts(&bundle).await {
                return Ok(false);
            }
            tokio::time::sleep(SETTLE).await;
        }
        self.config.reload_from_config(config);
        self.expiry = expiry;
        self.publish(&found.ca);
        self.taken = found;
        Ok(true)
    }

    fn publish(&self, bundle: &str) {
        self.bundle.send_if_modified(|known| {
            let new = *known != bundle;
            if new {
                bundle.clone_into(known);
            }
            new
        });
    }

    /// Reads the files again, forever. `registered` tells which CAs the API server
    /// trusts, if flags say how it is registered.
    pub async fn follow(
        mut self,
        every: Duration,
        registered: Option<Registered>,
        readiness: Readiness,
    ) {
        let mut tick = interval(every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            match self.reload(registered.as_ref()).await {
                Ok(false) => {}
                Ok(true) => {
                    readiness.certificate_taken(self.expiry);
                    tracing::info!(cert = %self.files.cert.display(), "certificate reloaded");
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

/// Reads the file of a CA.
///
/// # Errors
/// When it cannot be read, or holds no certificate.
pub async fn authority(path: &Path) -> Result<String, TlsError> {
    let bytes = read(path).await?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match pki::expiry(&path.display().to_string(), text.as_bytes()) {
        Ok(_) => Ok(text),
        Err(error) => Err(TlsError::Authority(error.to_string())),
    }
}

/// Reads the file of a CA again, forever, and sends it when it has changed.
pub async fn follow_authority(path: PathBuf, every: Duration, bundle: watch::Sender<String>) {
    let mut tick = interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        match authority(&path).await {
            Ok(found) => drop(bundle.send_if_modified(|known| {
                let new = *known != found;
                *known = found;
                new
            })),
            Err(error) => tracing::warn!(%error, "cannot reload the CA; keeping the one in use"),
        }
    }
}

pub(super) async fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let read = files::read_aside(path.to_owned()).await;
    read.map_err(|reason| TlsError::Read {
        path: path.display().to_string(),
        reason,
    })
}
