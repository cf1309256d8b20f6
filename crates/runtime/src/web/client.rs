//! Decides by their certificates which clients may connect.

use std::{net::IpAddr, sync::Arc};

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use webpki::EndEntityCert;

/// The policies of Go's `crypto/tls`, and a list of allowed names.
#[derive(Debug)]
pub(super) struct Clients {
    /// Checks the chain; without it, any certificate is accepted.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    mandatory: bool,
    names: Vec<Name>,
    provider: Arc<CryptoProvider>,
}

#[derive(Debug)]
enum Name {
    Address(IpAddr),
    /// A DNS name or a URI.
    Text(String),
}

impl Clients {
    /// Returns the policy. If `names` is empty, any name is accepted.
    pub(super) fn new(
        verifier: Option<Arc<dyn ClientCertVerifier>>,
        mandatory: bool,
        names: &[String],
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let names = names.iter().map(|name| match name.parse() {
            Ok(address) => Ok(Name::Address(address)),
            Err(_) if name.contains('@') && !name.contains("://") => Err(format!(
                "{name:?}: e-mail addresses are not supported; use a DNS name, a URI or an IP address"
            )),
            Err(_) => Ok(Name::Text(name.clone())),
        });
        Ok(Self {
            verifier,
            mandatory,
            names: names.collect::<Result<_, _>>()?,
            provider,
        })
    }

    fn is_allowed(&self, certificate: &CertificateDer<'_>) -> Result<bool, Error> {
        if self.names.is_empty() {
            return Ok(true);
        }
        let bad = |_| Error::InvalidCertificate(CertificateError::BadEncoding);
        let certificate = EndEntityCert::try_from(certificate).map_err(bad)?;
        let has = |name: &Name| match name {
            Name::Address(address) => {
                let address = ServerName::IpAddress((*address).into());
                certificate
                    .verify_is_valid_for_subject_name(&address)
                    .is_ok()
            }
            // Names are compared literally: a wildcard in a certificate matches nothing.
            Name::Text(text) => {
                let mut there = certificate
                    .valid_dns_names()
                    .chain(certificate.valid_uri_names());
                there.any(|one| one == text)
            }
        };
        Ok(self.names.iter().any(has))
    }
}

impl ClientCertVerifier for Clients {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        let verifier = self.verifier.as_ref();
        verifier.map_or(&[], |verifier| verifier.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = match &self.verifier {
            Some(verifier) => verifier.verify_client_cert(end_entity, intermediates, now)?,
            None => ClientCertVerified::assertion(),
        };
        match self.is_allowed(end_entity)? {
            true => Ok(verified),
            false => Err(Error::InvalidCertificate(
                CertificateError::ApplicationVerificationFailure,
            )),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}
