//! `--web.config.file`: which requests are admitted, and what changes without a restart.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod crowd;
mod passwords;
mod refused;
mod slow;
mod tls;

use std::{
    fs,
    net::{SocketAddr, TcpListener},
};

use axum::{Router, routing::get};
use nvlink_runtime::web::{Servers, Web};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use tempfile::TempDir;

/// A certificate and its key, in PEM format.
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

/// Creates a directory with the server's certificate, the authority and `web.yml`.
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
