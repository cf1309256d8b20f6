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

use axum::{Router, response::Response};
use axum_server::{Handle, accept::Accept, tls_rustls::RustlsAcceptor};
use hyper_util::{
    rt::{TokioExecutor, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};
use tower::Service;

use super::{
    Web,
    pace::{Pace, Paced},
};

/// Connections that are open at a time, over all addresses; more are closed at once.
const MAX_CONNECTIONS: usize = 128;
/// What a client gets to send a request's head, the idle time before it
/// included: one that scrapes once a minute keeps its connection.
const HEAD: Duration = Duration::from_secs(75);
/// Requests of HTTP/2 that are under way at a time on one connection: an answer
/// waits whole in memory for a client that does not read it.
const MAX_STREAMS: u32 = 8;
/// How soon a peer must answer a ping of HTTP/2.
const PING: Duration = Duration::from_secs(20);

/// Running servers.
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
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
        };
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
        .header_read_timeout(HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .keep_alive_interval(Some(HEAD))
        .keep_alive_timeout(PING);
}

/// Takes connections, while there are not too many.
#[derive(Clone, Debug)]
struct Acceptor {
    tls: Option<RustlsAcceptor>,
    connections: Arc<Semaphore>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

type Accepted<S> = io::Result<(Paced<Box<dyn Stream>>, Counted<S>)>;

impl<S: Send + 'static> Accept<TcpStream, S> for Acceptor {
    type Stream = Paced<Box<dyn Stream>>;
    type Service = Counted<S>;
    type Future = Pin<Box<dyn Future<Output = Accepted<S>> + Send>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let permit = Arc::clone(&self.connections).try_acquire_owned();
        let tls = self.tls.clone();
        Box::pin(async move {
            let permit = permit.map_err(|error| {
                tracing::debug!("{MAX_CONNECTIONS} connections are open: closing one more");
                io::Error::other(error)
            })?;
            stream.set_nodelay(true)?;
            let peer = stream.peer_addr()?;
            let stream: Box<dyn Stream> = match tls {
                None => Box::new(stream),
                Some(tls) => {
                    let failed =
                        |error: &io::Error| tracing::debug!(%peer, %error, "TLS handshake");
                    Box::new(tls.accept(stream, ()).await.inspect_err(failed)?.0)
                }
            };
            let (permit, pace) = (Arc::new(permit), Pace::default());
            let stream = Paced::new(stream, pace.clone());
            let service = Counted {
                service,
                pace,
                permit,
            };
            Ok((stream, service))
        })
    }
}

/// The service of one connection; counts as long as it lives.
#[derive(Clone, Debug)]
struct Counted<S> {
    service: S,
    pace: Pace,
    #[expect(dead_code, reason = "held, not read")]
    permit: Arc<OwnedSemaphorePermit>,
}

impl<S, R> Service<R> for Counted<S>
where
    S: Service<R, Response = Response>,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let untaken = self.pace.ask();
        let answer = self.service.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| untaken.with(body))) })
    }
}
