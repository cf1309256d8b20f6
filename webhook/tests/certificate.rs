//! The certificate follows its files the way the kubelet changes them.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    net::TcpStream,
    os::unix::fs::symlink,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{Router, routing::get};
use axum_server::Handle;
use nvlink_webhook::{metrics::Metrics, server::Readiness, tls::Certificate};
use rustls::{ClientConfig, ClientConnection, StreamOwned, pki_types::CertificateDer};

struct Pair {
    cert: String,
    key: String,
    der: CertificateDer<'static>,
}

fn pair() -> Pair {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    Pair {
        cert: made.cert.pem(),
        key: made.signing_key.serialize_pem(),
        der: made.cert.der().clone(),
    }
}

/// Writes a Secret volume's new content: a new directory, then the symlink
/// `..data` is swapped by a rename. The files' own symlinks stay.
fn write(volume: &Path, version: &str, cert: &str, key: &str) {
    let directory = volume.join(version);
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("tls.crt"), cert).unwrap();
    fs::write(directory.join("tls.key"), key).unwrap();
    symlink(version, volume.join("..data_tmp")).unwrap();
    fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
    for name in ["tls.crt", "tls.key"] {
        let _ = symlink(format!("..data/{name}"), volume.join(name));
    }
}

/// The certificate that the server shows.
fn shown(port: u16) -> CertificateDer<'static> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trusting))
        .with_no_client_auth();
    let connection =
        ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(("127.0.0.1", port)).unwrap());
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).unwrap();
    }
    stream.conn.peer_certificates().unwrap()[0]
        .clone()
        .into_owned()
}

#[derive(Debug)]
struct Trusting;

impl rustls::client::danger::ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

async fn eventually(port: u16, expected: &Pair) {
    let start = Instant::now();
    loop {
        let found = tokio::task::spawn_blocking(move || shown(port))
            .await
            .unwrap();
        if found == expected.der {
            return;
        }
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "the certificate was not taken"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotation_of_a_secret_volume() {
    drop(rustls::crypto::ring::default_provider().install_default());
    let volume = tempfile::tempdir().unwrap();
    let first = pair();
    write(volume.path(), "..1", &first.cert, &first.key);
    let files = ["tls.crt", "tls.key"].map(|name| volume.path().join(name));
    let [cert, key] = files.clone();
    let certificate = Certificate::load(cert, key).await.unwrap();
    let handle = Handle::<std::net::SocketAddr>::new();
    let server = axum_server::bind_rustls("127.0.0.1:0".parse().unwrap(), certificate.config())
        .handle(handle.clone());
    tokio::spawn(
        server.serve(
            Router::new()
                .route("/", get(|| async {}))
                .into_make_service(),
        ),
    );
    let metrics = Arc::new(Metrics::default());
    let readiness = Readiness::new(Arc::clone(&metrics));
    tokio::spawn(certificate.follow(Duration::from_millis(20), readiness));
    let port = handle.listening().await.unwrap().port();
    eventually(port, &first).await;

    for version in ["..2", "..3", "..4"] {
        let next = pair();
        write(volume.path(), version, &next.cert, &next.key);
        eventually(port, &next).await;
    }

    // What does not fit is refused, and the certificate in use stays.
    let (last, other) = (shown_blocking(port).await, pair());
    write(volume.path(), "..5", &other.cert, &first.key);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(shown_blocking(port).await, last);
    write(volume.path(), "..6", "garbage", "garbage");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(shown_blocking(port).await, last);
    write(volume.path(), "..7", &other.cert, &other.key);
    eventually(port, &other).await;
    let page = metrics.render().unwrap();
    assert!(
        page.contains("certificate_reloads_total{result=\"success\"} 4"),
        "{page}"
    );
}

async fn shown_blocking(port: u16) -> CertificateDer<'static> {
    tokio::task::spawn_blocking(move || shown(port))
        .await
        .unwrap()
}

#[tokio::test]
async fn missing_and_broken_files_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let [cert, key] = ["tls.crt", "tls.key"].map(|name| directory.path().join(name));
    let error = Certificate::load(cert.clone(), key.clone())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("cannot read") && error.contains("tls.crt"),
        "{error}"
    );
    fs::write(&cert, "x").unwrap();
    fs::write(&key, "x").unwrap();
    let error = Certificate::load(cert, key).await.unwrap_err().to_string();
    assert!(error.contains("tls.key are not a certificate"), "{error}");
}
