//! Serves the admission endpoint over TLS, within bounds.
//!
//! What a connection may hold beside the reviews that have room: of HTTP/2,
//! [`WINDOW`] bytes that arrived and were not read yet, and the heads of
//! [`MAX_STREAMS`] requests; of HTTP/1, [`BUFFER`]. Those of all connections
//! come to 128 MiB, from clients that mean harm; an API server's to next to
//! nothing, because what it sends is read as it arrives.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::Router;
use axum_server::{
    Handle,
    accept::Accept,
    tls_rustls::{RustlsAcceptor, RustlsConfig},
};
use hyper_util::{
    rt::{TokioExecutor, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tower::Service;

/// Connections that are open at a time; more are closed at once. An API server
/// has one, or a few where more requests are under way than one takes.
const MAX_CONNECTIONS: usize = 64;
/// Requests of HTTP/2 that are under way at a time on one connection: as many
/// as an API server's own.
const MAX_STREAMS: u32 = 250;
/// What a client may send of one request ahead of its being read, in bytes:
/// some that wait for room do not use up the connection's window.
const STREAM_WINDOW: u32 = 32 << 10;
/// The same of all requests of a connection, in bytes.
const WINDOW: u32 = 1 << 20;
/// The longest head of a request, in bytes: an API server's has some 300.
const LONGEST_HEAD: u32 = 4 << 10;
/// Bytes of HTTP/1 that are read ahead.
const BUFFER: usize = 64 << 10;
/// What a client gets to send a request's head; idle HTTP/1 connections end after it too.
const HEAD: Duration = Duration::from_secs(5);

/// Serves `router` on `address` until `handle` says otherwise.
///
/// # Errors
/// When it cannot listen.
pub async fn serve(
    address: SocketAddr,
    tls: RustlsConfig,
    handle: Handle<SocketAddr>,
    router: Router,
) -> io::Result<()> {
    let mut server = axum_server::bind(address)
        .acceptor(Acceptor {
            tls: RustlsAcceptor::new(tls),
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
        })
        .handle(handle);
    limit(server.http_builder());
    server.serve(router.into_make_service()).await
}

/// Lets no client keep a connection open by sending nothing, nor send much at once.
fn limit(builder: &mut Builder<TokioExecutor>) {
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(BUFFER);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(LONGEST_HEAD)
        .keep_alive_interval(Some(HEAD * 6))
        .keep_alive_timeout(HEAD);
}

/// Takes connections, while there are not too many.
#[derive(Clone, Debug)]
struct Acceptor {
    tls: RustlsAcceptor,
    connections: Arc<Semaphore>,
}

type Accepted<T, S> = io::Result<(T, Counted<S>)>;

impl<S: Send + 'static> Accept<TcpStream, S> for Acceptor {
    type Stream = <RustlsAcceptor as Accept<TcpStream, S>>::Stream;
    type Service = Counted<S>;
    type Future = Pin<Box<dyn Future<Output = Accepted<Self::Stream, S>> + Send>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let permit = Arc::clone(&self.connections).try_acquire_owned();
        let tls = self.tls.clone();
        Box::pin(async move {
            let permit = permit.map_err(|error| {
                tracing::warn!("{MAX_CONNECTIONS} connections are open: closing one more");
                io::Error::other(error)
            })?;
            stream.set_nodelay(true)?;
            let (stream, service) = tls.accept(stream, service).await?;
            let permit = Arc::new(permit);
            Ok((stream, Counted { service, permit }))
        })
    }
}

/// The service of one connection; counts as long as it lives.
#[derive(Clone, Debug)]
struct Counted<S> {
    service: S,
    #[expect(dead_code, reason = "held, not read")]
    permit: Arc<OwnedSemaphorePermit>,
}

impl<S: Service<R>, R> Service<R> for Counted<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        self.service.call(request)
    }
}
