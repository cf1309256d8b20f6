//! Many clients that do nothing, or that request much.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{Router, body::Bytes, routing::get};
use nvlink_runtime::connections::CutOff;
use nvlink_runtime::web::{Servers, Web};
use socket2::{Domain, Socket, Type};
use tokio::task::spawn_blocking;

use crate::{
    Authority, TLS, directory, load,
    slow::{connect, greedy, tls},
    start,
};

/// How long any step may take on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(30);

/// Connects from 127.0.0.`peer`, with a small receive buffer.
fn connect_as(peer: u8, address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let own = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, peer)), 0);
    socket.bind(&own.into()).unwrap();
    socket.connect(&address.into()).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket.into()
}

/// Reports whether the other end has closed the connection.
fn is_closed(mut socket: &TcpStream) -> bool {
    socket.set_nonblocking(true).unwrap();
    match socket.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

fn wait(what: &str, probe: impl Fn() -> bool) {
    let until = Instant::now() + SOON;
    while !probe() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the answer to a scrape.
fn scrape(mut stream: impl Read + Write) -> String {
    let asked = stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let mut answer = Vec::new();
    drop(asked.and_then(|()| stream.read_to_end(&mut answer)));
    String::from_utf8_lossy(&answer).into_owned()
}

fn count(web: &Web, why: CutOff) -> u64 {
    let counts = web.cut_offs().counts();
    counts.into_iter().find(|one| one.0 == why).unwrap().1
}

/// Opens silent connections from several peers until all places are in use.
fn silent(address: SocketAddr) -> Vec<TcpStream> {
    let peers = (2..=5).flat_map(|peer| [peer; 32]);
    peers.map(|peer| connect_as(peer, address)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_do_not_block_scrapes() {
    let web = Web::open();
    let (_servers, address) = start(&web);
    let talk = move || {
        let silent = silent(address);
        for _ in 0..3 {
            let answer = scrape(connect_as(9, address));
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
        }
        // They do not block the scrapes of their own peer either.
        let answer = scrape(connect_as(2, address));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
        silent.len()
    };
    assert_eq!(spawn_blocking(talk).await.unwrap(), 128);
    assert!(count(&web, CutOff::Idle) >= 1);
    assert_eq!(count(&web, CutOff::Full), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_never_start_a_handshake_do_not_block_scrapes() {
    let ours = Authority::new();
    let directory = directory(&ours, TLS);
    let (_servers, address) = start(&load(&directory).unwrap());
    let talk = move || {
        let silent = silent(address);
        for _ in 0..3 {
            let mut stream = tls(connect_as(9, address), &ours.1);
            stream.write_all(&greedy(1)).unwrap();
            let mut head = [0; 9];
            stream.read_exact(&mut head).unwrap();
        }
        silent.len()
    };
    assert_eq!(spawn_blocking(talk).await.unwrap(), 128);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_bounded() {
    let web = Web::open();
    let (_servers, address) = start(&web);
    let talk = move || {
        let mut open = silent(address);
        open.extend((0..40).map(|_| connect_as(6, address)));
        open.extend((0..40).map(|_| connect_as(7, address)));
        wait("all but 128 to be closed", || {
            open.iter().filter(|socket| !is_closed(socket)).count() == 128
        });
        let of = |peer: u8| {
            let own = open.iter().filter(|socket| !is_closed(socket));
            let own =
                own.filter(|one| one.local_addr().unwrap().ip() == Ipv4Addr::new(127, 0, 0, peer));
            own.count()
        };
        // The peers with the most connections lose some.
        for peer in 2..=7 {
            assert!((20..=24).contains(&of(peer)), "{peer}: {}", of(peer));
        }
    };
    spawn_blocking(talk).await.unwrap();
    assert_eq!(count(&web, CutOff::Idle), 80);
}

/// Numbers of answers in memory.
#[derive(Default)]
struct Alive {
    now: AtomicUsize,
    most: AtomicUsize,
    made: AtomicUsize,
}

struct Answer(Vec<u8>, Arc<Alive>);

impl AsRef<[u8]> for Answer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.1.now.fetch_sub(1, Ordering::SeqCst);
    }
}

fn serve(web: &Web, bytes: usize) -> (Servers, SocketAddr, Arc<Alive>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let alive = Arc::new(Alive::default());
    let made = Arc::clone(&alive);
    let answer = move || {
        let now = made.now.fetch_add(1, Ordering::SeqCst) + 1;
        made.most.fetch_max(now, Ordering::SeqCst);
        made.made.fetch_add(1, Ordering::SeqCst);
        Bytes::from_owner(Answer(vec![b'x'; bytes], Arc::clone(&made)))
    };
    let router = Router::new().route("/", get(async move || answer()));
    let servers = Servers::start(vec![listener], web, &web.protect(router)).unwrap();
    (servers, address, alive)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_unread_answers_is_bounded() {
    let ours = Authority::new();
    let directory = directory(&ours, TLS);
    let web = load(&directory).unwrap();
    let (_servers, address, alive) = serve(&web, 4 << 20);
    let roots = ours.1.clone();
    let talk = move || {
        let ask = |peer: u8| {
            let mut stream = tls(connect_as(peer, address), &roots);
            stream.write_all(&greedy(8)).unwrap();
            stream
        };
        (2..=5).map(ask).collect::<Vec<_>>()
    };
    let held = spawn_blocking(talk).await.unwrap();
    let made = Arc::clone(&alive);
    spawn_blocking(move || wait("32 answers", || made.made.load(Ordering::SeqCst) == 32))
        .await
        .unwrap();
    // 32 MiB, and the answers that are being made and find no room.
    let most = alive.most.load(Ordering::SeqCst);
    assert!((8..=12).contains(&most), "{most}");
    assert!(count(&web, CutOff::Memory) >= 20);
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kernel_keeps_little_for_clients_that_do_not_read() {
    let (_servers, address, alive) = serve(&Web::open(), 64 << 10);
    let talk = move || {
        let mut socket = connect_as(2, address);
        let requests = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(200);
        socket.write_all(&requests).unwrap();
        let made = || alive.made.load(Ordering::SeqCst);
        wait("an answer", || made() > 0);
        let mut before = 0;
        while made() != before {
            before = made();
            std::thread::sleep(Duration::from_millis(300));
        }
        before
    };
    let taken = spawn_blocking(talk).await.unwrap();
    assert!(taken < 16, "{taken} answers of 64 KiB wait for a client");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_larger_than_the_limit_is_sent_alone() {
    let (_servers, address, _alive) = serve(&Web::open(), 64 << 20);
    let answer = spawn_blocking(move || scrape(connect(address)).len()).await;
    assert!(answer.unwrap() > 64 << 20);
}
