//! Accepts connections, with and without TLS, while there are not too many, and
//! replaces responses that memory has no room for by HTTP 503.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::HttpBody,
    http::{Request, StatusCode, header},
    response::{IntoResponse, Response},
};
use axum_server::{accept::Accept, tls_rustls::RustlsAcceptor};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tower::Service;

use super::{
    paced::Paced,
    places::{Peer, Places, Seat},
};

/// Accepts connections, each in a place. Requests carry their [`Peer`] as an extension.
#[derive(Clone, Debug)]
pub struct Acceptor {
    tls: Option<RustlsAcceptor>,
    places: Places,
}

impl Acceptor {
    /// Returns an acceptor; without `tls` it accepts plain text.
    #[must_use]
    pub fn new(tls: Option<RustlsAcceptor>, places: Places) -> Self {
        Self { tls, places }
    }
}

/// A connection with or without TLS.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection with or without TLS, in its place.
type Placed = Paced<Box<dyn Stream>>;
/// Size of each of the kernel's two buffers of a connection, for sending and
/// for receiving, in bytes. The kernel doubles it for its own bookkeeping; by
/// default it would use megabytes.
const SOCKET_BUFFER: usize = 128 << 10;

impl<S: Send + 'static> Accept<TcpStream, S> for Acceptor {
    type Stream = Placed;
    type Service = Counted<S>;
    type Future = Pin<Box<dyn Future<Output = io::Result<(Placed, Counted<S>)>> + Send>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let (tls, places) = (self.tls.clone(), self.places.clone());
        Box::pin(async move {
            let socket = SockRef::from(&stream);
            socket.set_tcp_nodelay(true)?;
            socket.set_send_buffer_size(SOCKET_BUFFER)?;
            socket.set_recv_buffer_size(SOCKET_BUFFER)?;
            let peer = Peer::of(stream.peer_addr()?.ip());
            let place = places.enter(peer);
            let mut place = place.ok_or_else(|| io::Error::other("no room"))?;
            let stream: Box<dyn Stream> = match tls {
                None => Box::new(stream),
                Some(tls) => {
                    let accepted = tokio::select! {
                        accepted = tls.accept(stream, ()) => accepted,
                        () = place.lost() => Err(io::ErrorKind::ConnectionAborted.into()),
                    };
                    let failed =
                        |error: &io::Error| tracing::debug!(%peer, %error, "TLS handshake");
                    Box::new(accepted.inspect_err(failed)?.0)
                }
            };
            let seat = place.seat();
            Ok((Paced::new(stream, place), Counted { service, seat }))
        })
    }
}

/// The service of one connection.
#[derive(Clone, Debug)]
pub struct Counted<S> {
    service: S,
    seat: Arc<Seat>,
}

impl<S, B> Service<Request<B>> for Counted<S>
where
    S: Service<Request<B>, Response = Response>,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let seat = Arc::clone(&self.seat);
        let untaken = seat.pace.ask();
        request.extensions_mut().insert(seat.peer);
        let answer = self.service.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            let bytes = usize::try_from(answer.body().size_hint().lower());
            let Some(held) = seat.hold(bytes.unwrap_or(usize::MAX)) else {
                let later = [(header::RETRY_AFTER, "1")];
                let reason = "too many responses are pending: try again\n";
                return Ok((StatusCode::SERVICE_UNAVAILABLE, later, reason).into_response());
            };
            Ok(answer.map(|body| untaken.with(body, held)))
        })
    }
}
