//! `--web.config.file`: TLS, client certificates, passwords and response
//! headers, in the file format of Prometheus' exporter-toolkit, so that one
//! file serves all exporters of a node.
//!
//! `address` listens, `config` parses the file, `files` reads it and the files that it names,
//! `settings` is the resulting configuration, `tls` and `client` its TLS part,
//! `gate` and `rate` decide on requests, `listen` serves within bounds.

mod address;
mod client;
mod config;
mod files;
mod gate;
mod listen;
mod rate;
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
use tokio::{sync::Mutex, task::spawn_blocking, time::timeout};

pub use self::{
    address::{ListenError, address, listen},
    files::WebError,
    listen::Servers,
};
use self::{files::Files, gate::Gate, settings::Settings};
use crate::{
    connections::{CutOffs, Places},
    files::Follow,
    supervise::{Supervisor, Weight},
};

/// How often the file and the certificates are checked for changes. They are
/// compared by content, because a Secret volume swaps symlinks, which a file
/// watch notices once at most.
const LOOK: Duration = Duration::from_secs(5);
/// Time limit for reading the files at the start: a longer read is on a mount that hangs.
const FIRST: Duration = Duration::from_secs(30);

/// How requests are admitted. It follows its file while it runs.
#[derive(Debug)]
pub struct Web {
    path: Option<PathBuf>,
    files: Files,
    tls: Option<RustlsConfig>,
    http2: bool,
    gate: Arc<Gate>,
    places: Places,
}

impl Web {
    /// Returns a configuration with plain HTTP for everyone.
    #[must_use]
    pub fn open() -> Self {
        Self::new(None, Files::default(), Settings::default())
    }

    /// Loads the configuration from a file.
    ///
    /// # Errors
    /// When the file, or one that it names, cannot be read or used.
    pub fn load(path: &Path) -> Result<Self, WebError> {
        let files = Files::read(path)?;
        let settings = Settings::new(path, &files)?;
        Ok(Self::new(Some(path.to_owned()), files, settings))
    }

    /// Loads the configuration that `--web.config.file` names, within a time limit;
    /// without the flag, everyone is admitted.
    ///
    /// # Errors
    /// As [`Web::load`], and when reading takes too long.
    pub async fn of_flag(path: Option<PathBuf>) -> Result<Self, WebError> {
        let Some(path) = path else {
            return Ok(Self::open());
        };
        let name = path.display().to_string();
        let reading = spawn_blocking(move || Self::load(&path));
        match timeout(FIRST, reading).await {
            Ok(Ok(loaded)) => loaded,
            Ok(Err(panicked)) => Err(WebError::Read {
                path: name,
                reason: std::io::Error::other(panicked),
            }),
            Err(_) => Err(WebError::Slow {
                path: name,
                seconds: FIRST.as_secs(),
            }),
        }
    }

    fn new(path: Option<PathBuf>, files: Files, settings: Settings) -> Self {
        let tls = settings.tls.clone().map(RustlsConfig::from_config);
        Self {
            path,
            files,
            tls,
            http2: settings.http2,
            gate: Arc::new(Gate::new(ArcSwap::from_pointee(settings))),
            places: Places::new(listen::BOUNDS),
        }
    }

    /// Reports whether it serves HTTPS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns the numbers of clients that its servers have cut off.
    #[must_use]
    pub fn cut_offs(&self) -> CutOffs {
        self.places.cut_offs().clone()
    }

    /// Returns `router` behind the passwords, the rate limit and the headers of the file.
    pub fn protect(&self, router: Router) -> Router {
        let gate = Arc::clone(&self.gate);
        router.layer(middleware::from_fn_with_state(gate, gate::guard))
    }

    /// Reads the files again, and uses the configuration if it changed and is
    /// valid. Connections stay open. Returns whether a new configuration is used.
    ///
    /// # Errors
    /// When they cannot be read or used: the current configuration stays in use.
    pub fn reload(&mut self) -> Result<bool, WebError> {
        let Some(path) = &self.path else {
            return Ok(false);
        };
        let files = Files::read(path)?;
        self.take(files)
    }

    /// Uses the configuration in the files, if it changed and is valid.
    fn take(&mut self, files: Files) -> Result<bool, WebError> {
        let Some(path) = self.path.as_deref().filter(|_| files != self.files) else {
            return Ok(false);
        };
        let settings = Settings::new(path, &files)?;
        let refused = |reason: &str| Err(WebError::invalid(path, reason));
        if settings.tls.is_some() != self.is_tls() || settings.http2 != self.http2 {
            return refused("TLS and HTTP/2 can be switched on or off only by a restart");
        }
        if let Some(reason) = self.gate.settings.load().loses_in(&settings) {
            return refused(reason);
        }
        if let (Some(current), Some(new)) = (&self.tls, &settings.tls) {
            current.reload_from_config(Arc::clone(new));
        }
        self.gate.settings.store(Arc::new(settings));
        self.files = files;
        Ok(true)
    }

    /// Keeps the configuration up to date under `supervisor`. Without this, a
    /// certificate would expire unnoticed.
    pub fn keep(self, supervisor: &Supervisor) {
        let web = Arc::new(Mutex::new(self));
        supervisor.keep(
            "the watch of the web configuration",
            Weight::Vital,
            move || {
                let web = Arc::clone(&web);
                async move { web.lock().await.follow().await }
            },
        );
    }

    /// Reloads for ever.
    pub async fn follow(&mut self) {
        let Some(path) = self.path.clone() else {
            return std::future::pending().await;
        };
        let read = move || Files::read(&path).map_err(|error| error.to_string());
        let mut files = Follow::new(LOOK, read);
        loop {
            let read = files.changed().await;
            say(read.and_then(|files| self.take(files).map_err(|error| error.to_string())));
        }
    }
}

/// Logs the outcome of a reload.
fn say(taken: Result<bool, String>) {
    match taken {
        Ok(true) => tracing::info!("web configuration reloaded"),
        Ok(false) => {}
        Err(error) => {
            tracing::warn!(%error, "cannot reload the web configuration: keeping the old one");
        }
    }
}
