//! Serves the admission endpoint over TLS, within bounds.
//!
//! Memory that a connection may hold in addition to reviews that have room: with
//! HTTP/2, `WINDOW` bytes that arrived and were not read yet, and the heads of
//! `MAX_STREAMS` requests; with HTTP/1, `BUFFER`. For all 64 connections this is
//! at most 128 MiB, if the clients are malicious. An API server's connections
//! hold almost nothing, because its data is read as it arrives. Responses that
//! clients do not read hold at most 16 MiB.

use std::{io, net::SocketAddr, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderValue, Version, header},
    middleware::{self, Next},
    response::Response,
};
use axum_server::{
    Handle,
    tls_rustls::{RustlsAcceptor, RustlsConfig},
};
use hyper_util::{
    rt::{TokioExecutor, TokioTimer},
    server::conn::auto::Builder,
};
use nvlink_runtime::connections::{Acceptor, Bounds, CutOffs, Places};
use tokio::sync::watch;

/// An API server has one connection, or a few if it sends more concurrent requests
/// than fit one; several API servers may have the same address. A new connection
/// always gets a place, so nobody can keep an API server out.
const BOUNDS: Bounds = Bounds {
    connections: 64,
    connections_of_peer: 64,
    bytes: 16 << 20,
    bytes_of_peer: 8 << 20,
    patience: Duration::ZERO,
    // The longest that a review may take, plus time for a slow network.
    taken: Duration::from_secs(45),
    silent: IDLE,
};

/// How long a connection may do nothing. API servers speak HTTP/1.1 to webhooks (`NextProtos` in
/// k8s.io/apiserver, pkg/util/webhook/client.go, v0.36.3), as the scheduler may to extenders. Go's
/// transport closes a connection that was idle for 90 s, and does not repeat a POST of which it has
/// written a part. So a server that closes first now and then fails a call, and with it a pod.
const IDLE: Duration = Duration::from_secs(100);

/// Concurrent HTTP/2 requests on one connection: the API server's own limit.
const MAX_STREAMS: u32 = 250;
/// Bytes of one request that a client may send before they are read. It is less
/// than `WINDOW`, so that a few requests that wait for room do not block the
/// whole connection.
const STREAM_WINDOW: u32 = 32 << 10;
/// The same for all requests of a connection, in bytes.
const WINDOW: u32 = 1 << 20;
/// The longest head of a request, in bytes: an API server's has about 300.
const LONGEST_HEAD: u32 = 4 << 10;
/// Bytes read ahead on HTTP/1, and bytes of a response that wait for the socket.
const BUFFER: usize = 64 << 10;
/// The time between two pings on HTTP/2, and for their answers.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(5);

/// Serves `router` on `address` until `handle` stops it. Counts clients that are
/// cut off in `cut_offs`. Once `leaving` is true, clients of HTTP/1 are asked to connect
/// elsewhere, so that none has a connection that it uses when `handle` closes it.
///
/// # Errors
/// When it cannot listen.
pub async fn serve(
    address: SocketAddr,
    tls: RustlsConfig,
    handle: Handle<SocketAddr>,
    router: Router,
    cut_offs: CutOffs,
    leaving: watch::Receiver<bool>,
) -> io::Result<()> {
    let router = router.layer(middleware::from_fn_with_state(leaving, part));
    let tls = Some(RustlsAcceptor::new(tls));
    let places = Places::new(BOUNDS).counting(cut_offs);
    let mut server = axum_server::bind(address)
        .acceptor(Acceptor::new(tls, places))
        .handle(handle);
    limit(server.http_builder());
    server.serve(router.into_make_service()).await
}

/// HTTP/2 has GOAWAY for it, which hyper sends when `handle` stops the server.
async fn part(
    State(leaving): State<watch::Receiver<bool>>,
    request: Request,
    next: Next,
) -> Response {
    let one = request.version() < Version::HTTP_2;
    let mut response = next.run(request).await;
    if one && *leaving.borrow() {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}

/// Serves `router` in plain text on `listener`, within the same bounds, so that
/// probes get through whoever else is connected. Ends only with an error.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve_plain(listener: std::net::TcpListener, router: Router) -> io::Result<()> {
    let acceptor = Acceptor::new(None, Places::new(BOUNDS));
    let mut server = axum_server::from_tcp(listener)?.acceptor(acceptor);
    limit(server.http_builder());
    server.serve(router.into_make_service()).await
}

/// Limits how long a client may keep a connection open without sending anything,
/// and how much it may send at once.
fn limit(builder: &mut Builder<TokioExecutor>) {
    builder
        .http1()
        .timer(TokioTimer::new())
        // Also the time for the head of a request: hyper counts from the end of the one before.
        .header_read_timeout(IDLE)
        .max_buf_size(BUFFER);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_send_buf_size(BUFFER)
        .max_header_list_size(LONGEST_HEAD)
        .keep_alive_interval(Some(PING))
        .keep_alive_timeout(PONG);
}
