//! A certificate authority for one run, and server certificates for loopback.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A certificate authority for the time of one run.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The authority's certificate, PEM.
    pub certificate: String,
}

/// The files with which a server or a client authenticates itself.
#[derive(Clone, Debug)]
pub struct ServerFiles {
    /// Certificate, PEM.
    pub certificate: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
}

impl Authority {
    /// Creates an authority called `name`.
    ///
    /// # Errors
    /// When the key or the certificate cannot be made.
    pub fn new(name: &str) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            certificate,
        })
    }

    /// Writes `NAME.pem` and `NAME.key` for a server on loopback into `directory`.
    ///
    /// # Errors
    /// When the certificate cannot be made or written.
    pub fn issue(&self, name: &str, directory: &Path) -> Result<ServerFiles> {
        self.issue_for(name, &[], directory)
    }

    /// Does the same with a certificate that expires at `end`.
    ///
    /// # Errors
    /// As [`Authority::issue`].
    pub fn issue_until(
        &self,
        name: &str,
        directory: &Path,
        end: SystemTime,
    ) -> Result<ServerFiles> {
        let usage = ExtendedKeyUsagePurpose::ServerAuth;
        self.write(name, &[], (usage, Some(end)), directory)
    }

    /// Writes `NAME.pem` and `NAME.key` for a server on loopback that has further `addresses`,
    /// names or IP addresses, into `directory`.
    ///
    /// # Errors
    /// When the certificate cannot be made or written.
    pub fn issue_for(
        &self,
        name: &str,
        addresses: &[&str],
        directory: &Path,
    ) -> Result<ServerFiles> {
        let usage = ExtendedKeyUsagePurpose::ServerAuth;
        self.write(name, addresses, (usage, None), directory)
    }

    /// Writes `NAME.pem` and `NAME.key` for a client into `directory`.
    ///
    /// # Errors
    /// When the certificate cannot be made or written.
    pub fn client(&self, name: &str, directory: &Path) -> Result<ServerFiles> {
        let usage = ExtendedKeyUsagePurpose::ClientAuth;
        self.write(name, &[], (usage, None), directory)
    }

    fn write(
        &self,
        name: &str,
        addresses: &[&str],
        (usage, end): (ExtendedKeyUsagePurpose, Option<SystemTime>),
        directory: &Path,
    ) -> Result<ServerFiles> {
        let key = KeyPair::generate()?;
        let names = [&["127.0.0.1", "localhost"], addresses].concat();
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![usage];
        if let Some(end) = end {
            params.not_after = end.into();
        }
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        let files = ServerFiles {
            certificate: directory.join(format!("{name}.pem")),
            key: directory.join(format!("{name}.key")),
        };
        write(&files.certificate, &certificate)?;
        write(&files.key, &key.serialize_pem())?;
        Ok(files)
    }
}

/// Writes a key pair that signs service account tokens: `NAME.key` and `NAME.pub`.
///
/// # Errors
/// When it cannot be made or written.
pub fn signing_keys(name: &str, directory: &Path) -> Result<(PathBuf, PathBuf)> {
    let pair = KeyPair::generate()?;
    let (private, public) = (
        directory.join(format!("{name}.key")),
        directory.join(format!("{name}.pub")),
    );
    write(&private, &pair.serialize_pem())?;
    write(&public, &pair.public_key_pem())?;
    Ok((private, public))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
