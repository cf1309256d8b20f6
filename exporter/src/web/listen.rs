//! Serves on several addresses, with and without TLS, within bounds.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use axum::Router;
use axum_server::{Handle, tls_rustls::RustlsAcceptor};
use hyper_util::{
    rt::{TokioExecutor, TokioTimer},
    server::conn::auto::Builder,
};
use nvlink_runtime::connections::{Acceptor, Bounds};
use tokio::task::JoinSet;

use super::Web;

/// What clients may use, over all addresses.
pub(super) const BOUNDS: Bounds = Bounds {
    connections: 128,
    connections_of_peer: 32,
    bytes: 32 << 20,
    bytes_of_peer: 16 << 20,
    patience: Duration::from_secs(5),
    taken: Duration::from_secs(20),
    silent: SILENT,
};

/// A client that scrapes once a minute keeps its connection. Hyper's own time
/// for a head does not count while it waits to see which version of HTTP a
/// client speaks.
const SILENT: Duration = Duration::from_secs(75);

/// Requests of HTTP/2 that are under way at a time on one connection: an answer
/// waits whole in memory for a client that does not read it.
const MAX_STREAMS: u32 = 8;
/// What is kept of a request's head, and of an answer that the socket does not
/// take, bytes.
const BUFFER: usize = 64 << 10;
/// How soon a peer must answer a ping of HTTP/2.
const PING: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct Servers {
    handle: Handle<SocketAddr>,
    tasks: JoinSet<io::Result<()>>,
}

impl Servers {
    /// Serves `router`, as it is, on all listeners. Its protection is [`Web::protect`].
    ///
    /// # Errors
    /// When a listener cannot be used.
    pub fn start(listeners: Vec<TcpListener>, web: &Web, router: &Router) -> io::Result<Self> {
        let handle = Handle::new();
        let tls = web.tls.clone().map(RustlsAcceptor::new);
        let acceptor = Acceptor::new(tls, web.places.clone());
        let mut tasks = JoinSet::new();
        for listener in listeners {
            listener.set_nonblocking(true)?;
            tracing::info!(address = %listener.local_addr()?, tls = web.is_tls(), "serving");
            let mut server = axum_server::from_tcp(listener)?
                .acceptor(acceptor.clone())
                .handle(handle.clone());
            limit(server.http_builder());
            // Without TLS only a client that knows beforehand could use HTTP/2: none does.
            if !web.http2 || !web.is_tls() {
                server = server.http1_only();
            }
            tasks.spawn(server.serve(router.clone().into_make_service()));
        }
        Ok(Self { handle, tasks })
    }

    /// Waits for the end of one of them, which is a failure.
    pub async fn ended(&mut self) -> io::Error {
        match self.tasks.join_next().await {
            Some(Ok(Err(error))) => error,
            Some(Err(error)) => io::Error::other(error),
            Some(Ok(Ok(()))) | None => io::Error::other("the server ended"),
        }
    }

    /// Ends listening, and gives the requests that are under way so long.
    pub async fn shut_down(mut self, grace: Duration) {
        self.handle.graceful_shutdown(Some(grace));
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Lets no client keep a connection open by sending nothing, nor ask for much at once.
fn limit(builder: &mut Builder<TokioExecutor>) {
    builder
        .http1()
        .timer(TokioTimer::new())
        .max_buf_size(BUFFER)
        .header_read_timeout(SILENT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_send_buf_size(BUFFER)
        .initial_stream_window_size(BUFFER as u32)
        .initial_connection_window_size(BUFFER as u32)
        .keep_alive_interval(Some(SILENT))
        .keep_alive_timeout(PING);
}
