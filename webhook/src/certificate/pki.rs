//! The certificate that the webhook presents to the API server, and the CA that signed it.
//!
//! The certificate comes from files (of cert-manager or an administrator;
//! [`crate::certificate::files`]), or from the webhook's own CA ([`own`]), which
//! all replicas share in a Secret. The controller creates and renews the CA ([`keeper`]). Each
//! replica that serves issues its own leaf certificates, which never leave its memory.

mod authority;
pub mod keeper;
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
    /// A key or a certificate cannot be created.
    #[error("cannot create a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// A PEM text holds no usable certificate.
    #[error("{what} holds no usable certificate: {reason}")]
    Parse {
        /// The origin of the text.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The Secret holds something else. The webhook does not change it.
    #[error(
        "Secret {name} does not hold the webhook's CA: {reason}; name another Secret with \
         --ca-secret, or delete this one and create it empty, and the webhook fills it: {}",
        name.create()
    )]
    Foreign {
        name: SecretName,
        /// What is missing or wrong.
        reason: String,
    },
    /// The Secret is missing, and the webhook may not create it.
    #[error(
        "Secret {name} is missing, and the webhook may not create it ({}); create it empty, and \
         the webhook fills it: {}",
        nvlink_runtime::client::reason(error),
        name.create()
    )]
    Missing {
        name: SecretName,
        error: Box<kube::Error>,
    },
    /// The Secret is empty, and this process does not fill it.
    #[error("Secret {0} is missing or empty: `nvlink-webhook controller` fills it")]
    Empty(SecretName),
    /// The namespace of the Secret does not exist.
    #[error("namespace {0} does not exist: kubectl create namespace {0}")]
    NoNamespace(String),
    /// The API server rejected the request or did not answer.
    #[error(
        "cannot {what} Secret {name}: {}",
        nvlink_runtime::client::reason(error)
    )]
    Api {
        /// `read`, `create` or `update`.
        what: &'static str,
        name: SecretName,
        error: Box<kube::Error>,
    },
}

/// Returns when the first certificate of `pem` expires.
///
/// # Errors
/// When there is none; the message names `what` as the origin of the text.
pub fn expiry(what: &str, pem: &[u8]) -> Result<SystemTime, PkiError> {
    validity(what, pem).map(|(_, end)| end)
}

/// Returns the start and the end of the validity of the first certificate of `pem`.
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

/// Returns the certificates of a PEM text, each unchanged.
pub(crate) fn certificates(bundle: &str) -> impl Iterator<Item = String> + '_ {
    const END: &str = "-----END CERTIFICATE-----";
    bundle
        .split_inclusive(END)
        .filter(|part| part.contains(END))
        .map(|part| format!("{}\n", part.trim_start()))
}

/// Returns the PEM text `first` with the certificates of `others` that it lacks.
pub(crate) fn joined<'a>(first: &str, others: impl IntoIterator<Item = &'a str>) -> String {
    let mut all: Vec<String> = certificates(first).collect();
    let known = all.len();
    for other in others.into_iter().flat_map(certificates) {
        if !all.contains(&other) {
            all.push(other);
        }
    }
    match all.split_off(known) {
        // Whatever else it has, such as comments, stays.
        new if new.is_empty() => first.to_owned(),
        new => format!("{}\n{}", first.trim_end(), new.concat()),
    }
}
