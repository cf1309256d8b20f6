//! The certificate that the API server meets: from files, or by an authority of our own.

pub mod clients;
pub mod files;
pub mod pki;
