//! gRPC on the Unix sockets of device plugins, with messages as bytes.

use std::{future::Future, io, path::Path, time::Duration};

use axum::{Router, http::uri::PathAndQuery};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use nvlink_kubelet::socket;
use prost::bytes::{Buf, BufMut, Bytes};
use tokio::{
    net::{UnixListener, UnixStream},
    task::JoinSet,
    time::timeout,
};
use tonic::{
    Request, Response, Status, Streaming,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server,
    transport::Channel,
};

use super::{authority, crowd::Crowd, directories::AGAIN};

/// The largest message that is accepted, in bytes. A list of 1,000 devices has 100 KB.
const MOST_BYTES: usize = 4 << 20;
/// Connections to one socket, and calls at a time on each. The kubelet has one.
const MOST_CONNECTIONS: usize = 16;
const MOST_CALLS: u32 = 64;
/// How long a peer may take to begin with HTTP/2.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a silent peer is asked whether it is there, and how soon it must answer.
const PING: Duration = Duration::from_secs(20);
/// How long it may take to connect.
const CONNECT: Duration = Duration::from_secs(3);

/// Leaves messages as they are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// A program that serves on a socket.
#[derive(Clone, Debug)]
pub(super) struct Peer(Channel);

impl Peer {
    /// Connects to a socket, once: whoever replaces the socket is another peer.
    pub(super) async fn connect(at: &Path) -> Result<Self, Status> {
        let away = |reason: &dyn std::fmt::Display| {
            Status::unavailable(format!("cannot connect to {}: {reason}", at.display()))
        };
        match timeout(CONNECT, socket::connect(at)).await {
            Ok(connected) => connected.map(Self).map_err(|error| away(&error)),
            Err(_) => Err(away(&"it does not answer")),
        }
    }

    /// Makes a call with one message, which has one message as its answer.
    pub(super) async fn call(
        &self,
        path: PathAndQuery,
        message: Bytes,
        within: Duration,
    ) -> Result<Bytes, Status> {
        let ask = async {
            let mut grpc = self.ready().await?;
            let answer = grpc.unary(Request::new(message), path.clone(), Raw).await?;
            Ok(answer.into_inner())
        };
        match timeout(within, ask).await {
            Ok(answer) => answer,
            Err(_) => Err(Status::deadline_exceeded(format!(
                "no answer to {path} within {} s",
                within.as_secs()
            ))),
        }
    }

    /// Makes a call whose answer is a stream.
    pub(super) async fn stream(
        &self,
        path: PathAndQuery,
        message: Bytes,
    ) -> Result<Streaming<Bytes>, Status> {
        let mut grpc = self.ready().await?;
        let answer = grpc.server_streaming(Request::new(message), path, Raw);
        Ok(answer.await?.into_inner())
    }

    async fn ready(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.0.clone()).max_decoding_message_size(MOST_BYTES);
        let ready = grpc.ready().await;
        ready.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(grpc)
    }
}

/// An answer in HTTP.
pub(super) type Answer = axum::http::Response<tonic::body::Body>;

/// Answers a call with one message by one message.
pub(super) async fn answer<F>(
    request: axum::extract::Request,
    answer: impl Fn(Bytes) -> F + Clone + Send + 'static,
) -> Answer
where
    F: Future<Output = Result<Bytes, Status>> + Send + 'static,
{
    let service = tower::service_fn(move |question: Request<Bytes>| {
        let answer = answer(question.into_inner());
        async move { answer.await.map(Response::new) }
    });
    let grpc = server::Grpc::new(Raw).max_decoding_message_size(MOST_BYTES);
    { grpc }.unary(service, request).await
}

/// Listens on a socket, in place of whoever did before.
pub(super) fn listen(socket: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => UnixListener::bind(socket),
    }
}

/// A connection to a socket of this program.
pub(super) trait Visit: Send + Sync + 'static {
    /// Returns what answers its calls.
    fn router(&self) -> Router;

    /// Waits until it is time to close it.
    fn overdue(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Learns how it ended.
    fn ended(self, how: io::Result<()>)
    where
        Self: Sized,
    {
        // A peer that breaks the protocol loses its connection, and nobody else anything.
        drop(how);
    }
}

impl Visit for Router {
    fn router(&self) -> Router {
        self.clone()
    }
}

/// Serves until it is dropped, and closes all connections then.
pub(super) async fn serve<V: Visit>(
    listener: UnixListener,
    receive: impl Fn() -> V,
) -> io::Result<()> {
    let (mut crowd, mut connections) = (Crowd::default(), JoinSet::new());
    loop {
        let stream = accept(&listener).await?;
        while connections.try_join_next().is_some() {}
        let seat = loop {
            match crowd.enter(MOST_CONNECTIONS) {
                Some(seat) => break seat,
                None => drop(connections.join_next().await),
            }
        };
        let visit = receive();
        connections.spawn(async move {
            let router = seat.counting(visit.router());
            let ended = tokio::select! {
                ended = answer_calls(stream, router) => ended,
                () = seat.must_leave() => Err(io::Error::other("it made room for a new connection")),
                () = visit.overdue() => Ok(()),
            };
            visit.ended(ended);
        });
    }
}

/// Accepts a connection. Where the process has no file descriptor left, or the kernel no memory, some come
/// free again; its end would take the devices of the node away.
async fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    let mut told = false;
    loop {
        let error = match listener.accept().await {
            Ok((stream, _)) => return Ok(stream),
            Err(error) => error,
        };
        if error.kind() == io::ErrorKind::InvalidInput {
            return Err(error);
        }
        if !std::mem::replace(&mut told, true) {
            tracing::warn!(%error, "cannot accept a connection; retrying");
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Answers the calls of a connection until it ends.
async fn answer_calls(stream: UnixStream, router: Router) -> io::Result<()> {
    let stream = match timeout(PATIENCE, authority::without(stream)).await {
        Ok(stream) => stream?,
        Err(_) => {
            let seconds = PATIENCE.as_secs();
            return Err(io::Error::other(format!(
                "the peer was silent for {seconds} s"
            )));
        }
    };
    let service = TowerToHyperService::new(router);
    let connection = builder();
    let served = connection.serve_connection(TokioIo::new(stream), service);
    served.await.map_err(io::Error::other)
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new()).http2_only();
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MOST_CALLS)
        .keep_alive_interval(Some(PING))
        .keep_alive_timeout(PING);
    builder
}
