//! A client that uses little CPU: one HTTP/1.1 connection over TLS, kept open.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use nvlink_webhook::admission::server::PATH;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, pem::PemObject},
};

/// A connection, and the last response.
pub(crate) struct Client {
    stream: StreamOwned<ClientConnection, TcpStream>,
    answer: Vec<u8>,
}

impl Client {
    /// Connects to `localhost` at `address`, which has `certificate` (PEM).
    pub(crate) fn new(address: SocketAddr, certificate: &str) -> Self {
        let mut roots = RootCertStore::empty();
        let parsed = CertificateDer::from_pem_slice(certificate.as_bytes());
        roots
            .add(parsed.expect("a certificate"))
            .expect("it is trusted");
        let config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = "localhost".try_into().expect("a name");
        let connection = ClientConnection::new(Arc::new(config), name).expect("TLS");
        let socket = TcpStream::connect(address).expect("it listens");
        socket.set_nodelay(true).expect("a socket");
        Self {
            stream: StreamOwned::new(connection, socket),
            answer: Vec::new(),
        }
    }

    /// Sends `body` repeatedly until `end`; returns the time of each exchange.
    pub(crate) fn repeat(&mut self, body: &[u8], end: Instant) -> Vec<Duration> {
        let head = format!(
            "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let request = [head.as_bytes(), body].concat();
        let mut took = Vec::new();
        let mut start = Instant::now();
        while start < end {
            self.exchange(&request);
            let now = Instant::now();
            took.push(now - start);
            start = now;
        }
        took
    }

    fn exchange(&mut self, request: &[u8]) {
        self.stream
            .write_all(request)
            .expect("the server reads the request");
        self.answer.clear();
        let mut chunk = [0; 16 << 10];
        while !self.is_whole() {
            let read = self.stream.read(&mut chunk).expect("a response");
            assert!(read > 0, "the server closed the connection");
            self.answer.extend_from_slice(&chunk[..read]);
        }
        assert!(
            self.answer.starts_with(b"HTTP/1.1 200"),
            "the response is an error"
        );
    }

    fn is_whole(&self) -> bool {
        let end = self.answer.windows(4).position(|four| four == b"\r\n\r\n");
        let Some(end) = end else { return false };
        let head = String::from_utf8_lossy(&self.answer[..end]);
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.and_then(|text| text.parse().ok()).expect("a length");
        self.answer.len() >= end + 4 + length
    }
}
