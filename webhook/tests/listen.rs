//! The bounds of the server, over real sockets, with clients that behave like an
//! API server and with malicious ones.

#![allow(clippy::unwrap_used)]

#[path = "../../crates/admission/tests/all/fixture/mod.rs"]
mod fixture;

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use axum_server::{Handle, tls_rustls::RustlsConfig};
use fixture::{admission, pod, review};
use nvlink_admission::{
    admit::Admission,
    authorize::{Authorizer, Grant, Subject, User},
    decide::Settings,
};
use nvlink_api::crd::access::GrantedIn;
use nvlink_topology::labels;
use nvlink_webhook::{
    admission::server::{PATH, Webhook, admission_router, listen},
    metrics::Metrics,
};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, pem::PemObject},
};
use serde_json::json;
use tokio::{net::TcpSocket, sync::watch};

/// A running server and its certificate.
struct Server {
    address: SocketAddr,
    certificate: String,
    metrics: Arc<Metrics>,
    leaving: watch::Sender<bool>,
    runtime: tokio::runtime::Runtime,
}

fn start() -> Server {
    start_with(admission(&[]))
}

fn start_with<A: Authorizer + 'static>(admission: Admission<A>) -> Server {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let metrics = Arc::<Metrics>::default();
    let webhook = Webhook {
        admission,
        metrics: Arc::clone(&metrics),
        recent: Default::default(),
    };
    let cut_offs = metrics.cut_offs().clone();
    let router = admission_router(Arc::new(webhook));
    let (leaving, leaves) = watch::channel(false);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let address = runtime.block_on(async {
        let pem = certificate.clone().into_bytes();
        let tls = RustlsConfig::from_pem(pem, key.into_bytes()).await.unwrap();
        let handle = Handle::new();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let serving = listen::serve(address, tls, handle.clone(), router, cut_offs, leaves);
        tokio::spawn(serving);
        handle.listening().await.unwrap()
    });
    Server {
        address,
        certificate,
        metrics,
        leaving,
        runtime,
    }
}

type Stream = StreamOwned<ClientConnection, TcpStream>;

impl Server {
    fn connect(&self, protocol: &str) -> Stream {
        self.connect_from([127, 0, 0, 1], protocol)
    }

    /// Connects as the peer at `address`.
    fn connect_from(&self, address: [u8; 4], protocol: &str) -> Stream {
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_slice(self.certificate.as_bytes());
        roots.add(certificate.unwrap()).unwrap();
        let mut config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let name = "localhost".try_into().unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let socket = self.runtime.block_on(async {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind((address, 0).into()).unwrap();
            socket.connect(self.address).await.unwrap()
        });
        let socket = socket.into_std().unwrap();
        socket.set_nonblocking(false).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        StreamOwned::new(connection, socket)
    }
}

/// Reports whether the server closes the connection `within` a time.
fn is_closed(socket: &TcpStream, within: Duration) -> bool {
    socket.set_read_timeout(Some(within)).unwrap();
    let mut socket = socket;
    // Session tickets may come after the handshake.
    loop {
        match socket.read(&mut [0; 1024]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn silent_connections_are_bounded_and_keep_nobody_out() {
    let server = start();
    let moment = Duration::from_millis(5);
    let connect = |_| {
        let mut stream = server.connect("http/1.1");
        // After the handshake the connection has a place.
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).unwrap();
        }
        stream.sock
    };
    let mut silent: Vec<_> = (0..64).map(connect).collect();
    // An API server still gets a place: that of a silent connection.
    let mut stream = server.connect("http/1.1");
    let body = review(&pod(0, json!({}))).to_string();
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    let end = Instant::now() + Duration::from_secs(5);
    while silent.len() > 63 && Instant::now() < end {
        silent.retain(|socket| !is_closed(socket, moment));
    }
    assert_eq!(silent.len(), 63);
    assert!(silent.iter().all(|socket| !is_closed(socket, moment)));
}

/// An API server that does not answer access reviews.
struct Silent;

impl Authorizer for Silent {
    async fn may_use(&self, _: &Subject, _: &str, _: &str, _: GrantedIn) -> Grant {
        std::future::pending().await
    }

    async fn may_release(&self, _: &User, _: &str) -> Grant {
        std::future::pending().await
    }
}

#[test]
fn a_connection_with_a_waiting_review_is_not_silent() {
    let server = start_with(Admission {
        view: admission(&[]).view,
        authorizer: Silent,
        settings: Settings::default(),
    });
    let mut waiting = server.connect("http/1.1");
    let body = review(&pod(1, json!({labels::CLASS: "restricted"}))).to_string();
    let request = format!(
        "POST {PATH}?timeout=30s HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    waiting.write_all(request.as_bytes()).unwrap();
    let connect = |_| {
        let mut stream = server.connect("http/1.1");
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).unwrap();
        }
        stream.sock
    };
    // One more than there are places for: a silent connection is closed.
    let mut silent: Vec<_> = (0..64).map(connect).collect();
    let moment = Duration::from_millis(5);
    let end = Instant::now() + Duration::from_secs(5);
    while silent.len() > 63 && Instant::now() < end {
        silent.retain(|socket| !is_closed(socket, moment));
    }
    assert_eq!(silent.len(), 63);
    assert!(!is_closed(&waiting.sock, moment));
}

#[test]
fn responses_that_nobody_reads_use_bounded_memory() {
    let server = start();
    // The response repeats the uid.
    let uid = "x".repeat(3 << 20);
    let body = json!({"request": {"uid": uid, "operation": "DELETE"}}).to_string();
    let ask = |_| {
        let mut stream = server.connect("http/1.1");
        let head = format!(
            "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        (String::from_utf8_lossy(&status[9..]).into_owned(), stream)
    };
    let (statuses, streams): (Vec<_>, Vec<_>) = (0..4).map(ask).unzip();
    assert_eq!(statuses, ["200", "200", "503", "503"]);
    let counted = "nvlink_webhook_clients_cut_off_total{reason=\"memory\"} 2\n";
    let page = server.metrics.render().unwrap();
    assert!(page.contains(counted), "{page}");
    // There is room again after they have closed.
    drop(streams);
    let end = Instant::now() + Duration::from_secs(30);
    while ask(4).0 != "200" {
        assert!(Instant::now() < end);
    }
}

/// Returns an HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Returns the head of a request, without the end of the request.
fn head(stream: u32) -> Vec<u8> {
    const END_HEADERS: u8 = 4;
    // POST, https, and path and authority as literals.
    let mut fields = vec![0x83, 0x87, 0x04, u8::try_from(PATH.len()).unwrap()];
    fields.extend(PATH.as_bytes());
    fields.extend([0x01, 9]);
    fields.extend(b"localhost");
    frame(1, END_HEADERS, stream, &fields)
}

/// Returns the next frame: its kind, stream and payload.
fn next(stream: &mut Stream) -> (u8, u32, Vec<u8>) {
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    stream.read_exact(&mut payload).unwrap();
    let number = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    (head[3], number, payload)
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;

#[test]
fn a_connection_accepts_250_requests_at_a_time_and_rejects_more() {
    let server = start();
    let mut stream = server.connect("h2");
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
    let heads = (0..251).flat_map(|index| head(1 + 2 * index));
    stream.write_all(&heads.collect::<Vec<_>>()).unwrap();
    let reset = loop {
        match next(&mut stream) {
            (RESET, number, payload) => break (number, payload),
            (kind, ..) => assert_ne!(kind, HEADERS, "no request is complete yet"),
        }
    };
    // `REFUSED_STREAM`: the client may retry, elsewhere or later.
    assert_eq!(reset, (501, 7_u32.to_be_bytes().to_vec()));

    let body = review(&pod(0, json!({}))).to_string();
    for number in (1..500).step_by(2) {
        const END: u8 = 1;
        let body = frame(DATA, END, number, body.as_bytes());
        stream.write_all(&body).unwrap();
    }
    let mut answered = 0;
    while answered < 250 {
        let (kind, _, payload) = next(&mut stream);
        if kind == HEADERS {
            // `:status: 200` of the static table.
            assert_eq!(payload[0], 0x88);
            answered += 1;
        }
    }
}

/// Returns the head of a request that announces 64 KiB and a long timeout.
fn announcing(stream: u32) -> Vec<u8> {
    const END_HEADERS: u8 = 4;
    let path = format!("{PATH}?timeout=30s");
    let mut fields = vec![0x83, 0x87, 0x04, u8::try_from(path.len()).unwrap()];
    fields.extend(path.as_bytes());
    fields.extend([0x01, 9]);
    fields.extend(b"localhost");
    fields.extend([0x0f, 0x0d, 5]);
    fields.extend(b"65536");
    frame(HEADERS, END_HEADERS, stream, &fields)
}

#[test]
fn a_peer_that_announces_bodies_and_sends_none_keeps_no_other_out() {
    const PING: u8 = 6;
    let server = start();
    let flood = |_| {
        let mut stream = server.connect_from([127, 0, 0, 2], "h2");
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .unwrap();
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
        let heads = (0..240).flat_map(|index| announcing(1 + 2 * index));
        stream.write_all(&heads.collect::<Vec<_>>()).unwrap();
        stream.write_all(&frame(PING, 0, 0, &[0; 8])).unwrap();
        // After the reply to the ping, the server has read everything before it.
        while next(&mut stream).0 != PING {}
        stream
    };
    let floods: Vec<_> = (0..2).map(flood).collect();
    // The response comes before the server gives up the other requests.
    let body = review(&pod(0, json!({}))).to_string();
    let request = format!(
        "POST {PATH}?timeout=1500ms HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for _ in 0..5 {
        let mut stream = server.connect("http/1.1");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
    }
    drop(floods);
}

#[test]
fn a_head_that_is_too_long_is_rejected() {
    let server = start();
    let mut stream = server.connect("http/1.1");
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n",
        "x".repeat(128 << 10)
    );
    // The server may close the connection before it has read the whole head.
    let _ = stream.write_all(head.as_bytes());
    let mut answer = [0; 12];
    if stream.read_exact(&mut answer).is_ok() {
        assert_eq!(&answer, b"HTTP/1.1 431");
    }
}

/// Sends a review on an open connection of HTTP/1, and returns the head of the answer.
fn head_of_answer(stream: &mut Stream) -> String {
    let body = r#"{"request": {"uid": "1", "operation": "DELETE"}}"#;
    let request = format!(
        "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    while !answer.ends_with('}') {
        let mut part = [0; 1024];
        let length = stream.read(&mut part).unwrap();
        assert!(length > 0, "{answer}");
        answer.push_str(std::str::from_utf8(&part[..length]).unwrap());
    }
    let (head, _) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    head.to_lowercase()
}

/// A server that closes a connection on which an API server sends a review fails the review.
#[test]
fn an_idle_api_server_keeps_its_connection_until_the_server_leaves() {
    let server = start();
    let mut stream = server.connect("http/1.1");
    assert!(!head_of_answer(&mut stream).contains("connection: close"));
    assert!(!is_closed(&stream.sock, Duration::from_secs(7)));
    stream
        .sock
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    server.leaving.send_replace(true);
    let head = head_of_answer(&mut stream);
    assert!(head.contains("connection: close"), "{head}");
    assert!(is_closed(&stream.sock, Duration::from_secs(5)));
}
