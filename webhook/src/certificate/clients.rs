//! Client certificates: only API servers with a certificate of a given CA may call.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
    server::{
        NoServerSessionStorage, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};

use super::files::{TlsError, read};

/// The CA whose certificates callers must have, from a file that is read again
/// when it changes. New connections are checked against its latest valid content.
#[derive(Debug)]
pub struct Clients {
    path: PathBuf,
    /// The content of the file, and the verifier built from it.
    taken: RwLock<(Vec<u8>, Arc<dyn ClientCertVerifier>)>,
}

impl Clients {
    /// Reads the file.
    ///
    /// # Errors
    /// When it cannot be read, or holds no certificate.
    pub async fn load(path: PathBuf) -> Result<Arc<Self>, TlsError> {
        let taken = take(&path, None).await?;
        let taken = taken.ok_or_else(|| unfit(&path, "it is empty"))?;
        Ok(Arc::new(Self {
            path,
            taken: RwLock::new(taken),
        }))
    }

    /// Reads the file again, forever.
    pub async fn follow(self: Arc<Self>, every: Duration) {
        loop {
            tokio::time::sleep(every).await;
            let before = self
                .taken
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .0
                .clone();
            match take(&self.path, Some(&before)).await {
                Ok(None) => {}
                Ok(Some(taken)) => {
                    *self.taken.write().unwrap_or_else(PoisonError::into_inner) = taken;
                    tracing::info!(file = %self.path.display(), "reloaded the client CA");
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot reload the client CA; keeping the one in use")
                }
            }
        }
    }

    fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        let taken = self.taken.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&taken.1)
    }
}

/// Reads the file at `path`; none if its content is still `before`.
async fn take(
    path: &Path,
    before: Option<&[u8]>,
) -> Result<Option<(Vec<u8>, Arc<dyn ClientCertVerifier>)>, TlsError> {
    let pem = read(path).await?;
    if before == Some(pem.as_slice()) {
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| unfit(path, error))?;
        roots.add(certificate).map_err(|error| unfit(path, error))?;
    }
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
    let verifier = verifier.map_err(|error| unfit(path, error))?;
    Ok(Some((pem, verifier)))
}

fn unfit(path: &Path, reason: impl std::fmt::Display) -> TlsError {
    TlsError::Authority(format!("{} is not a client CA: {reason}", path.display()))
}

impl ClientCertVerifier for Clients {
    /// Returns no hints: a client with one certificate presents it anyway.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verifier().verify_client_cert(own, others, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier().verify_tls12_signature(message, own, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier().verify_tls13_signature(message, own, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier().supported_verify_schemes()
    }
}

/// Returns the configuration of a server that presents the certificate `cert`
/// with its `key`, both PEM, and accepts only `clients`, if there are any.
///
/// # Errors
/// When the two are not a certificate with its key.
pub(super) fn server(
    cert: &[u8],
    key: &[u8],
    clients: Option<Arc<Clients>>,
) -> io::Result<Arc<ServerConfig>> {
    let chain = CertificateDer::pem_slice_iter(cert).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(io::Error::other)?;
    let builder = ServerConfig::builder();
    let bound = clients.is_some();
    let builder = match clients {
        Some(clients) => builder.with_client_cert_verifier(clients),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(io::Error::other)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    if bound {
        // Verify clients on each connection: the CA may have changed.
        config.session_storage = Arc::new(NoServerSessionStorage {});
    }
    Ok(Arc::new(config))
}
