//! etcd, which a test may kill and start again with its data.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use anyhow::Result;

use super::{ControlPlane, START};
use crate::{
    assets, port,
    process::{Process, command},
};

/// A running etcd. It ends when dropped.
#[derive(Debug)]
pub(super) struct Etcd {
    directory: PathBuf,
    pub(super) url: String,
    peers: String,
    process: Mutex<Option<Process>>,
}

impl Etcd {
    pub(super) fn start(directory: &Path) -> Result<Self> {
        let this = Self {
            directory: directory.to_owned(),
            url: format!("http://127.0.0.1:{}", port::free()?),
            peers: format!("http://127.0.0.1:{}", port::free()?),
            process: Mutex::default(),
        };
        this.restart()?;
        Ok(this)
    }

    /// Kills it, if it runs, and starts it with the data that it has written.
    fn restart(&self) -> Result<()> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        drop(process.take());
        let mut etcd = command(assets::path("etcd")?);
        // On other architectures, etcd 3.4 starts only with this variable.
        match std::env::consts::ARCH {
            "x86_64" => {}
            "aarch64" => drop(etcd.env("ETCD_UNSUPPORTED_ARCH", "arm64")),
            other => drop(etcd.env("ETCD_UNSUPPORTED_ARCH", other)),
        }
        etcd.arg("--data-dir").arg(self.directory.join("etcd"));
        let (url, peers) = (&self.url, &self.peers);
        for (flag, value) in [
            ("--listen-client-urls", url),
            ("--advertise-client-urls", url),
            ("--listen-peer-urls", peers),
            ("--initial-advertise-peer-urls", peers),
        ] {
            etcd.args([flag, value]);
        }
        etcd.arg("--initial-cluster")
            .arg(format!("default={peers}"));
        etcd.arg("--unsafe-no-fsync");
        let started = Process::start("etcd", &self.directory, etcd)?;
        started.wait_until("etcd to answer", START, || {
            crate::http::text(&format!("{url}/health")).map(Some)
        })?;
        *process = Some(started);
        Ok(())
    }
}

impl ControlPlane {
    /// Kills etcd and starts it again with its data. Meanwhile the API server cannot answer.
    ///
    /// # Errors
    /// When it does not come back, or the API server does not find it.
    pub fn restart_etcd(&self) -> Result<()> {
        if let Some(etcd) = &self.etcd {
            etcd.restart()?;
        }
        let api = self.api.lock().unwrap_or_else(PoisonError::into_inner);
        api.as_ref().map_or(Ok(()), |api| self.wait_for(api))
    }
}
