//! `device-plugin`: stands between the kubelet and the vendor's device plugin, so that a container
//! gets the GPUs that are best connected, in the order of their ring.
//!
//! The vendor's plugin registers with a socket of this program as with the kubelet's
//! ([`Proxy`]), and this program registers each resource with the kubelet under its own name
//! (`relay`). Calls and answers pass through as bytes, but for two: preferences for whole GPUs are
//! answered by the search on the node's graph (`board`), and the answer to the allocation of whole
//! GPUs gets their order as variables (`environment`).
//!
//! After a restart, the vendor's plugin registers again, because this program removes all sockets in
//! its directory as a kubelet does. All that is kept is which GPUs were unhealthy (`health`).

mod authority;
mod board;
mod environment;
mod health;
mod label;
mod messages;
mod registration;
mod relay;
mod service;
mod statistics;
mod visitors;
mod wire;

use std::{
    collections::HashMap,
    convert::Infallible,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{Router, routing::post};
use prost::bytes::Bytes;
use tokio::{
    sync::{Mutex as AsyncMutex, oneshot},
    task::JoinHandle,
    time::timeout,
};
use tonic::Status;

pub use self::label::Label;
use self::{
    board::Board,
    health::{Evidence, Memory},
    registration::Registration,
    relay::{PREFIX, Relay},
    statistics::Statistics,
    visitors::{Attempt, Visitor, Visitors},
};
use crate::snapshot::Latest;

/// The kubelet's socket in its directory, and this program's in the vendor's.
const KUBELET: &str = "kubelet.sock";
/// A file that one process at a time locks.
const LOCK: &str = "nvlink-domains.lock";
/// The most resources at a time. A node has a few.
const MOST_RESOURCES: usize = 64;
/// Time between two looks for device plugins that do not register.
const LOOK: Duration = Duration::from_secs(60);
/// Time between two attempts.
const AGAIN: Duration = Duration::from_millis(200);
/// How long a registration waits for the kubelet's answer. NVIDIA's plugin (0.20.0) waits without a
/// limit, and looks neither for a restart nor for a signal meanwhile.
const REGISTER: Duration = Duration::from_secs(5);

/// The directories of sockets.
#[derive(Clone, Debug)]
pub struct Directories {
    /// The kubelet's.
    pub kubelet: PathBuf,
    /// The one that the vendor's plugin takes for the kubelet's.
    pub vendor: PathBuf,
}

/// Stands between the kubelet and the vendors' device plugins of a node.
#[derive(Debug)]
pub struct Proxy {
    directories: Directories,
    boards: Arc<Boards>,
    statistics: Arc<Statistics>,
    visitors: Arc<Visitors>,
    /// Read when it is needed for the first time: by then this process has locked the directory.
    memory: OnceLock<Arc<Memory>>,
    /// The task of each resource.
    relays: AsyncMutex<HashMap<String, JoinHandle<()>>>,
    serving: AtomicBool,
    offers: Arc<AtomicUsize>,
}

/// The board of the node as it is now.
#[derive(Debug)]
pub(crate) struct Boards {
    latest: Arc<Latest>,
    board: Mutex<Option<Arc<Board>>>,
}

impl Boards {
    /// Returns the board; `None` while the graph is not known, or old.
    fn current(&self) -> Option<Arc<Board>> {
        let view = self.latest.view(Instant::now());
        let spec = &view.whole()?.topology.spec;
        let mut board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        if board.as_ref().is_none_or(|board| !board.is_of(spec)) {
            *board = Board::new(spec).map(Arc::new);
        }
        board.clone()
    }

    /// Returns what the latest reading says of the GPUs; `None` without a recent one.
    fn evidence(&self) -> Option<Evidence> {
        let view = self.latest.view(Instant::now());
        view.data().map(Evidence::of)
    }
}

impl Proxy {
    #[must_use]
    pub fn new(directories: Directories, latest: Arc<Latest>) -> Self {
        let statistics = Arc::new(Statistics::default());
        Self {
            directories,
            boards: Arc::new(Boards {
                latest,
                board: Mutex::default(),
            }),
            visitors: Arc::new(Visitors::new(Arc::clone(&statistics))),
            statistics,
            memory: OnceLock::new(),
            relays: AsyncMutex::default(),
            serving: AtomicBool::default(),
            offers: Arc::default(),
        }
    }

    /// Renders the answer to a scrape, in the OpenMetrics text format.
    ///
    /// # Errors
    /// When a metric cannot be written (no such case is known).
    pub fn metrics(&self) -> Result<String, std::fmt::Error> {
        let node = self.boards.latest.view(Instant::now()).node;
        let is_known = self.boards.current().is_some();
        self.statistics.render(&node, is_known)
    }

    /// Reports whether the kubelet has GPUs from this program.
    #[must_use]
    pub fn offers_gpus(&self) -> bool {
        self.offers.load(Ordering::Relaxed) > 0
    }

    /// Returns why device plugins do not register.
    #[must_use]
    pub fn obstacle(&self) -> Option<String> {
        if !self.serving.load(Ordering::Relaxed) {
            let reason = "another process serves the directory of device plugins";
            return Some(reason.to_owned());
        }
        self.visitors.obstacle(Instant::now(), self.offers_gpus())
    }

    /// Serves until it fails. Only one process serves a directory at a time: another one waits.
    ///
    /// # Errors
    /// When a directory or the socket in it cannot be used.
    pub async fn run(self: Arc<Self>) -> io::Result<()> {
        let Directories { kubelet, vendor } = &self.directories;
        fs::create_dir_all(vendor).map_err(|error| named(vendor, &error))?;
        let _lock = lock(vendor).await?;
        remove_sockets(vendor, |_| true).map_err(|error| named(vendor, &error))?;
        let own = |name: &str| name.starts_with(PREFIX);
        // The kubelet's directory may not be there before the kubelet.
        drop(remove_sockets(kubelet, own));
        let socket = vendor.join(KUBELET);
        let listener = wire::listen(&socket).map_err(|error| named(&socket, &error))?;
        self.serving.store(true, Ordering::Relaxed);
        tracing::info!(socket = %socket.display(), "waiting for device plugins");
        let receive = || Visitor::new(&self.visitors, |attempt| self.router(attempt));
        tokio::select! {
            served = wire::serve(listener, receive) => served,
            never = self.look_for_others() => match never {},
        }
    }

    /// Answers the calls of one peer.
    fn router(self: &Arc<Self>, attempt: Attempt) -> Router {
        let this = Arc::clone(self);
        let register = move |request| {
            wire::answer(request, move |message| {
                let (this, attempt) = (Arc::clone(&this), attempt.clone());
                async move {
                    let answer = this.register(message).await;
                    attempt.ended(answer.as_ref().map(drop).map_err(Status::message));
                    answer
                }
            })
        };
        Router::new().route(messages::REGISTER, post(register))
    }

    /// Says so when nothing has registered for a while and a device plugin is there.
    async fn look_for_others(&self) -> Infallible {
        let Directories { kubelet, vendor } = &self.directories;
        let mut said = None;
        loop {
            tokio::time::sleep(LOOK).await;
            let relays = self.relays.lock().await;
            let none = relays.values().all(JoinHandle::is_finished);
            drop(relays);
            let other = match none {
                true => visitors::unregistered(kubelet, vendor).await,
                false => None,
            };
            if let Some(reason) = other.as_ref().filter(|_| said != other) {
                tracing::warn!(reason, "no device plugin has registered for a minute");
            }
            said = other;
        }
    }

    /// Takes over a resource of a device plugin.
    async fn register(self: Arc<Self>, message: Bytes) -> Result<Bytes, Status> {
        let registration = Registration::new(message)?;
        let told = self.start(registration).await?;
        match timeout(REGISTER, told).await {
            Ok(Ok(answer)) => answer.map(|()| Bytes::new()),
            Ok(Err(_)) => Err(Status::unavailable("the registration was replaced")),
            // The kubelet is away: it gets the resource when it is back.
            Err(_) => Ok(Bytes::new()),
        }
    }

    /// Starts to pass on a resource, in place of who did before.
    async fn start(
        &self,
        registration: Registration,
    ) -> Result<oneshot::Receiver<Result<(), Status>>, Status> {
        let resource = registration.resource().to_owned();
        let mut relays = self.relays.lock().await;
        relays.retain(|_, task| !task.is_finished());
        if let Some(old) = relays.remove(&resource) {
            // It removes its socket when it ends, and the new one has the same name.
            old.abort();
            drop(old.await);
        }
        if relays.len() >= MOST_RESOURCES {
            let reason = format!("this node has {MOST_RESOURCES} resources already");
            return Err(Status::resource_exhausted(reason));
        }
        let vendor = &self.directories.vendor;
        let relay = Relay {
            memory: Arc::clone(self.memory.get_or_init(|| Arc::new(Memory::new(vendor)))),
            registration,
            directories: self.directories.clone(),
            boards: Arc::clone(&self.boards),
            statistics: Arc::clone(&self.statistics),
            offers: Arc::clone(&self.offers),
        };
        let (tell, told) = oneshot::channel();
        relays.insert(resource, tokio::spawn(relay.run(tell)));
        Ok(told)
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Waits until no other process serves the directory.
async fn lock(directory: &Path) -> io::Result<File> {
    let path = directory.join(LOCK);
    let file = File::create(&path).map_err(|error| named(&path, &error))?;
    let mut said = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(named(&path, &error)),
            Err(TryLockError::WouldBlock) if !said => {
                said = true;
                tracing::warn!(file = %path.display(), "another process serves this directory: waiting for its end");
            }
            Err(TryLockError::WouldBlock) => {}
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Removes sockets of device plugins, by name, as a kubelet that starts does: it shows plugins that
/// they must register again.
fn remove_sockets(directory: &Path, wanted: impl Fn(&str) -> bool) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type()?.is_socket() && wanted(&name.to_string_lossy()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
