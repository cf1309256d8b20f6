//! The web configuration file and the files that it names, as they lie on disk.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use nvlink_runtime::files;

use super::config::Config;

/// Why a web configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// A file cannot be read.
    #[error("{path}: {reason}")]
    Read {
        path: String,
        /// Why; it stands in the message, so it is no `source`.
        reason: io::Error,
    },
    /// The configuration says what cannot be.
    #[error("{path}: {reason}")]
    Invalid {
        path: String,
        /// What, and where in it.
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
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    pub(super) config: Vec<u8>,
    named: BTreeMap<PathBuf, Vec<u8>>,
}

impl Files {
    /// Reads them all. It takes as long as the disk does, which is for ever
    /// where a mount is dead.
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

    /// What a file holds, by its name in the configuration.
    pub(super) fn content(&self, file: &Path) -> &[u8] {
        self.named.get(file).map_or(&[], Vec::as_slice)
    }
}

/// Relative paths are relative to the configuration file.
fn beside(config: &Path, file: &Path) -> PathBuf {
    config.parent().unwrap_or(Path::new("")).join(file)
}

fn read(path: &Path) -> Result<Vec<u8>, WebError> {
    files::read(path).map_err(|reason| WebError::Read {
        path: path.display().to_string(),
        reason,
    })
}
