//! Clients that request much and read nothing.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    time::Duration,
};

use axum::{Router, body::Bytes, routing::get};
use nvlink_runtime::web::{Servers, Web};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::spawn_blocking,
};

use crate::{Authority, TLS, directory, load};

/// More than the kernel's buffers of a connection hold.
const LARGE: usize = 8 << 20;
/// Longer than any client may take. The time of the server is simulated.
const LONG: Duration = Duration::from_secs(60);

/// An answer that reports when it is dropped, read or not.
struct Answer(UnboundedSender<()>, usize);

impl AsRef<[u8]> for Answer {
    fn as_ref(&self) -> &[u8] {
        static BYTES: [u8; LARGE] = [0; LARGE];
        &BYTES[..self.1]
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

fn start(web: &Web, bytes: usize) -> (Servers, SocketAddr, UnboundedReceiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, over) = unbounded_channel();
    let answer = get(move || async move { Bytes::from_owner(Answer(sender, bytes)) });
    let router = Router::new().route("/", answer);
    let servers = Servers::start(vec![listener], web, &web.protect(router)).unwrap();
    (servers, address, over)
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket
}

/// Reads until the end or a reset, and returns the number of bytes.
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

/// Waits until `count` answers are dropped. Time is simulated, so a timeout passes at once.
async fn wait(over: &mut UnboundedReceiver<()>, count: usize) {
    tokio::time::pause();
    for _ in 0..count {
        let end = tokio::time::timeout(LONG, over.recv());
        end.await.unwrap().unwrap();
    }
    tokio::time::resume();
}

#[tokio::test]
async fn an_answer_that_the_client_does_not_read_is_dropped() {
    let (_servers, address, mut over) = start(&Web::open(), LARGE);
    let ask = move || {
        const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let mut socket = connect(address);
        socket.write_all(GET).unwrap();
        // The answer has begun.
        socket.read_exact(&mut [0]).unwrap();
        socket
    };
    let taken = spawn_blocking(move || read_all(&mut ask())).await;
    assert!(taken.unwrap() > LARGE);
    over.recv().await.unwrap();
    let mut socket = spawn_blocking(ask).await.unwrap();
    wait(&mut over, 1).await;
    let taken = spawn_blocking(move || read_all(&mut socket)).await;
    assert!(taken.unwrap() < LARGE);
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Returns the HTTP/2 preface, with no room for answers, and `streams` requests for `/`.
pub(crate) fn greedy(streams: u32) -> Vec<u8> {
    asking(streams, 0)
}

/// Returns the same with a `window` of bytes for each answer.
fn asking(streams: u32, window: u8) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[0, 4, 0, 0, 0, window]));
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

/// Kind and payload of a frame.
type Frame = (u8, Vec<u8>);

/// Reads frames until the connection ends or there are `enough`.
fn frames(stream: &mut impl Read, enough: impl Fn(&[Frame]) -> bool) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut head = [0; 9];
    while !enough(&frames) && stream.read_exact(&mut head).is_ok() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).unwrap();
        frames.push((head[3], payload));
    }
    frames
}

#[tokio::test]
async fn http2_without_room_for_answers_is_bounded_and_ends() {
    let refused = (3, vec![0, 0, 0, 7]);
    let ours = Authority::new();
    let directory = directory(&ours, TLS);
    let (_servers, address, mut over) = start(&load(&directory).unwrap(), LARGE);
    let ask = move || {
        let mut stream = tls(connect(address), &ours.1);
        stream.write_all(&greedy(50)).unwrap();
        let count = |frames: &[Frame]| frames.iter().filter(|&one| *one == refused).count();
        let frames = frames(&mut stream, |frames| count(frames) == 42);
        (stream, frames)
    };
    let (mut stream, mut seen) = spawn_blocking(ask).await.unwrap();
    wait(&mut over, 8).await;
    let rest = spawn_blocking(move || frames(&mut stream, |_| false)).await;
    seen.extend(rest.unwrap());
    let of = |kind: u8| seen.iter().filter(move |frame| frame.0 == kind);
    let settings = &of(4).next().unwrap().1;
    assert!(
        settings.chunks(6).any(|one| one == [0, 3, 0, 0, 0, 8]),
        "8 streams at a time: {settings:?}"
    );
    assert_eq!(of(0).filter(|frame| !frame.1.is_empty()).count(), 0);
}

#[tokio::test]
async fn a_small_answer_that_is_read_by_one_byte_ends_too() {
    let ours = Authority::new();
    let directory = directory(&ours, TLS);
    let (_servers, address, mut over) = start(&load(&directory).unwrap(), 1000);
    let ask = move || {
        let mut stream = tls(connect(address), &ours.1);
        stream.write_all(&asking(1, 1)).unwrap();
        let part = (0, vec![0]);
        let seen = frames(&mut stream, |frames| frames.contains(&part));
        assert!(seen.contains(&part));
        stream
    };
    let _stream = spawn_blocking(ask).await.unwrap();
    wait(&mut over, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_needs_tls() {
    let (_servers, address, _over) = start(&Web::open(), LARGE);
    let talk = move || {
        let mut socket = connect(address);
        socket.write_all(&greedy(1)).unwrap();
        let mut answer = Vec::new();
        drop(socket.read_to_end(&mut answer));
        String::from_utf8_lossy(&answer).into_owned()
    };
    let answer = spawn_blocking(talk).await.unwrap();
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 400"),
        "{answer:?}"
    );
}
