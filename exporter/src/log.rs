//! What is logged.

use nvlink_runtime::log::{self, Format};
use tracing_subscriber::EnvFilter;

use crate::args::LogFormat;

/// What is logged where nobody says. What the client of Kubernetes logs of its
/// own is told by who calls it, with what is lost and what to do about it.
const DEFAULT: &str = "info,kube=off,kube_client=off,kube_runtime=off";

/// Starts logging; `RUST_LOG` says what. Where it cannot be understood, what is
/// logged otherwise is, and that.
pub(crate) fn start(format: LogFormat) {
    let wanted = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let (filter, error) = match wanted.is_empty() {
        true => (EnvFilter::new(DEFAULT), None),
        false => match EnvFilter::try_new(&wanted) {
            Ok(filter) => (filter, None),
            Err(error) => (EnvFilter::new(DEFAULT), Some(error)),
        },
    };
    let format = match format {
        LogFormat::Text => Format::Text,
        LogFormat::Json => Format::Json,
    };
    log::start(filter, format, false);
    if let Some(error) = error {
        tracing::warn!(%error, "RUST_LOG={wanted:?} is not understood: logging info");
    }
}
