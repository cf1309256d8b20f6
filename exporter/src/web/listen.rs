//! Serves on several addresses, with and without TLS, within bounds.

use std::{
    future::Future,
    io,
    net::{SocketAddr, TcpListener},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::HttpBody,
    http::{Request, StatusCode, header},
    response::{IntoResponse, Response},
};
use axum_server::{Handle, accept::Accept, tls_rustls::RustlsAcceptor};
use hyper_util::{
    rt::{TokioExecutor, TokioTimer},
    server::conn::auto::Builder,
};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinSet,
};
use tower::Service;

use super::{
    Web,
    connection::{Paced, SILENT},
    places::{Peer, Places, Seat},
};

/// Requests of HTTP/2 that are under way at a time on one connection: an answer
/// waits whole in memory for a client that does not read it.
const MAX_STREAMS: u32 = 8;
/// What the kernel keeps of what was sent and not taken, and of what came and
/// was not read, bytes a connection; it takes twice as much for itself. Left
/// alone it takes megabytes.
const SOCKET_BUFFER: usize = 128 << 10;
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
        let acceptor = Acceptor {
            tls: web.tls.clone().map(RustlsAcceptor::new),
            places: web.places.clone(),
        };
        let mut tasks = JoinSet::new();
        for listener in listeners {
            listener.set_nonblocking(true)?;
            // Connections have them from their listener.
            let socket = SockRef::from(&listener);
            socket.set_send_buffer_size(SOCKET_BUFFER)?;
            socket.set_recv_buffer_size(SOCKET_BUFFER)?;
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

/// Takes connections, while there are not too many.
#[derive(Clone, Debug)]
struct Acceptor {
    tls: Option<RustlsAcceptor>,
    places: Places,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

type Accepted<S> = io::Result<(Paced<Box<dyn Stream>>, Counted<S>)>;

impl<S: Send + 'static> Accept<TcpStream, S> for Acceptor {
    type Stream = Paced<Box<dyn Stream>>;
    type Service = Counted<S>;
    type Future = Pin<Box<dyn Future<Output = Accepted<S>> + Send>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let (tls, places) = (self.tls.clone(), self.places.clone());
        Box::pin(async move {
            stream.set_nodelay(true)?;
            let peer = Peer(stream.peer_addr()?.ip().to_canonical());
            let place = places.enter(peer);
            let mut place = place.ok_or_else(|| io::Error::other("no room"))?;
            let stream: Box<dyn Stream> = match tls {
                None => Box::new(stream),
                Some(tls) => {
                    let accepted = tokio::select! {
                        accepted = tls.accept(stream, ()) => accepted,
                        () = place.lost() => Err(io::ErrorKind::ConnectionAborted.into()),
                    };
                    let failed = |error: &io::Error| tracing::debug!(peer = %peer.0, %error, "TLS handshake");
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
struct Counted<S> {
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
        let mut untaken = seat.pace.ask();
        request.extensions_mut().insert(seat.peer);
        let answer = self.service.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            let bytes = answer.body().size_hint().lower() as usize;
            if !seat.has_room(bytes) {
                let later = [(header::RETRY_AFTER, "1")];
                let reason = "too many answers are under way\n";
                return Ok((StatusCode::SERVICE_UNAVAILABLE, later, reason).into_response());
            }
            untaken.hold(bytes);
            Ok(answer.map(|body| untaken.with(body)))
        })
    }
}
