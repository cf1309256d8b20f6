//! Serves on several addresses, with and without TLS, within bounds.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use crate::connections::{Acceptor, Bounds};
use axum::Router;
use axum_server::{Handle, tls_rustls::RustlsAcceptor};
use hyper_util::{
    rt::{TokioExecutor, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::task::JoinSet;

use super::Web;

/// What clients may use, in total over all addresses.
pub(super) const BOUNDS: Bounds = Bounds {
    connections: 128,
    connections_of_peer: 32,
    bytes: 32 << 20,
    bytes_of_peer: 16 << 20,
    patience: Duration::from_secs(5),
    taken: Duration::from_secs(20),
    silent: SILENT,
};

/// How long a connection may be silent: a client that scrapes once a minute keeps
/// its connection. Hyper's own timeout for a request head does not run while Hyper
/// waits to see which version of HTTP a client uses.
const SILENT: Duration = Duration::from_secs(75);

/// Maximum number of simultaneous HTTP/2 requests on one connection: the answer
/// for a client that does not read it stays in memory as a whole.
const MAX_STREAMS: u32 = 8;
/// Size of the buffers for a request's head and for an answer that the socket does
/// not accept yet, in bytes.
const BUFFER: usize = 64 << 10;
/// How soon a peer must answer a ping of HTTP/2.
const PING: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct Servers {
    handle: Handle<SocketAddr>,
    tasks: JoinSet<io::Result<()>>,
}

impl Servers {
    /// Serves `router` unprotected on all listeners; [`Web::protect`] protects it.
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
            // Without TLS, only a client with prior knowledge could use HTTP/2: none does.
            if !web.http2 || !web.is_tls() {
                server = server.http1_only();
            }
            tasks.spawn(server.serve(router.clone().into_make_service()));
        }
        Ok(Self { handle, tasks })
    }

    /// Waits until one of the servers ends, which is a failure.
    pub async fn ended(&mut self) -> io::Error {
        match self.tasks.join_next().await {
            Some(Ok(Err(error))) => error,
            Some(Err(error)) => io::Error::other(error),
            Some(Ok(Ok(()))) | None => io::Error::other("the server ended"),
        }
    }

    /// Stops listening, and waits up to `grace` for the requests in progress.
    pub async fn shut_down(mut self, grace: Duration) {
        self.handle.graceful_shutdown(Some(grace));
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Prevents clients from keeping a connection open without sending anything, and from
/// requesting much at once.
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
