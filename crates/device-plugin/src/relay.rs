//! One resource: from the vendor's plugin to the kubelet, and calls back.

use std::{
    collections::hash_map::DefaultHasher,
    fs,
    hash::{Hash, Hasher},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::http::uri::PathAndQuery;
use nvlink_kubelet::devices;
use prost::{Message, bytes::Bytes};
use tokio::{
    sync::{oneshot, watch},
    time::{sleep, timeout},
};
use tonic::{Code, Status, Streaming};

use super::{
    directories::{AGAIN, Directories, KUBELET, PREFIX},
    health::{Health, Memory},
    messages::{LIST_AND_WATCH, ListAndWatchResponse, REGISTER},
    node::NodeView,
    registration::Registration,
    service::Service,
    statistics::Statistics,
    wire::{self, Peer},
};

/// How long the vendor's plugin may take for its first list of devices.
const FIRST: Duration = Duration::from_secs(5);
/// What a resource needs.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) registration: Registration,
    pub(super) memory: Arc<Memory>,
    pub(super) directories: Directories,
    pub(super) view: Arc<NodeView>,
    pub(super) statistics: Arc<Statistics>,
    /// The number of resources of GPUs that the kubelet has from this program.
    pub(super) offers: Arc<AtomicUsize>,
}

/// A resource that the kubelet has, until it is dropped.
struct Registered<'a> {
    relay: &'a Relay,
    gpus: bool,
}

impl<'a> Registered<'a> {
    fn new(relay: &'a Relay, gpus: bool) -> Self {
        let resource = relay.registration.resource();
        relay.statistics.registered(resource, true);
        relay.offers.fetch_add(gpus.into(), Ordering::Relaxed);
        Self { relay, gpus }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        let resource = self.relay.registration.resource();
        self.relay.statistics.registered(resource, false);
        let offers = &self.relay.offers;
        offers.fetch_sub(self.gpus.into(), Ordering::Relaxed);
    }
}

/// Removes a socket when it is dropped.
struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

impl Relay {
    /// Serves the resource to the kubelet until the vendor's plugin ends. Tells what the kubelet
    /// answered to the first registration.
    pub(super) async fn run(self, tell: oneshot::Sender<Result<(), Status>>) {
        let mut tell = Some(tell);
        let resource = self.registration.resource().to_owned();
        let ended = self.pass(&mut tell).await;
        tracing::warn!(
            resource,
            reason = ended.message(),
            "the device plugin is away"
        );
        self.statistics.devices(&resource, 0, 0);
        if let Some(tell) = tell {
            drop(tell.send(Err(ended)));
        }
    }

    /// Returns why it ended.
    async fn pass(&self, tell: &mut Option<oneshot::Sender<Result<(), Status>>>) -> Status {
        let vendor = self.directories.vendor.join(self.registration.endpoint());
        let (vendor, mut lists, first) = match open(&vendor).await {
            Ok(opened) => opened,
            Err(status) => return status,
        };
        let gpus = self.are_gpus(&first);
        let (memory, view) = (Arc::clone(&self.memory), Arc::clone(&self.view));
        let mut health = Health::new(self.registration.resource(), memory, view, first);
        let (send, devices) = watch::channel(health.list());
        let service = Arc::new(Service {
            resource: self.registration.resource().to_owned(),
            vendor,
            vendor_prefers: self.registration.prefers(),
            prefers: self.registration.prefers() || gpus,
            gpus,
            devices,
            preferred: Mutex::default(),
            view: Arc::clone(&self.view),
            statistics: Arc::clone(&self.statistics),
        });
        service.count();
        let watch = async {
            loop {
                tokio::select! {
                    list = lists.message() => match list {
                        Ok(Some(list)) => health.hear(list),
                        Ok(None) => return Status::unavailable("its stream of devices ended"),
                        Err(status) => return status,
                    },
                    () = self.view.node().changed() => health.look(),
                }
                let list = health.list();
                let changed = |sent: &mut Bytes| {
                    *sent != list && {
                        *sent = list;
                        true
                    }
                };
                if send.send_if_modified(changed) {
                    service.count();
                }
            }
        };
        tokio::select! {
            ended = watch => ended,
            refused = self.offer(&service, tell) => refused,
        }
    }

    /// Reports whether there are GPUs in a list of devices.
    fn are_gpus(&self, list: &Bytes) -> bool {
        let devices = ListAndWatchResponse::decode(list.clone()).unwrap_or_default();
        let uuid = |id: &str| {
            id.get(..4)
                .is_some_and(|start| start.eq_ignore_ascii_case("GPU-"))
        };
        devices::is_gpu_resource(self.registration.resource())
            || devices.devices.iter().any(|device| uuid(&device.id))
    }

    /// Registers with the kubelet, again and again when that restarts, and serves. Returns why the
    /// kubelet refused.
    async fn offer(
        &self,
        service: &Arc<Service>,
        tell: &mut Option<oneshot::Sender<Result<(), Status>>>,
    ) -> Status {
        let resource = self.registration.resource();
        let name = socket_name(resource);
        let socket = Socket(self.directories.kubelet.join(&name));
        let mut away = false;
        loop {
            match self.offer_once(service, &name, &socket, tell).await {
                Ok(()) => {
                    away = false;
                    tracing::info!(resource, "the kubelet restarted");
                    continue;
                }
                Err(status) if status.code() != Code::Unavailable => return status,
                Err(status) if !away => {
                    away = true;
                    let reason = status.message();
                    let what = "the kubelet does not have the resource yet: trying again";
                    tracing::warn!(resource, reason, "{what}");
                }
                Err(_) => {}
            }
            sleep(AGAIN).await;
        }
    }

    /// Registers, and serves until the kubelet restarts.
    async fn offer_once(
        &self,
        service: &Arc<Service>,
        name: &str,
        socket: &Socket,
        tell: &mut Option<oneshot::Sender<Result<(), Status>>>,
    ) -> Result<(), Status> {
        let listener = wire::listen(&socket.0).map_err(|error| {
            let socket = socket.0.display();
            Status::unavailable(format!("cannot listen on {socket}: {error}"))
        })?;
        let router = service.router();
        let register = async {
            let kubelet = self.register(name, service.prefers).await?;
            let _registered = Registered::new(self, service.gpus);
            let resource = self.registration.resource();
            tracing::info!(resource, "registered with the kubelet");
            if let Some(tell) = tell.take() {
                drop(tell.send(Ok(())));
            }
            self.until_lost(&socket.0, &kubelet).await;
            Ok(())
        };
        tokio::select! {
            served = wire::serve(listener, || router.clone()) => {
                let error = served.err().map(|error| error.to_string());
                Err(Status::unavailable(error.unwrap_or_default()))
            }
            ended = register => ended,
        }
    }

    /// Returns which socket of the kubelet it registered with.
    async fn register(&self, name: &str, prefers: bool) -> Result<Identity, Status> {
        let socket = self.directories.kubelet.join(KUBELET);
        let identity = Identity::of(&socket);
        let kubelet = Peer::connect(&socket).await?;
        let message = self.registration.moved(name, prefers);
        let path = PathAndQuery::from_static(REGISTER);
        kubelet
            .call(path, message, FIRST)
            .await
            .map_err(|status| match status.code() {
                Code::DeadlineExceeded | Code::Unknown => Status::unavailable(status.message()),
                _ => status,
            })?;
        identity.ok_or_else(|| Status::unavailable("the kubelet's socket is gone"))
    }

    /// Waits until the kubelet has removed the socket, or has another one itself.
    async fn until_lost(&self, socket: &Path, kubelet: &Identity) {
        let theirs = self.directories.kubelet.join(KUBELET);
        while socket.exists() && Identity::of(&theirs).is_none_or(|now| now == *kubelet) {
            sleep(AGAIN).await;
        }
    }
}

/// Which file a path leads to.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    /// Inodes are used again.
    changed: (i64, i64),
}

impl Identity {
    fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        Some(Self {
            device: found.dev(),
            inode: found.ino(),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

/// Returns the name of a resource's socket: short, because the path of a socket has at most 107
/// bytes.
fn socket_name(resource: &str) -> String {
    let mut hasher = DefaultHasher::new();
    resource.hash(&mut hasher);
    let readable: String = resource.chars().take(24).collect();
    let readable = readable.replace('/', "_");
    format!("{PREFIX}{readable}-{:08x}.sock", hasher.finish() as u32)
}

/// Connects to a vendor's plugin, and returns also its lists of devices and the first of them.
async fn open(socket: &Path) -> Result<(Peer, Streaming<Bytes>, Bytes), Status> {
    let vendor = Peer::connect(socket).await?;
    let path = PathAndQuery::from_static(LIST_AND_WATCH);
    let list = async {
        let mut lists = vendor.stream(path, Bytes::new()).await?;
        let first = lists.message().await?;
        let first = first.ok_or_else(|| Status::unavailable("it lists no devices"))?;
        Ok((lists, first))
    };
    match timeout(FIRST, list).await {
        Ok(Ok((lists, first))) => Ok((vendor, lists, first)),
        Ok(Err(status)) => Err(status),
        Err(_) => Err(Status::unavailable("it does not list its devices")),
    }
}
