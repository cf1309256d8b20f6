//! Serves the admission endpoint over TLS, within bounds.
//!
//! What a connection may hold beside the reviews that have room: of HTTP/2,
//! `WINDOW` bytes that arrived and were not read yet, and the heads of
//! `MAX_STREAMS` requests; of HTTP/1, `BUFFER`. Those of all 64 connections
//! come to 128 MiB, from clients that mean harm; an API server's to next to
//! nothing, because what it sends is read as it arrives. Answers that are not
//! taken come to 16 MiB.

use std::{io, net::SocketAddr, time::Duration};

use axum::Router;
use axum_server::{
    Handle,
    tls_rustls::{RustlsAcceptor, RustlsConfig},
};
use hyper_util::{
    rt::{TokioExecutor, TokioTimer},
    server::conn::auto::Builder,
};
use nvlink_runtime::connections::{Acceptor, Bounds, CutOffs, Places};

/// An API server has one connection, or a few where more requests are under way
/// than one takes; several may come from one address. A new one always finds a
/// place: nobody keeps an API server out.
const BOUNDS: Bounds = Bounds {
    connections: 64,
    connections_of_peer: 64,
    bytes: 16 << 20,
    bytes_of_peer: 8 << 20,
    patience: Duration::ZERO,
    // The longest that a review may take, and as long as a slow network may need.
    taken: Duration::from_secs(45),
    silent: Duration::from_secs(75),
};

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
/// Bytes of HTTP/1 that are read ahead, and of an answer that the socket does not take.
const BUFFER: usize = 64 << 10;
/// What a client gets to send a request's head; idle HTTP/1 connections end after it too.
const HEAD: Duration = Duration::from_secs(5);

/// Serves `router` on `address` until `handle` says otherwise. Who is cut off
/// is counted in `cut_offs`.
///
/// # Errors
/// When it cannot listen.
pub async fn serve(
    address: SocketAddr,
    tls: RustlsConfig,
    handle: Handle<SocketAddr>,
    router: Router,
    cut_offs: CutOffs,
) -> io::Result<()> {
    let tls = Some(RustlsAcceptor::new(tls));
    let places = Places::new(BOUNDS).counting(cut_offs);
    let mut server = axum_server::bind(address)
        .acceptor(Acceptor::new(tls, places))
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
    let acceptor = Acceptor::new(None, Places::new(BOUNDS));
    let mut server = axum_server::from_tcp(listener)?.acceptor(acceptor);
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
        .max_send_buf_size(BUFFER)
        .max_header_list_size(LONGEST_HEAD)
        .keep_alive_interval(Some(HEAD * 6))
        .keep_alive_timeout(HEAD);
}
