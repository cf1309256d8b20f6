//! Who may call: API servers that prove themselves by a certificate.

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

/// The authority whose certificates callers must have, from a file that is read
/// again and again. New connections meet what it held last.
#[derive(Debug)]
pub struct Clients {
    path: PathBuf,
    /// What the file held, and what follows from it.
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

    /// Reads the file again for ever.
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
                    tracing::info!(file = %self.path.display(), "CA of the clients reloaded");
                }
                Err(error) => {
                    tracing::warn!(%error, "keeping the CA of the clients that is in use")
                }
            }
        }
    }

    fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        let taken = self.taken.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&taken.1)
    }
}

/// What the file at `path` holds, unless it is what it held `before`.
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
    TlsError::Authority(format!(
        "{} is not a CA of clients: {reason}",
        path.display()
    ))
}

impl ClientCertVerifier for Clients {
    /// No hints: a client with one certificate shows it.
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

/// The configuration of a server that shows the certificate `cert` with its
/// `key`, both PEM; to `clients` alone, where there are any.
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
        // Who comes again is looked at again: the CA may be another.
        config.session_storage = Arc::new(NoServerSessionStorage {});
    }
    Ok(Arc::new(config))
}
