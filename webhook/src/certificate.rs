//! The webhook's certificate, which the API server trusts: from files, or issued by its own CA.

pub mod clients;
pub mod files;
pub mod pki;
pub mod registered;
