//! The certificate follows its files when they change as the kubelet changes them, and the CA
//! follows its Secret.

#![allow(clippy::unwrap_used)]

mod own;

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
use nvlink_webhook::{
    certificate::files::{Certificate, Files},
    certificate::registered::Registered,
    health::Readiness,
    metrics::Metrics,
};
use rustls::{ClientConfig, ClientConnection, StreamOwned, pki_types::CertificateDer};
use tokio::sync::watch;

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

/// Writes new content into a Secret volume: creates a new directory, then swaps the
/// symlink `..data` by a rename. The symlinks of the files stay.
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

/// Returns the certificate that the server presents.
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
            "the server does not use the new certificate"
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
    let ca = None;
    let certificate = Certificate::load(Files { cert, key, ca }, None)
        .await
        .unwrap();
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
    tokio::spawn(certificate.follow(Duration::from_millis(20), None, readiness));
    let port = handle.listening().await.unwrap().port();
    eventually(port, &first).await;

    for version in ["..2", "..3", "..4"] {
        let next = pair();
        write(volume.path(), version, &next.cert, &next.key);
        eventually(port, &next).await;
    }

    // A certificate without its key cannot be loaded, and the one in use stays.
    let (last, other) = (shown_blocking(port).await, pair());
    for (version, cert, key) in [
        ("..5", &*other.cert, &*first.key),
        ("..6", "garbage", "garbage"),
    ] {
        let before = reloads(&metrics, "failure");
        write(volume.path(), version, cert, key);
        // Two failures: the first may be from a reload that started before the write.
        while reloads(&metrics, "failure") < before + 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(shown_blocking(port).await, last);
    }
    write(volume.path(), "..7", &other.cert, &other.key);
    eventually(port, &other).await;
    assert_eq!(reloads(&metrics, "success"), 4);
}

fn reloads(metrics: &Metrics, result: &str) -> u64 {
    let page = metrics.render().unwrap();
    let line = format!("nvlink_webhook_certificate_reloads_total{{result=\"{result}\"}} ");
    let count = page.lines().find_map(|one| one.strip_prefix(&line));
    count.unwrap().parse().unwrap()
}

async fn shown_blocking(port: u16) -> CertificateDer<'static> {
    tokio::task::spawn_blocking(move || shown(port))
        .await
        .unwrap()
}

/// The CA of a file and the certificate that it signed are used together, and the API server trusts
/// the CA first.
#[tokio::test(start_paused = true)]
async fn a_certificate_of_a_new_ca_is_used_once_its_ca_is_registered() {
    drop(rustls::crypto::ring::default_provider().install_default());
    let volume = tempfile::tempdir().unwrap();
    let path = |name: &str| volume.path().join(name);
    let set = |of: &Pair| {
        fs::write(path("tls.crt"), &of.cert).unwrap();
        fs::write(path("tls.key"), &of.key).unwrap();
        fs::write(path("ca.crt"), &of.cert).unwrap();
    };
    let (first, second, third) = (pair(), pair(), pair());
    set(&first);
    let (cert, key, ca) = (path("tls.crt"), path("tls.key"), Some(path("ca.crt")));
    let files = Files { cert, key, ca };
    let mut certificate = Certificate::load(files, None).await.unwrap();
    let bundle = certificate.bundle();
    assert_eq!(*bundle.borrow(), first.cert);
    let registered = watch::Sender::new(first.cert.clone());
    let seen = Registered::Here(registered.subscribe());
    assert!(!certificate.reload(Some(&seen)).await.unwrap());

    set(&second);
    for _ in 0..3 {
        assert!(!certificate.reload(Some(&seen)).await.unwrap());
        let both = bundle.borrow().clone();
        for one in [&first, &second] {
            assert!(both.contains(one.cert.trim()), "{both}");
        }
    }
    // They change back, and again.
    set(&first);
    assert!(!certificate.reload(Some(&seen)).await.unwrap());
    assert_eq!(*bundle.borrow(), first.cert);
    set(&second);
    assert!(!certificate.reload(Some(&seen)).await.unwrap());
    registered.send_replace(bundle.borrow().clone());
    assert!(certificate.reload(Some(&seen)).await.unwrap());
    assert_eq!(*bundle.borrow(), second.cert, "the old one is not in use");
    // The same CA signs another certificate.
    fs::write(path("tls.crt"), &third.cert).unwrap();
    fs::write(path("tls.key"), &third.key).unwrap();
    assert!(certificate.reload(Some(&seen)).await.unwrap());
    // A CA comes before its certificate: the one in use needs its own until then.
    fs::write(path("ca.crt"), &first.cert).unwrap();
    for _ in 0..2 {
        assert!(!certificate.reload(Some(&seen)).await.unwrap());
        let both = bundle.borrow().clone();
        for one in [&first, &second] {
            assert!(both.contains(one.cert.trim()), "{both}");
        }
        registered.send_replace(both);
    }
    // A CA that cannot be read keeps the certificate, too.
    set(&first);
    fs::write(path("ca.crt"), "garbage").unwrap();
    let error = certificate.reload(Some(&seen)).await.unwrap_err();
    assert!(error.to_string().contains("ca.crt"), "{error}");
}

/// Reading a pipe never ends, and a pipe cannot be read twice.
#[tokio::test]
async fn a_pipe_cannot_be_loaded() {
    let volume = tempfile::tempdir().unwrap();
    let (cert, key) = (volume.path().join("tls.crt"), volume.path().join("tls.key"));
    let made = std::process::Command::new("mkfifo").arg(&cert).status();
    assert!(made.unwrap().success());
    fs::write(&key, pair().key).unwrap();
    let ca = None;
    let error = Certificate::load(Files { cert, key, ca }, None)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("tls.crt: not a regular file"), "{error}");
}

#[tokio::test]
async fn missing_and_broken_files_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let [cert, key] = ["tls.crt", "tls.key"].map(|name| directory.path().join(name));
    let ca = None;
    let files = Files { cert, key, ca };
    let error = Certificate::load(files.clone(), None)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("cannot read") && error.contains("tls.crt"),
        "{error}"
    );
    fs::write(&files.cert, "x").unwrap();
    fs::write(&files.key, "x").unwrap();
    let error = Certificate::load(files, None)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("do not hold a certificate"), "{error}");
}
