//! `--web.config.file`: TLS, client certificates, passwords and response
//! headers, in the file format of Prometheus' exporter-toolkit, so that one
//! file serves all exporters of a node.
//!
//! `config` is the file as written, `settings` what follows from it, `tls` and
//! `client` its TLS part, `gate` decides on requests, `listen` serves, `pace`
//! ends connections whose clients do not read.

mod client;
mod config;
mod gate;
mod listen;
mod pace;
mod settings;
mod tls;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use axum::{Router, middleware};
use axum_server::tls_rustls::RustlsConfig;
use tokio::time::{MissedTickBehavior, interval};

pub use self::listen::Servers;
use self::{
    gate::Gate,
    settings::{Files, Settings},
};

/// How often the file and the certificates are looked at. By content: a Secret
/// volume swaps symlinks, of which a file watch hears once at most.
const LOOK: Duration = Duration::from_secs(5);

/// Why a web configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// A file cannot be read.
    #[error("{path}: {reason}")]
    Read {
        /// The file.
        path: String,
        /// Why; it stands in the message, so it is no `source`.
        reason: std::io::Error,
    },
    /// The configuration says what cannot be.
    #[error("{path}: {reason}")]
    Invalid {
        /// The configuration file.
        path: String,
        /// What, and where in it.
        reason: String,
    },
}

/// How requests are let in. Follows its file while it runs.
#[derive(Debug)]
pub struct Web {
    path: Option<PathBuf>,
    files: Files,
    tls: Option<RustlsConfig>,
    http2: bool,
    gate: Arc<Gate>,
}

impl Web {
    /// Plain HTTP for everyone.
    #[must_use]
    pub fn open() -> Self {
        Self::new(None, Files::default(), Settings::default())
    }

    /// As the file says.
    ///
    /// # Errors
    /// When the file, or one that it names, cannot be read or used.
    pub fn load(path: &Path) -> Result<Self, WebError> {
        let files = Files::read(path)?;
        let settings = Settings::new(path, &files)?;
        Ok(Self::new(Some(path.to_owned()), files, settings))
    }

    fn new(path: Option<PathBuf>, files: Files, settings: Settings) -> Self {
        let tls = settings.tls.clone().map(RustlsConfig::from_config);
        Self {
            path,
            files,
            tls,
            http2: settings.http2,
            gate: Arc::new(Gate::new(ArcSwap::from_pointee(settings))),
        }
    }

    /// Whether it serves HTTPS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// `router` behind the passwords, the rate limit and the headers of the file.
    pub fn protect(&self, router: Router) -> Router {
        let gate = Arc::clone(&self.gate);
        router.layer(middleware::from_fn_with_state(gate, gate::guard))
    }

    /// Reads the files again, and takes what they say if it is new and of use.
    /// Connections stay open. Returns whether something new was taken.
    ///
    /// # Errors
    /// When they cannot be read or used: what is in use stays.
    pub fn reload(&mut self) -> Result<bool, WebError> {
        let Some(path) = &self.path else {
            return Ok(false);
        };
        let files = Files::read(path)?;
        if files == self.files {
            return Ok(false);
        }
        let settings = Settings::new(path, &files)?;
        if settings.tls.is_some() != self.is_tls() || settings.http2 != self.http2 {
            return Err(WebError::Invalid {
                path: path.display().to_string(),
                reason: "TLS and HTTP/2 are switched on and off by a restart only".to_owned(),
            });
        }
        if let (Some(current), Some(new)) = (&self.tls, &settings.tls) {
            current.reload_from_config(Arc::clone(new));
        }
        self.gate.settings.store(Arc::new(settings));
        self.files = files;
        Ok(true)
    }

    /// Reloads for ever.
    pub async fn follow(mut self) {
        let mut tick = interval(LOOK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut said = None;
        loop {
            tick.tick().await;
            // A few small files: no thread is worth it.
            let error = match self.reload() {
                Ok(taken) => {
                    if taken {
                        tracing::info!("web configuration reloaded");
                    }
                    None
                }
                Err(error) => Some(error.to_string()),
            };
            // Once for each thing that is wrong, not every few seconds.
            if let Some(error) = error.as_ref().filter(|_| error != said) {
                tracing::warn!(%error, "keeping the web configuration in use");
            }
            said = error;
        }
    }
}
