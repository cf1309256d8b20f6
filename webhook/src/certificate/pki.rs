//! The certificate that the API server meets, and who signed it.
//!
//! Either from files (cert-manager, or an administrator; [`crate::certificate::files`]), or by
//! an authority of our own ([`own`]) that all replicas share in a Secret. Its
//! key is made by whichever replica is first; leaf certificates are made by
//! each replica for itself and never leave its memory.

mod authority;
pub mod own;
mod secret;

use std::time::SystemTime;

pub use self::{
    authority::{Authority, Leaf},
    secret::{SecretName, Trust},
};

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A key or a certificate cannot be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// A PEM text holds no certificate.
    #[error("{what} holds no certificate: {reason}")]
    Parse {
        /// Where the text is from.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The Secret holds something else. It is left as it is.
    #[error(
        "Secret {name} does not hold our authority: {reason}; delete it and a new one is made, \
         or name another with --ca-secret"
    )]
    Foreign {
        /// `NAMESPACE/NAME`.
        name: String,
        /// What is missing or wrong.
        reason: String,
    },
    /// There is nowhere to keep the Secret.
    #[error("namespace {0} does not exist: kubectl create namespace {0}")]
    NoNamespace(String),
    /// The API server refused or did not answer.
    #[error(
        "cannot {what} Secret {name}: {}",
        nvlink_runtime::client::reason(error)
    )]
    Api {
        /// `read`, `create` or `update`.
        what: &'static str,
        /// `NAMESPACE/NAME`.
        name: String,
        error: Box<kube::Error>,
    },
}

/// When the first certificate of `pem` ceases to be valid.
///
/// # Errors
/// When there is none; `what` says in the message where the text is from.
pub fn expiry(what: &str, pem: &[u8]) -> Result<SystemTime, PkiError> {
    validity(what, pem).map(|(_, end)| end)
}

/// From when to when the first certificate of `pem` is valid.
fn validity(what: &str, pem: &[u8]) -> Result<(SystemTime, SystemTime), PkiError> {
    let failed = |reason: String| PkiError::Parse {
        what: what.to_owned(),
        reason,
    };
    let (_, pem) =
        x509_parser::pem::parse_x509_pem(pem).map_err(|error| failed(error.to_string()))?;
    let certificate = pem
        .parse_x509()
        .map_err(|error| failed(error.to_string()))?;
    let validity = certificate.validity();
    let time = |at: x509_parser::time::ASN1Time| SystemTime::from(at.to_datetime());
    Ok((time(validity.not_before), time(validity.not_after)))
}
