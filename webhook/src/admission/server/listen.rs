//! Serves the admission endpoint over TLS, within bounds.
//!
//! What a connection may hold beside the reviews that have room: of HTTP/2,
//! `WINDOW` bytes that arrived and were not read yet, and the heads of
//! `MAX_STREAMS` requests; of HTTP/1, `BUFFER`. Those of all 64 connections
//! come to 128 MiB, from clients that mean harm; an API server's to next to
//! nothing, because what it sends is read as it arrives.

use std::{future::Future, io, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

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
use tokio::net::TcpStream;

use super::places::{Placed, Places};

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
            places: Arc::default(),
        })
        .handle(handle);
    limit(server.http_builder());
    server.serve(router.into_make_service()).await
}

/// Serves `router` in plain text on `listener`, within the same bounds: probes
/// get through whoever else is connected. Never ends but by failure.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve_plain(listener: std::net::TcpListener, router: Router) -> io::Result<()> {
    let places = Arc::default();
    let mut server = axum_server::from_tcp(listener)?.acceptor(PlainAcceptor { places });
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

/// Takes connections, each in a place.
#[derive(Clone, Debug)]
struct Acceptor {
    tls: RustlsAcceptor,
    places: Arc<Places>,
}

type Accepted<S> = <RustlsAcceptor as Accept<Placed<TcpStream>, S>>::Stream;

impl<S: Send + 'static> Accept<TcpStream, S> for Acceptor {
    type Stream = Accepted<S>;
    type Service = S;
    type Future = Pin<Box<dyn Future<Output = io::Result<(Accepted<S>, S)>> + Send>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let Self { tls, places } = self.clone();
        Box::pin(async move {
            stream.set_nodelay(true)?;
            let peer = stream.peer_addr()?.ip();
            tls.accept(places.take(stream, peer), service).await
        })
    }
}

/// The same without TLS.
#[derive(Clone, Debug)]
struct PlainAcceptor {
    places: Arc<Places>,
}

impl<S> Accept<TcpStream, S> for PlainAcceptor {
    type Stream = Placed<TcpStream>;
    type Service = S;
    type Future = std::future::Ready<io::Result<(Placed<TcpStream>, S)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let peer = stream.set_nodelay(true).and_then(|()| stream.peer_addr());
        let placed = peer.map(|peer| (self.places.take(stream, peer.ip()), service));
        std::future::ready(placed)
    }
}
