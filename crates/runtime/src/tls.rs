//! The cryptography provider of TLS.

/// Installs ring for the whole process; a second call changes nothing. Call it
/// before anything uses TLS: rustls panics without a provider.
pub fn install_provider() {
    drop(rustls::crypto::ring::default_provider().install_default());
}
