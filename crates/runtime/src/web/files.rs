//! The web configuration file and the files that it names, as they are on disk.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use crate::files;

use super::config::Config;

/// Why a web configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// A file cannot be read.
    #[error("{path}: {reason}")]
    Read {
        path: String,
        /// Why; it is part of the message, so it is not a `source`.
        reason: io::Error,
    },
    /// Reading takes too long: the file is on a mount that hangs.
    #[error("reading {path} takes more than {seconds} s")]
    Slow { path: String, seconds: u64 },
    /// The configuration is invalid.
    #[error("{path}: {reason}")]
    Invalid {
        path: String,
        /// What is wrong, and where in the file.
        reason: String,
    },
}

impl WebError {
    pub(super) fn invalid(path: &Path, reason: impl Into<String>) -> Self {
        let (path, reason) = (path.display().to_string(), reason.into());
        Self::Invalid { path, reason }
    }
}

/// The content of the configuration file and of the files that it names, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    pub(super) config: Vec<u8>,
    named: BTreeMap<PathBuf, Vec<u8>>,
}

impl Files {
    /// Reads all files. On a mount that hangs, this never returns.
    pub(super) fn read(path: &Path) -> Result<Self, WebError> {
        let config = read(path)?;
        let parsed = Config::parse(&config).map_err(|reason| WebError::invalid(path, reason))?;
        let tls = parsed.tls_server_config.unwrap_or_default();
        let named = [
            ("cert_file", tls.cert_file),
            ("key_file", tls.key_file),
            ("client_ca_file", tls.client_ca_file),
        ];
        let named = named
            .into_iter()
            .filter_map(|(key, file)| Some((key, file?)));
        let named = named.map(|(key, file)| {
            let content = read(&beside(path, &file)).map_err(|error| {
                WebError::invalid(path, format!("tls_server_config.{key}: {error}"))
            })?;
            Ok((file, content))
        });
        let named = named.collect::<Result<_, WebError>>()?;
        Ok(Self { config, named })
    }

    /// Returns the content of a file, by its name in the configuration.
    pub(super) fn content(&self, file: &Path) -> &[u8] {
        self.named.get(file).map_or(&[], Vec::as_slice)
    }
}

/// Resolves a path, which may be relative to the configuration file.
fn beside(config: &Path, file: &Path) -> PathBuf {
    config.parent().unwrap_or(Path::new("")).join(file)
}

fn read(path: &Path) -> Result<Vec<u8>, WebError> {
    files::read(path).map_err(|reason| WebError::Read {
        path: path.display().to_string(),
        reason,
    })
}
