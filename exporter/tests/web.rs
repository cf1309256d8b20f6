//! `--web.config.file`: who gets in, and what changes without a restart.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    http::{Request, Response, StatusCode, header},
    routing::get,
};
use base64::{Engine, prelude::BASE64_STANDARD};
use nvlink_exporter::web::{Servers, Web};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType, string::Ia5String,
};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceExt;

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

fn dns(name: &str) -> SanType {
    SanType::DnsName(Ia5String::try_from(name).unwrap())
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

/// What a client is told, and the certificate that it was shown.
fn fetch(
    address: SocketAddr,
    roots: &str,
    client: Option<&Pair>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> std::io::Result<(String, Vec<u8>)> {
    let mut store = RootCertStore::empty();
    store
        .add(CertificateDer::from_pem_slice(roots.as_bytes()).unwrap())
        .unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(store);
    let config = match client {
        None => builder.with_no_client_auth(),
        Some(Pair(certificate, key)) => {
            let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder
                .with_client_auth_cert(vec![certificate], key)
                .unwrap()
        }
    };
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut stream = StreamOwned::new(connection, socket);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let shown = stream.conn.peer_certificates().unwrap()[0].to_vec();
    Ok((answer, shown))
}

async fn ask(
    address: SocketAddr,
    roots: &str,
    client: Option<Pair>,
) -> std::io::Result<(String, Vec<u8>)> {
    let roots = roots.to_owned();
    let fetch = move || fetch(address, &roots, client.as_ref(), rustls::DEFAULT_VERSIONS);
    tokio::task::spawn_blocking(fetch).await.unwrap()
}

const TLS: &str = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n";

#[tokio::test]
async fn client_certificates() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let policies = [
        // Without a certificate, with a stranger's, with one of ours.
        ("NoClientCert", [true, true, true]),
        ("RequestClientCert", [true, true, true]),
        ("RequireAnyClientCert", [false, true, true]),
        ("VerifyClientCertIfGiven", [true, false, true]),
        ("RequireAndVerifyClientCert", [false, false, true]),
    ];
    for (policy, expected) in policies {
        let ca = if policy.contains("Verify") {
            "\n  client_ca_file: ca.pem"
        } else {
            ""
        };
        let config = format!("{TLS}  client_auth_type: {policy}{ca}\n");
        let directory = directory(&ours, &config);
        let web = load(&directory).unwrap();
        let (_servers, address) = start(&web);
        let clients = [None, Some(theirs.issue(vec![])), Some(ours.issue(vec![]))];
        for (client, expected) in clients.into_iter().zip(expected) {
            let answer = ask(address, &ours.1, client).await;
            assert_eq!(answer.is_ok(), expected, "{policy}: {answer:?}");
            assert!(answer.is_err() || answer.unwrap().0.ends_with("hello"));
        }
    }
}

#[tokio::test]
async fn names_of_clients() {
    let ours = Authority::new();
    let config = format!(
        "{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n  \
         client_allowed_sans: [prometheus.example, 'spiffe://example/prometheus', 10.0.0.7]\n"
    );
    let directory = directory(&ours, &config);
    let web = load(&directory).unwrap();
    let (_servers, address) = start(&web);
    let uri = |text: &str| SanType::URI(Ia5String::try_from(text).unwrap());
    let cases = [
        (vec![dns("prometheus.example")], true),
        (
            vec![dns("other.example"), uri("spiffe://example/prometheus")],
            true,
        ),
        (vec![SanType::IpAddress([10, 0, 0, 7].into())], true),
        (vec![SanType::IpAddress([10, 0, 0, 8].into())], false),
        (vec![dns("*.example")], false),
        (vec![dns("x.prometheus.example")], false),
        (vec![], false),
    ];
    for (sans, expected) in cases {
        let told = format!("{sans:?}");
        let answer = ask(address, &ours.1, Some(ours.issue(sans))).await;
        assert_eq!(answer.is_ok(), expected, "{told}: {answer:?}");
    }
}

#[tokio::test]
async fn versions_of_tls() {
    use rustls::version::{TLS12, TLS13};
    let ours = Authority::new();
    let cases = [
        ("", true, true),
        ("  min_version: TLS13\n", false, true),
        ("  max_version: TLS12\n", true, false),
        (
            "  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]\n",
            true,
            true,
        ),
        (
            "  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]\n",
            false,
            true,
        ),
        (
            "  curve_preferences: [CurveP256, X25519]\n  prefer_server_cipher_suites: false\n",
            true,
            true,
        ),
    ];
    for (extra, older, newer) in cases {
        let directory = directory(&ours, &format!("{TLS}{extra}"));
        let (_servers, address) = start(&load(&directory).unwrap());
        for (version, expected) in [(&TLS12, older), (&TLS13, newer)] {
            let roots = ours.1.clone();
            let fetch = move || fetch(address, &roots, None, &[version]);
            let answer = tokio::task::spawn_blocking(fetch).await.unwrap();
            assert_eq!(answer.is_ok(), expected, "{extra} {version:?}: {answer:?}");
        }
    }
}

/// Configurations and what is wrong with them; TLS stands for the keys that all need.
const REFUSED: &[(&str, &str)] = &[
    (
        "tls_server_config:\n  cert_file: server.pem\n",
        "tls_server_config.key_file: missing",
    ),
    (
        "tls_server_config:\n  cert_file: nothing.pem\n",
        "nothing.pem: No such file",
    ),
    (
        "tls_server_config:\n  cert_file: ca.pem\n  key_file: server.key\n",
        "tls_server_config.cert: it does not fit its key",
    ),
    (
        "tls_server_config:\n  cert_file: web.yml\n  key_file: server.key\n",
        "tls_server_config.cert: no certificate in PEM form",
    ),
    (
        "tls_server_config:\n  cert: x\n  cert_file: server.pem\n  key_file: server.key\n",
        "tls_server_config.cert: given twice",
    ),
    (
        "TLS  client_ca_file: ca.pem\n",
        "tls_server_config.client_ca_file: without a client_auth_type",
    ),
    (
        "TLS  client_auth_type: RequireAndVerifyClientCert\n",
        "tls_server_config.client_ca_file: missing",
    ),
    (
        "TLS  client_auth_type: Maybe\n",
        "tls_server_config.client_auth_type: unknown variant `Maybe`",
    ),
    (
        "TLS  client_auth_type: RequestClientCert\n  client_allowed_sans: [x]\n",
        "client_allowed_sans: needs client_auth_type",
    ),
    (
        "TLS  client_auth_type: RequireAnyClientCert\n  client_allowed_sans: [a@b]\n",
        "client_allowed_sans: \"a@b\": e-mail addresses",
    ),
    (
        "TLS  min_version: TLS10\n",
        "tls_server_config.min_version: TLS 1.0 and 1.1",
    ),
    (
        "TLS  min_version: TLS13\n  max_version: TLS12\n",
        "max_version: it is below min_version",
    ),
    (
        "TLS  cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]\n",
        "cipher_suites: \"TLS_RSA_WITH_RC4_128_SHA\" is not served; there are TLS_ECDHE_",
    ),
    (
        "TLS  curve_preferences: [CurveP521]\n",
        "curve_preferences: \"CurveP521\" is not served; there are X25519, CurveP256, CurveP384",
    ),
    (
        "TLS  cert_fiel: x\n",
        "tls_server_config.cert_fiel: unknown field",
    ),
    (
        "basic_auth_users: {alice: secret}\n",
        "basic_auth_users.alice: no bcrypt hash",
    ),
    (
        "http_server_config: {headers: {X-Frame-Options: maybe}}\n",
        "headers.x-frame-options: \"maybe\" is not deny or sameorigin",
    ),
    (
        "rate_limit: {interval: 1s}\n",
        "rate_limit.burst: with 0 no request",
    ),
    (
        "rate_limit: {interval: soon, burst: 1}\n",
        "rate_limit.interval: \"soon\" is no duration",
    ),
];

#[test]
fn what_cannot_be_is_refused() {
    let ours = Authority::new();
    for (config, expected) in REFUSED {
        let directory = directory(&ours, &config.replace("TLS  ", &format!("{TLS}  ")));
        let error = load(&directory)
            .err()
            .unwrap_or_else(|| panic!("taken: {config}"));
        assert!(error.contains(expected), "{config}: {error}");
        assert!(
            error.starts_with(&directory.path().display().to_string()),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

/// Asks `web` as `user:password`.
async fn log_in(web: &Web, credentials: Option<&str>) -> Response<Body> {
    let mut request = Request::get("/");
    if let Some(credentials) = credentials {
        let value = format!("Basic {}", BASE64_STANDARD.encode(credentials));
        request = request.header(header::AUTHORIZATION, value);
    }
    let request = request.body(Body::empty()).unwrap();
    web.protect(router()).oneshot(request).await.unwrap()
}

fn hash(password: &str) -> String {
    // The least cost: this is no test of bcrypt.
    bcrypt::hash(password, 4).unwrap()
}

#[tokio::test]
async fn passwords_and_headers() {
    let config = format!(
        "basic_auth_users: {{alice: '{}', bob: '{}'}}\n\
         http_server_config: {{headers: {{X-Frame-Options: deny, Strict-Transport-Security: ''}}}}\n",
        hash("a:b"),
        hash("bob's")
    );
    let directory = directory(&Authority::new(), &config);
    let web = load(&directory).unwrap();
    let cases = [
        (None, false),
        (Some("alice:a:b"), true),
        (Some("alice:a:c"), false),
        (Some("alice:bob's"), false),
        (Some("bob:bob's"), true),
        (Some("carol:bob's"), false),
        (Some("alice:"), false),
        // The second time it is remembered.
        (Some("alice:a:b"), true),
        (Some("alice:a:c"), false),
    ];
    for (credentials, expected) in cases {
        let response = log_in(&web, credentials).await;
        let status = if expected {
            StatusCode::OK
        } else {
            StatusCode::UNAUTHORIZED
        };
        assert_eq!(response.status(), status, "{credentials:?}");
        assert_eq!(response.headers()["x-frame-options"], "deny");
        assert!(!response.headers().contains_key("strict-transport-security"));
        assert_eq!(
            response.headers().contains_key(header::WWW_AUTHENTICATE),
            !expected
        );
    }
}

#[tokio::test]
async fn a_flood_of_passwords_is_sent_away() {
    let config = format!("basic_auth_users: {{alice: '{}'}}\n", hash("right"));
    let directory = directory(&Authority::new(), &config);
    let web = load(&directory).unwrap();
    assert_eq!(
        log_in(&web, Some("alice:right")).await.status(),
        StatusCode::OK
    );
    let guesses: Vec<String> = (0..100).map(|n| format!("alice:{n}")).collect();
    let flood = guesses.iter().map(|guess| log_in(&web, Some(guess)));
    let mut statuses = Vec::new();
    let (flood, right) = tokio::join!(
        futures::future::join_all(flood),
        log_in(&web, Some("alice:right"))
    );
    statuses.extend(flood.iter().map(Response::status));
    assert!(statuses.contains(&StatusCode::TOO_MANY_REQUESTS));
    assert!(!statuses.contains(&StatusCode::OK));
    assert_eq!(right.status(), StatusCode::OK, "who is known does not wait");
}

#[tokio::test]
async fn requests_are_limited() {
    let config = "rate_limit: {interval: 1h, burst: 2}\n";
    let directory = directory(&Authority::new(), config);
    let web = load(&directory).unwrap();
    for expected in [
        StatusCode::OK,
        StatusCode::OK,
        StatusCode::TOO_MANY_REQUESTS,
    ] {
        assert_eq!(log_in(&web, None).await.status(), expected);
    }
}

#[tokio::test]
async fn passwords_change_without_a_restart() {
    let directory = directory(&Authority::new(), "");
    let write = |text: &str| fs::write(directory.path().join("web.yml"), text).unwrap();
    let mut web = load(&directory).unwrap();
    assert!(!web.reload().unwrap(), "nothing is new");
    assert_eq!(log_in(&web, None).await.status(), StatusCode::OK);
    write(&format!("basic_auth_users: {{alice: '{}'}}\n", hash("one")));
    assert!(web.reload().unwrap());
    assert_eq!(log_in(&web, None).await.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(
        log_in(&web, Some("alice:one")).await.status(),
        StatusCode::OK
    );
    write("basic_auth_user: {}\n");
    assert!(
        web.reload()
            .unwrap_err()
            .to_string()
            .contains("unknown field")
    );
    assert_eq!(log_in(&web, None).await.status(), StatusCode::UNAUTHORIZED);
    write(&format!("basic_auth_users: {{alice: '{}'}}\n", hash("two")));
    assert!(web.reload().unwrap());
    assert_eq!(
        log_in(&web, Some("alice:one")).await.status(),
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(
        log_in(&web, Some("alice:two")).await.status(),
        StatusCode::OK
    );
    write(TLS);
    assert!(
        web.reload()
            .unwrap_err()
            .to_string()
            .contains("by a restart")
    );
}

#[tokio::test]
async fn certificates_change_without_a_restart() {
    let ours = Authority::new();
    let directory = directory(&ours, TLS);
    let mut web = load(&directory).unwrap();
    let (_servers, address) = start(&web);
    let (_, first) = ask(address, &ours.1, None).await.unwrap();
    let Pair(certificate, key) = ours.server();
    let write =
        |name: &str, text: &str| fs::write(Path::new(directory.path()).join(name), text).unwrap();
    write("server.pem", &certificate);
    assert!(
        web.reload()
            .unwrap_err()
            .to_string()
            .contains("does not fit its key")
    );
    assert_eq!(
        ask(address, &ours.1, None).await.unwrap().1,
        first,
        "the old one stays"
    );
    write("server.key", &key);
    assert!(web.reload().unwrap());
    assert_ne!(ask(address, &ours.1, None).await.unwrap().1, first);
}

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
