//! Clients that ask for much and take nothing.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    time::Duration,
};

use axum::{Router, body::Bytes, routing::get};
use nvlink_exporter::web::{Servers, Web};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};

use crate::{Authority, TLS, directory, load};

/// More than the kernel's buffers of a connection take.
const LARGE: usize = 8 << 20;
/// After so long a client that takes nothing has lost its connection.
const LOST: Duration = Duration::from_secs(25);

fn start(web: &Web) -> (Servers, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let large = Bytes::from(vec![b'x'; LARGE]);
    let router = Router::new().route("/", get(|| async { large }));
    let servers = Servers::start(vec![listener], web, &web.protect(router)).unwrap();
    (servers, address)
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(2 * LOST)).unwrap();
    socket
}

/// All that comes until the end, also where that is a reset.
fn read_all(stream: &mut impl Read) -> usize {
    let (mut total, mut part) = (0, vec![0; 1 << 20]);
    loop {
        match stream.read(&mut part) {
            Ok(0) => return total,
            Ok(read) => total += read,
            Err(error) => {
                let kind = error.kind();
                assert_ne!(kind, std::io::ErrorKind::WouldBlock, "still open");
                return total;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_nobody_takes_is_dropped() {
    let (_servers, address) = start(&Web::open());
    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let takes = move |after: Duration| {
        let mut socket = connect(address);
        socket.write_all(GET).unwrap();
        std::thread::sleep(after);
        read_all(&mut socket)
    };
    let at_once = tokio::task::spawn_blocking(move || takes(Duration::ZERO));
    let late = tokio::task::spawn_blocking(move || takes(LOST));
    assert!(at_once.await.unwrap() > LARGE);
    assert!(late.await.unwrap() < LARGE);
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The preface, with no room for answers, and `streams` requests for `/`.
pub(crate) fn greedy(streams: u32) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]));
    // GET, https, / of the static table, and an authority.
    let head = [0x82, 0x87, 0x84, 0x41, 1, b'x'];
    for stream in 0..streams {
        bytes.extend(frame(1, 5, 2 * stream + 1, &head));
    }
    bytes
}

pub(crate) fn tls(socket: TcpStream, roots: &str) -> StreamOwned<ClientConnection, TcpStream> {
    let mut store = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(roots.as_bytes()).unwrap();
    store.add(root).unwrap();
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(store).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    StreamOwned::new(connection, socket)
}

/// Kinds of frames and their payloads, until the connection ends.
fn frames(stream: &mut impl Read) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    let mut head = [0; 9];
    while stream.read_exact(&mut head).is_ok() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).unwrap();
        frames.push((head[3], payload));
    }
    frames
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_without_room_for_answers_is_bounded_and_ends() {
    const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];
    let ours = Authority::new();
    let directory = directory(&ours, TLS);
    let (_servers, address) = start(&load(&directory).unwrap());
    let talk = move || {
        let mut stream = tls(connect(address), &ours.1);
        stream.write_all(&greedy(50)).unwrap();
        frames(&mut stream)
    };
    let talk = tokio::task::spawn_blocking(talk);
    let frames = tokio::time::timeout(LOST, talk).await.expect("it ends");
    let frames = frames.unwrap();
    let of = |kind: u8| frames.iter().filter(move |frame| frame.0 == kind);
    let settings = &of(4).next().unwrap().1;
    assert!(
        settings.chunks(6).any(|one| one == [0, 3, 0, 0, 0, 8]),
        "8 streams at a time: {settings:?}"
    );
    let refused = of(3).filter(|frame| frame.1 == REFUSED_STREAM).count();
    assert!(refused >= 42, "{refused}");
    assert_eq!(of(0).filter(|frame| !frame.1.is_empty()).count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_needs_tls() {
    let (_servers, address) = start(&Web::open());
    let talk = move || {
        let mut socket = connect(address);
        socket.write_all(&greedy(1)).unwrap();
        let mut answer = Vec::new();
        drop(socket.read_to_end(&mut answer));
        String::from_utf8_lossy(&answer).into_owned()
    };
    let answer = tokio::task::spawn_blocking(talk).await.unwrap();
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 400"),
        "{answer:?}"
    );
}
