//! A device plugin that serves the GPUs of a recording to a kubelet as `nvidia.com/gpu`, as
//! NVIDIA's plugin does: devices are UUIDs, and a container learns its GPUs from
//! `NVIDIA_VISIBLE_DEVICES`.

use std::{
    future::Future,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use axum::{Router, extract::Request, http::Uri, http::uri::PathAndQuery, routing::post};
use futures::{Stream, StreamExt, stream};
use hyper_util::rt::TokioIo;
use prost::Message;
use serde_json::Value;
use tokio::{
    net::{UnixListener, UnixStream},
    time::sleep,
};
use tonic::{Response, Status, client, server, transport::Endpoint};
use tonic_prost::ProstCodec;

mod allocator;
mod choice;
mod messages;

pub use allocator::Allocator;
pub use choice::Choice;

use choice::Board;
use messages::{
    ALLOCATE, AllocateRequest, AllocateResponse, Allocation, Device, Devices, Empty, HEALTHY, Ids,
    LIST_AND_WATCH, NumaNode, OPTIONS, Options, PREFER, PreferRequest, PreferResponse, REGISTER,
    Registration, Topology, VERSION,
};

const RESOURCE: &str = "nvidia.com/gpu";
const SOCKET: &str = "nvidia-gpu.sock";
/// Time between two looks for the kubelet.
const LOOK: Duration = Duration::from_millis(100);

type Answer = axum::http::Response<tonic::body::Body>;

/// The plugin of one node.
#[derive(Debug)]
pub(super) struct Plugin {
    /// The kubelet's directory of device plugins, with its own socket `kubelet.sock`.
    directory: PathBuf,
    resource: String,
    socket: String,
    board: Arc<Board>,
    choice: Choice,
    watches: Watches,
}

/// How many times a kubelet has begun to watch the devices: once each time that it starts.
#[derive(Clone, Debug, Default)]
pub(super) struct Watches(Arc<AtomicUsize>);

impl Watches {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Plugin {
    pub(super) fn new(directory: &Path, recording: &Value, choice: Choice) -> Self {
        Self {
            directory: directory.to_owned(),
            resource: RESOURCE.to_owned(),
            socket: SOCKET.to_owned(),
            board: Arc::new(Board::new(recording)),
            choice,
            watches: Watches::default(),
        }
    }

    /// Serves the devices as another resource, on a socket of its own.
    pub(super) fn named(mut self, resource: &str, socket: &str) -> Self {
        self.resource = resource.to_owned();
        self.socket = socket.to_owned();
        self
    }

    /// Counts watches together with a plugin that ended.
    pub(super) fn counting(mut self, watches: &Watches) -> Self {
        self.watches = watches.clone();
        self
    }

    pub(super) fn watches(&self) -> Watches {
        self.watches.clone()
    }

    /// Serves until it is dropped. A kubelet that starts deletes all sockets in the directory, and
    /// the plugin then registers again.
    pub(super) async fn run(self) {
        loop {
            // The kubelet may not run yet or any more.
            let _ = self.serve().await;
            sleep(LOOK).await;
        }
    }

    /// Serves until the socket is deleted.
    async fn serve(&self) -> Result<()> {
        let socket = self.directory.join(&self.socket);
        // An old one may be left.
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket)
            .with_context(|| format!("cannot listen on {}", socket.display()))?;
        let serve = async { axum::serve(listener, self.router()).await };
        let register = async {
            self.register().await?;
            while socket.exists() {
                sleep(LOOK).await;
            }
            anyhow::Ok(())
        };
        tokio::select! {
            served = serve => Ok(served?),
            registered = register => registered,
        }
    }

    async fn register(&self) -> Result<()> {
        let path = self.directory.join("kubelet.sock");
        let connect = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { io::Result::Ok(TokioIo::new(UnixStream::connect(path).await?)) }
        });
        let endpoint = Endpoint::from_static("http://localhost");
        let mut kubelet = client::Grpc::new(endpoint.connect_with_connector(connect).await?);
        kubelet.ready().await?;
        let registration = Registration {
            version: VERSION.to_owned(),
            endpoint: self.socket.clone(),
            resource: self.resource.clone(),
            options: Some(options()),
        };
        let codec = ProstCodec::<Registration, Empty>::default();
        let request = tonic::Request::new(registration);
        let path = PathAndQuery::from_static(REGISTER);
        kubelet.unary(request, path, codec).await?;
        Ok(())
    }

    fn router(&self) -> Router {
        let (board, choice) = (Arc::clone(&self.board), self.choice);
        let prefer = move |wishes: PreferRequest| {
            let ids = |wish| Ids {
                ids: board.prefer(wish, choice),
            };
            PreferResponse {
                containers: wishes.containers.iter().map(ids).collect(),
            }
        };
        let board = Arc::clone(&self.board);
        let watches = self.watches();
        let list = post(move |request| {
            watches.0.fetch_add(1, Ordering::Relaxed);
            list(board, request)
        });
        Router::new()
            .route(
                OPTIONS,
                post(|request| unary(request, |Empty {}| options())),
            )
            .route(LIST_AND_WATCH, list)
            .route(PREFER, post(move |request| unary(request, prefer)))
            .route(ALLOCATE, post(|request| unary(request, allocate)))
    }
}

fn options() -> Options {
    Options {
        pre_start: false,
        prefers: true,
    }
}

/// Names the GPUs by UUID. NVIDIA's plugin names them in any order; here it is that of the UUIDs,
/// which is not that of the indices either.
fn allocate(request: AllocateRequest) -> AllocateResponse {
    let allocation = |mut container: Ids| {
        container.ids.sort();
        let variable = ("NVIDIA_VISIBLE_DEVICES".to_owned(), container.ids.join(","));
        Allocation {
            environment: [variable].into(),
        }
    };
    AllocateResponse {
        containers: request.containers.into_iter().map(allocation).collect(),
    }
}

/// Sends all devices once. The stream stays open, because the kubelet drops the devices of a
/// stream that ends.
async fn list(board: Arc<Board>, request: Request) -> Answer {
    let device = |(uuid, numa): (&String, Option<i64>)| Device {
        id: uuid.clone(),
        health: HEALTHY.to_owned(),
        topology: numa.map(|id| Topology {
            nodes: vec![NumaNode { id }],
        }),
    };
    let devices = Devices {
        devices: board.devices().map(device).collect(),
    };
    let watch = tower::service_fn(move |_: tonic::Request<Empty>| {
        let devices = devices.clone();
        async move { Ok::<_, Status>(Response::new(once(devices))) }
    });
    server::Grpc::new(ProstCodec::<Devices, Empty>::default())
        .server_streaming(watch, request)
        .await
}

fn once<T>(message: T) -> impl Stream<Item = Result<T, Status>> {
    stream::once(async { Ok(message) }).chain(stream::pending())
}

/// Answers a call with one message by one message.
fn unary<Q, A>(
    request: Request,
    answer: impl Fn(Q) -> A + Clone + Send + 'static,
) -> impl Future<Output = Answer> + Send
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
{
    let service = tower::service_fn(move |question: tonic::Request<Q>| {
        let answer = answer.clone();
        async move { Ok::<_, Status>(Response::new(answer(question.into_inner()))) }
    });
    async move {
        server::Grpc::new(ProstCodec::<A, Q>::default())
            .unary(service, request)
            .await
    }
}
