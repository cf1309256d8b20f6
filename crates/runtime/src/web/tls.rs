//! The TLS part of the web configuration, for rustls.

use std::{path::Path, sync::Arc};

use rustls::{
    Error, RootCertStore, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion,
    crypto::{CryptoProvider, SupportedKxGroup, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
    version::{TLS12, TLS13},
};

use super::{
    client::Clients,
    config::{ClientAuth, Tls, Version},
    files::Files,
};

/// Returns the configuration of the server, without its ALPN protocols.
///
/// # Errors
/// What is wrong, with the key in the file.
pub(super) fn server(config: &Tls, files: &Files) -> Result<ServerConfig, String> {
    let provider = Arc::new(provider(config)?);
    let certificates = certificates(pem("cert", &config.cert, &config.cert_file, files)?)
        .map_err(|why| format!("cert: {why}"))?;
    let key = pem("key", &config.key, &config.key_file, files)?;
    let key = private_key(key, &provider).map_err(|why| format!("key: {why}"))?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions(config)?)
        .map_err(|error| format!("cipher_suites: {error}"))?;
    let builder = match clients(config, files, provider)? {
        Some(clients) => builder.with_client_cert_verifier(clients),
        None => builder.with_no_client_auth(),
    };
    let server = builder.with_single_cert(certificates, key);
    let mut server = server.map_err(|error| match error {
        Error::InconsistentKeys(_) => "cert: it does not match the key".to_owned(),
        error => format!("cert: it cannot be used: {error}"),
    })?;
    server.ignore_client_order = config.prefer_server_cipher_suites.unwrap_or(true);
    Ok(server)
}

/// Returns the PEM text, which is inline or in a file.
fn pem<'a>(
    key: &str,
    inline: &'a Option<String>,
    file: &Option<impl AsRef<Path>>,
    files: &'a Files,
) -> Result<&'a [u8], String> {
    match (inline, file) {
        (Some(inline), None) => Ok(inline.as_bytes()),
        (None, Some(file)) => Ok(files.content(file.as_ref())),
        (None, None) => Err(format!("{key}_file: missing")),
        (Some(_), Some(_)) => Err(format!("{key}: set twice, here and in {key}_file")),
    }
}

/// Parses a private key, and checks that it can sign.
fn private_key(pem: &[u8], provider: &CryptoProvider) -> Result<PrivateKeyDer<'static>, String> {
    // PKCS#8 names the encryption in its label, the older formats in a header.
    let is_encrypted = pem.split(|&byte| byte == b'\n').any(|line| {
        line.starts_with(b"-----BEGIN ENCRYPTED") || line.starts_with(b"Proc-Type: 4,ENCRYPTED")
    });
    if is_encrypted {
        return Err(
            "it is encrypted, and there is no way to enter a passphrase; decrypt it with: \
             openssl pkey -in FILE -out DECRYPTED"
                .to_owned(),
        );
    }
    let key = PrivateKeyDer::from_pem_slice(pem)
        .map_err(|error| format!("not a private key in PEM format: {error}"))?;
    match provider.key_provider.load_private_key(key.clone_key()) {
        Ok(_) => Ok(key),
        Err(_) => Err(
            "this kind of key is not supported; supported are ECDSA with P-256 or P-384, Ed25519, \
             and RSA of 2048 to 4096 bits"
                .to_owned(),
        ),
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err("not a certificate in PEM format".to_owned()),
        Ok(all) => Ok(all),
        Err(error) => Err(format!("not a certificate in PEM format: {error}")),
    }
}

fn versions(config: &Tls) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let least = config.min_version.unwrap_or(Version::Tls12);
    let most = config.max_version.unwrap_or(Version::Tls13);
    for (key, version) in [("min_version", least), ("max_version", most)] {
        if version < Version::Tls12 {
            return Err(format!(
                "{key}: TLS 1.0 and 1.1 are broken and not supported; use TLS12 or TLS13"
            ));
        }
    }
    let all = [(Version::Tls12, &TLS12), (Version::Tls13, &TLS13)];
    let wanted = all
        .into_iter()
        .filter(|(one, _)| (least..=most).contains(one));
    let wanted: Vec<_> = wanted.map(|(_, version)| version).collect();
    match wanted.is_empty() {
        true => Err("max_version: it is below min_version".to_owned()),
        false => Ok(wanted),
    }
}

fn provider(config: &Tls) -> Result<CryptoProvider, String> {
    let mut provider = ring::default_provider();
    if !config.cipher_suites.is_empty() {
        // As in Go, the list applies to TLS 1.2: all suites of 1.3 are good.
        let (newest, older): (Vec<_>, Vec<_>) = provider
            .cipher_suites
            .into_iter()
            .partition(|suite| suite.tls13().is_some());
        let chosen = choose("cipher_suites", &config.cipher_suites, &older, suite_name)?;
        provider.cipher_suites = [newest, chosen].concat();
    }
    if !config.curve_preferences.is_empty() {
        let groups = &provider.kx_groups;
        provider.kx_groups = choose(
            "curve_preferences",
            &config.curve_preferences,
            groups,
            curve_name,
        )?;
    }
    Ok(provider)
}

fn choose<T: Copy>(
    key: &str,
    wanted: &[String],
    all: &[T],
    name: fn(&T) -> String,
) -> Result<Vec<T>, String> {
    let chosen = wanted.iter().map(|wanted| {
        let found = all.iter().find(|one| name(one) == *wanted);
        found.copied().ok_or_else(|| {
            let all: Vec<_> = all.iter().map(name).collect();
            format!(
                "{key}: {wanted:?} is not supported; supported are {}",
                all.join(", ")
            )
        })
    });
    chosen.collect()
}

fn suite_name(suite: &SupportedCipherSuite) -> String {
    format!("{:?}", suite.suite())
}

/// Returns the name of a curve, as in Go.
fn curve_name(group: &&'static dyn SupportedKxGroup) -> String {
    match format!("{:?}", group.name()).as_str() {
        "secp256r1" => "CurveP256".to_owned(),
        "secp384r1" => "CurveP384".to_owned(),
        other => other.to_owned(),
    }
}

fn clients(
    config: &Tls,
    files: &Files,
    provider: Arc<CryptoProvider>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, String> {
    let policy = config.client_auth_type.unwrap_or_default();
    let has_ca = config.client_ca.is_some() || config.client_ca_file.is_some();
    let (mandatory, verified) = match policy {
        ClientAuth::NoClientCert if has_ca => {
            return Err("client_ca_file: it has no effect without a client_auth_type".to_owned());
        }
        ClientAuth::NoClientCert => (false, false),
        ClientAuth::RequestClientCert => (false, false),
        ClientAuth::RequireAnyClientCert => (true, false),
        ClientAuth::VerifyClientCertIfGiven => (false, true),
        ClientAuth::RequireAndVerifyClientCert => (true, true),
    };
    if !mandatory && !config.client_allowed_sans.is_empty() {
        return Err("client_allowed_sans: needs client_auth_type RequireAnyClientCert or RequireAndVerifyClientCert, otherwise a client without a certificate would be admitted".to_owned());
    }
    if policy == ClientAuth::NoClientCert {
        return Ok(None);
    }
    let verifier = match verified {
        true => Some(verifier(config, files, Arc::clone(&provider))?),
        false => None,
    };
    let sans = &config.client_allowed_sans;
    let clients = Clients::new(verifier, mandatory, sans, provider)
        .map_err(|why| format!("client_allowed_sans: {why}"))?;
    Ok(Some(Arc::new(clients)))
}

fn verifier(
    config: &Tls,
    files: &Files,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let authorities = pem(
        "client_ca",
        &config.client_ca,
        &config.client_ca_file,
        files,
    )?;
    let mut roots = RootCertStore::empty();
    for authority in certificates(authorities).map_err(|why| format!("client_ca: {why}"))? {
        let added = roots.add(authority);
        added.map_err(|error| format!("client_ca: not a certificate authority: {error}"))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| format!("client_ca: {error}"))
}
