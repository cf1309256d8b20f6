//! The implementation of cryptography behind TLS.

/// Installs ring for the whole process; a second call changes nothing. Before
/// anything that speaks TLS: rustls panics without.
pub fn install_provider() {
    drop(rustls::crypto::ring::default_provider().install_default());
}
