//! The webhook's own CA: creates itself, and issues leaf certificates. Pure except for randomness.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use super::{PkiError, validity};

/// How long a CA is valid: ten years. It is replaced after two thirds of them.
const VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// How long before its creation a certificate becomes valid, for clocks that are slow.
const SKEW: Duration = Duration::from_secs(3600);

/// A certificate authority with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// The CA certificate, PEM.
    pub certificate: String,
    /// The private key of the CA, PEM.
    pub key: String,
    lifetime: Lifetime,
}

/// A server certificate with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The certificate, PEM.
    pub certificate: String,
    /// The private key, PEM.
    pub key: String,
    lifetime: Lifetime,
}

/// The validity period of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lifetime {
    start: SystemTime,
    end: SystemTime,
}

impl Lifetime {
    fn of(now: SystemTime, validity: Duration) -> Self {
        // Certificates have a precision of whole seconds.
        let since = now.duration_since(SystemTime::UNIX_EPOCH);
        let seconds = Duration::from_secs(since.unwrap_or_default().as_secs());
        let now = SystemTime::UNIX_EPOCH + seconds;
        Self {
            start: now - SKEW.min(seconds),
            end: now + validity,
        }
    }

    /// Reports whether two thirds of it are over, or the clock is before its start.
    fn is_due(self, now: SystemTime) -> bool {
        let whole = self.end.duration_since(self.start).unwrap_or_default();
        now < self.start || now >= self.start + whole * 2 / 3
    }
}

fn params(
    name: &str,
    names: Vec<String>,
    lifetime: Lifetime,
) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = lifetime.start.into();
    params.not_after = lifetime.end.into();
    Ok(params)
}

impl Authority {
    /// Creates a CA that is valid for ten years from `now`.
    ///
    /// # Errors
    /// When the system provides no randomness.
    pub fn make(now: SystemTime) -> Result<Self, PkiError> {
        let lifetime = Lifetime::of(now, VALIDITY);
        let key = KeyPair::generate()?;
        let mut params = params("nvlink-webhook authority", Vec::new(), lifetime)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        Ok(Self {
            certificate: params.self_signed(&key)?.pem(),
            key: key.serialize_pem(),
            lifetime,
        })
    }

    /// Parses a CA from `certificate` and `key`, both PEM.
    ///
    /// # Errors
    /// When they are not a certificate and a key, do not match each other, or may
    /// not sign certificates.
    pub fn parse(certificate: &str, key: &str) -> Result<Self, PkiError> {
        let (start, end) = validity("tls.crt", certificate.as_bytes())?;
        let authority = Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            lifetime: Lifetime { start, end },
        };
        let pair = KeyPair::from_pem(key)?;
        let (_, pem) = x509_parser::pem::parse_x509_pem(certificate.as_bytes())
            .map_err(|error| authority.unfit(&error.to_string()))?;
        let parsed = pem
            .parse_x509()
            .map_err(|error| authority.unfit(&error.to_string()))?;
        let own = &parsed.tbs_certificate.subject_pki.subject_public_key.data;
        if own.as_ref() != pair.public_key_raw() {
            return Err(authority.unfit("the key in tls.key belongs to another certificate"));
        }
        // The key usage only restricts a certificate that has one.
        let usage = parsed.key_usage().ok().flatten();
        let signs = usage.is_none_or(|usage| usage.value.key_cert_sign());
        match parsed.is_ca() && signs {
            true => Ok(authority),
            false => Err(authority.unfit(
                "it is not a CA certificate: the API server would not accept certificates that it signs",
            )),
        }
    }

    fn unfit(&self, reason: &str) -> PkiError {
        PkiError::Parse {
            what: "tls.crt".to_owned(),
            reason: reason.to_owned(),
        }
    }

    /// Reports whether it is time to replace the CA.
    #[must_use]
    pub fn is_due(&self, now: SystemTime) -> bool {
        self.lifetime.is_due(now)
    }

    /// Reports whether the CA is valid at `now`.
    #[must_use]
    pub fn is_valid(&self, now: SystemTime) -> bool {
        (self.lifetime.start..self.lifetime.end).contains(&now)
    }

    /// Issues a certificate for a server with `names`, valid for `validity` from `now`.
    ///
    /// # Errors
    /// When a name is not a DNS name or address, or the system provides no randomness.
    pub fn issue(
        &self,
        names: &[String],
        now: SystemTime,
        validity: Duration,
    ) -> Result<Leaf, PkiError> {
        let issuer = Issuer::from_ca_cert_pem(&self.certificate, KeyPair::from_pem(&self.key)?)?;
        let lifetime = Lifetime::of(now, validity);
        let key = KeyPair::generate()?;
        let mut params = params("nvlink-webhook", names.to_vec(), lifetime)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        Ok(Leaf {
            certificate: params.signed_by(&key, &issuer)?.pem(),
            key: key.serialize_pem(),
            lifetime,
        })
    }
}

impl Leaf {
    /// Returns when the certificate expires.
    #[must_use]
    pub fn expiry(&self) -> SystemTime {
        self.lifetime.end
    }

    /// Reports whether it is time to renew the certificate.
    #[must_use]
    pub fn is_due(&self, now: SystemTime) -> bool {
        self.lifetime.is_due(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    #[test]
    fn a_created_ca_parses_as_the_same() {
        let now = SystemTime::now();
        let made = Authority::make(now).unwrap();
        assert_eq!(
            Authority::parse(&made.certificate, &made.key).unwrap(),
            made
        );
        let other = Authority::make(now).unwrap();
        let error = Authority::parse(&made.certificate, &other.key).unwrap_err();
        assert!(error.to_string().contains("another certificate"), "{error}");
        assert!(Authority::parse("", &made.key).is_err());
        let leaf = made.issue(&["x".to_owned()], now, VALIDITY).unwrap();
        let error = Authority::parse(&leaf.certificate, &leaf.key).unwrap_err();
        assert!(error.to_string().contains("not a CA"), "{error}");
        assert!(Authority::parse(&made.certificate, "").is_err());
    }

    #[test]
    fn a_leaf_is_for_its_names_and_its_time() {
        let now = SystemTime::now();
        let names = ["hook.nvlink.svc".to_owned(), "127.0.0.1".to_owned()];
        let leaf = Authority::make(now)
            .unwrap()
            .issue(&names, now, 90 * DAY)
            .unwrap();
        let end = super::super::expiry("leaf", leaf.certificate.as_bytes()).unwrap();
        assert_eq!(end, leaf.expiry());
        let left = end.duration_since(now).unwrap();
        assert!(left <= 90 * DAY && left > 89 * DAY);
        assert!(!leaf.is_due(now) && !leaf.is_due(now + 59 * DAY));
        assert!(leaf.is_due(now + 60 * DAY));
        // The clock was a year fast when the leaf was issued.
        assert!(leaf.is_due(now - 365 * DAY));
    }
}
