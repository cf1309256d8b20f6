//! TLS: client certificates, versions, new certificates.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use rcgen::{SanType, string::Ia5String};
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};

use crate::{Authority, Pair, TLS, directory, load, start};

/// Returns what a client trusts and shows. It resumes its sessions.
fn client(
    roots: &str,
    client: Option<&Pair>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let mut store = RootCertStore::empty();
    store
        .add(CertificateDer::from_pem_slice(roots.as_bytes()).unwrap())
        .unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(store);
    Arc::new(match client {
        None => builder.with_no_client_auth(),
        Some(Pair(certificate, key)) => {
            let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder
                .with_client_auth_cert(vec![certificate], key)
                .unwrap()
        }
    })
}

/// Returns the answer to a client, and the certificate of the server.
fn fetch(address: SocketAddr, client: &Arc<ClientConfig>) -> std::io::Result<(String, Vec<u8>)> {
    let (answer, connection) = exchange(address, client)?;
    let shown = connection.peer_certificates().unwrap()[0].to_vec();
    Ok((answer, shown))
}

fn exchange(
    address: SocketAddr,
    client: &Arc<ClientConfig>,
) -> std::io::Result<(String, ClientConnection)> {
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connection = ClientConnection::new(Arc::clone(client), name).unwrap();
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut stream = StreamOwned::new(connection, socket);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok((answer, stream.conn))
}

async fn ask(
    address: SocketAddr,
    roots: &str,
    client: Option<Pair>,
) -> std::io::Result<(String, Vec<u8>)> {
    let config = self::client(roots, client.as_ref(), rustls::DEFAULT_VERSIONS);
    let fetch = move || fetch(address, &config);
    tokio::task::spawn_blocking(fetch).await.unwrap()
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(Ia5String::try_from(name).unwrap())
}

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

/// A session that is resumed shows no certificate, so it counts under the rules that it began with only.
#[tokio::test]
async fn sessions_end_with_the_rules_that_admitted_them() {
    let ours = Authority::new();
    let rules = |name: &str| {
        format!(
            "{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n  \
             client_allowed_sans: [{name}]\n"
        )
    };
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let directory = directory(&ours, &rules("prometheus.example"));
        let mut web = load(&directory).unwrap();
        let (_servers, address) = start(&web);
        let prometheus = ours.issue(vec![dns("prometheus.example")]);
        let config = client(&ours.1, Some(&prometheus), &[version]);
        let ask = || {
            let config = Arc::clone(&config);
            tokio::task::spawn_blocking(move || exchange(address, &config))
        };
        ask().await.unwrap().unwrap();
        let (_, again) = ask().await.unwrap().unwrap();
        assert_eq!(again.handshake_kind(), Some(HandshakeKind::Resumed));
        fs::write(directory.path().join("web.yml"), rules("other.example")).unwrap();
        assert!(web.reload().unwrap());
        let refused = ask().await.unwrap();
        assert!(refused.is_err(), "{version:?}");
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
            let fetch = move || fetch(address, &client(&roots, None, &[version]));
            let answer = tokio::task::spawn_blocking(fetch).await.unwrap();
            assert_eq!(answer.is_ok(), expected, "{extra} {version:?}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn certificates_change_without_a_restart() {
    let ours = Authority::new();
    let directory = directory(&ours, TLS);
    let mut web = load(&directory).unwrap();
    let (_servers, address) = start(&web);
    let (_, first) = ask(address, &ours.1, None).await.unwrap();
    let Pair(certificate, key) = ours.server();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("server.pem", &certificate);
    assert!(
        web.reload()
            .unwrap_err()
            .to_string()
            .contains("does not match the key")
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

#[test]
fn client_certificates_stay_mandatory_while_the_file_is_incomplete() {
    let asked =
        format!("{TLS}  client_ca_file: ca.pem\n  client_auth_type: RequireAndVerifyClientCert\n");
    let directory = directory(&Authority::new(), &asked);
    let mut web = load(&directory).unwrap();
    fs::write(directory.path().join("web.yml"), TLS).unwrap();
    let refused = web.reload().unwrap_err().to_string();
    let said = "client certificates can be made optional only by a restart";
    assert!(refused.contains(said), "{refused}");
}
