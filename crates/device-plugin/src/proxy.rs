//! The vendor's side: device plugins register here, and each resource gets a relay.

use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    sync::{
        Arc, OnceLock,
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

use crate::{
    directories::{Directories, KUBELET, PREFIX, lock, named, remove_sockets},
    health::Memory,
    messages,
    node::{Node, NodeView},
    registration::Registration,
    relay::Relay,
    statistics::Statistics,
    visitors::{self, Attempt, Visitor, Visitors},
    wire,
};

/// The most resources at a time. A node has a few.
const MOST_RESOURCES: usize = 64;
/// Time between two looks for device plugins that do not register.
const LOOK: Duration = Duration::from_secs(60);
/// How long a registration waits for the kubelet's answer. NVIDIA's plugin (0.20.0) waits without a
/// limit, and looks neither for a restart nor for a signal meanwhile.
const REGISTER: Duration = Duration::from_secs(5);

/// Stands between the kubelet and the vendors' device plugins of a node.
#[derive(Debug)]
pub struct Proxy {
    directories: Directories,
    view: Arc<NodeView>,
    statistics: Arc<Statistics>,
    visitors: Arc<Visitors>,
    /// Read when it is needed for the first time: by then this process has locked the directory.
    memory: OnceLock<Arc<Memory>>,
    /// The task of each resource.
    relays: AsyncMutex<HashMap<String, JoinHandle<()>>>,
    serving: AtomicBool,
    offers: Arc<AtomicUsize>,
}

impl Proxy {
    #[must_use]
    pub fn new(directories: Directories, node: Arc<dyn Node>) -> Self {
        let statistics = Arc::new(Statistics::default());
        Self {
            directories,
            view: Arc::new(NodeView::new(node)),
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
        let node = self.view.node().name();
        let is_known = self.view.chooser().is_some();
        self.statistics.render(&node, is_known)
    }

    /// Reports whether the kubelet has GPUs from this program.
    #[must_use]
    pub(crate) fn offers_gpus(&self) -> bool {
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
        self.directories.are_two()?;
        let locked = lock(vendor).await?;
        locked.take_over(vendor).await?;
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
            view: Arc::clone(&self.view),
            statistics: Arc::clone(&self.statistics),
            offers: Arc::clone(&self.offers),
        };
        let (tell, told) = oneshot::channel();
        relays.insert(resource, tokio::spawn(relay.run(tell)));
        Ok(told)
    }
}
