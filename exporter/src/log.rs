//! The log.

use nvlink_runtime::log::{self, Format};
use tracing_subscriber::EnvFilter;

use crate::args::LogFormat;

/// The default filter. It drops the lines of the Kubernetes client: its callers
/// log each error themselves, with the consequence and the remedy.
const DEFAULT: &str = "info,kube=off,kube_client=off,kube_runtime=off";

/// Starts logging with the filter of `RUST_LOG`. If it is invalid, the default
/// filter is used and a warning is logged.
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
        tracing::warn!(%error, "RUST_LOG={wanted:?} is invalid: logging info");
    }
}
