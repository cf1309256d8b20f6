//! `--web.config.file`: who gets in, and what changes without a restart.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod passwords;
mod refused;
mod slow;
mod tls;

use std::{
    fs,
    io::Read,
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use axum::{Router, routing::get};
use nvlink_exporter::web::{Servers, Web};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A certificate and its key, PEM.
struct Pair(String, String);

struct Authority(Issuer<'static, KeyPair>, String);

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self(Issuer::new(params, key), pem)
    }

    fn issue(&self, sans: Vec<SanType>) -> Pair {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "x");
        params.subject_alt_names = sans;
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Pair(certificate.pem(), key.serialize_pem())
    }

    fn server(&self) -> Pair {
        self.issue(vec![SanType::IpAddress([127, 0, 0, 1].into())])
    }
}

/// A directory with the server's certificate, the authority and `web.yml`.
fn directory(authority: &Authority, config: &str) -> TempDir {
    let directory = TempDir::new().unwrap();
    let Pair(certificate, key) = authority.server();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("server.pem", &certificate);
    write("server.key", &key);
    write("ca.pem", &authority.1);
    write("web.yml", config);
    directory
}

fn load(directory: &TempDir) -> Result<Web, String> {
    Web::load(&directory.path().join("web.yml")).map_err(|error| error.to_string())
}

fn router() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

fn start(web: &Web) -> (Servers, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (
        Servers::start(vec![listener], web, &web.protect(router())).unwrap(),
        address,
    )
}

const TLS: &str = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n";

/// Whether the other end has closed the connection.
fn is_closed(mut socket: &TcpStream) -> bool {
    socket.set_nonblocking(true).unwrap();
    match socket.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

#[tokio::test]
async fn connections_are_bounded() {
    let (_servers, address) = start(&Web::open());
    let mut open = Vec::new();
    for _ in 0..130 {
        let socket = tokio::net::TcpStream::connect(address).await.unwrap();
        open.push(socket.into_std().unwrap());
    }
    let until = Instant::now() + Duration::from_secs(10);
    // Which of them is a matter of the scheduler.
    while open.len() > 128 && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(10)).await;
        open.retain(|socket| !is_closed(socket));
    }
    assert_eq!(open.len(), 128);
    drop(open);
    let (mut status, request) = ([0; 12], b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    while &status != b"HTTP/1.1 200" && Instant::now() < until {
        let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
        // Refused as long as the others are not quite gone.
        if socket.write_all(request).await.is_ok() {
            drop(socket.read_exact(&mut status).await);
        }
    }
    assert_eq!(&status, b"HTTP/1.1 200");
}
