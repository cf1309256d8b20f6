//! What the kubelet calls for one resource.

use std::{
    collections::BTreeSet,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::Request,
    http::{Uri, uri::PathAndQuery},
    routing::post,
};
use futures::{Stream, stream};
use prost::{Message, bytes::Bytes};
use tokio::sync::watch;
use tonic::{Response, Status, server};

use super::{
    environment,
    messages::{
        ALLOCATE, AllocateRequest, Ids, LIST_AND_WATCH, ListAndWatchResponse, OPTIONS, PREFER,
        PreferredAllocationRequest, PreferredAllocationResponse,
    },
    node::NodeView,
    registration::preferring,
    statistics::{By, Call, Outcome, Statistics},
    wire::{self, Answer, Peer, Raw},
};

/// How long the vendor's plugin may take to answer what it prefers; the kubelet takes any devices
/// then.
const PREFERENCE: Duration = Duration::from_secs(2);
/// How long it may take for another call. The kubelet waits longer.
const LONG: Duration = Duration::from_secs(120);

/// What the kubelet calls.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) resource: String,
    pub(super) vendor: Peer,
    pub(super) vendor_prefers: bool,
    /// Whether this program answers what it prefers.
    pub(super) prefers: bool,
    /// Whether there are GPUs among the devices.
    pub(super) gpus: bool,
    pub(super) devices: watch::Receiver<Bytes>,
    /// What this program preferred last, until it is allocated or not.
    pub(super) preferred: Mutex<Option<BTreeSet<String>>>,
    pub(super) view: Arc<NodeView>,
    pub(super) statistics: Arc<Statistics>,
}

impl Service {
    pub(super) fn router(self: &Arc<Self>) -> Router {
        let list = Arc::clone(self);
        let other = Arc::clone(self);
        Router::new()
            .route(
                LIST_AND_WATCH,
                post(move |request| list.clone().list(request)),
            )
            .route(OPTIONS, post(self.unary(Self::options)))
            .route(PREFER, post(self.unary(Self::prefer)))
            .route(ALLOCATE, post(self.unary(Self::allocate)))
            .fallback(move |uri: Uri, request: Request| other.clone().other(uri, request))
    }

    /// Returns what answers a call with one message by one message.
    fn unary<F>(
        self: &Arc<Self>,
        answer: fn(Arc<Self>, Bytes) -> F,
    ) -> impl FnOnce(Request) -> Pin<Box<dyn Future<Output = Answer> + Send>> + Clone + Send + use<F>
    where
        F: Future<Output = Result<Bytes, Status>> + Send + 'static,
    {
        let this = Arc::clone(self);
        move |request| {
            let answer = move |message| answer(Arc::clone(&this), message);
            Box::pin(wire::answer(request, answer))
        }
    }

    /// Passes on a call that this program does not know, or need not know.
    async fn other(self: Arc<Self>, uri: Uri, request: Request) -> Answer {
        let path = uri.path_and_query().cloned();
        let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
        wire::answer(request, move |message| {
            let (this, path) = (Arc::clone(&self), path.clone());
            async move { this.vendor.call(path, message, LONG).await }
        })
        .await
    }

    async fn options(self: Arc<Self>, message: Bytes) -> Result<Bytes, Status> {
        let path = PathAndQuery::from_static(OPTIONS);
        let own = self.vendor.call(path, message, LONG).await?;
        Ok(match self.prefers {
            true => [&own[..], &preferring().encode_to_vec()].concat().into(),
            false => own,
        })
    }

    /// Sends the lists of devices as they come.
    async fn list(self: Arc<Self>, request: Request) -> Answer {
        let devices = self.devices.clone();
        let watch = tower::service_fn(move |_: tonic::Request<Bytes>| {
            let lists = lists(devices.clone());
            async move { Ok::<_, Status>(Response::new(lists)) }
        });
        server::Grpc::new(Raw)
            .server_streaming(watch, request)
            .await
    }

    async fn prefer(self: Arc<Self>, message: Bytes) -> Result<Bytes, Status> {
        let start = Instant::now();
        let wishes = PreferredAllocationRequest::decode(message.clone()).unwrap_or_default();
        let preferred = self.view.chooser().and_then(|chooser| {
            let wishes = wishes.containers.iter();
            let preferred = wishes.map(|wish| chooser.prefer(&self.resource, wish));
            preferred.collect::<Option<Vec<_>>>()
        });
        self.statistics.added(Call::Prefer, start.elapsed());
        if let Some(preferred) = preferred.filter(|all| !all.is_empty()) {
            self.statistics.preference(&self.resource, By::Search);
            self.remember(preferred.first());
            let containers = preferred.into_iter().map(|ids| Ids { ids });
            let answer = PreferredAllocationResponse {
                containers: containers.collect(),
            };
            return Ok(answer.encode_to_vec().into());
        }
        self.remember(None);
        if self.vendor_prefers {
            let path = PathAndQuery::from_static(PREFER);
            if let Ok(answer) = self.vendor.call(path, message, PREFERENCE).await {
                self.statistics.preference(&self.resource, By::Vendor);
                return Ok(answer);
            }
        }
        // An error would fail the pod; no answer lets the kubelet take any device.
        self.statistics.preference(&self.resource, By::Nobody);
        Ok(Bytes::new())
    }

    fn remember(&self, ids: Option<&Vec<String>>) {
        let ids = ids.map(|ids| ids.iter().cloned().collect());
        *self
            .preferred
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = ids;
    }

    async fn allocate(self: Arc<Self>, message: Bytes) -> Result<Bytes, Status> {
        let path = PathAndQuery::from_static(ALLOCATE);
        let request = AllocateRequest::decode(message.clone()).unwrap_or_default();
        let answer = self.vendor.call(path, message, LONG).await?;
        let start = Instant::now();
        self.compare(&request);
        let chooser = self.view.chooser();
        let containers = request.containers.iter();
        let orders: Vec<_> = containers
            .map(|container| chooser.as_ref()?.order(&self.resource, &container.ids))
            .collect();
        let answer = environment::add(answer, &orders);
        self.statistics.added(Call::Allocate, start.elapsed());
        Ok(answer)
    }

    /// Counts whether the kubelet took what it was told. It asks for one container at a time.
    fn compare(&self, request: &AllocateRequest) {
        let mut preferred = self
            .preferred
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (Some(preferred), [container]) = (preferred.take(), &request.containers[..]) else {
            return;
        };
        let got: BTreeSet<String> = container.ids.iter().cloned().collect();
        let outcome = match got == preferred {
            true => Outcome::Taken,
            false => Outcome::Ignored,
        };
        self.statistics.outcome(&self.resource, outcome);
    }

    pub(super) fn count(&self) {
        let list = ListAndWatchResponse::decode(self.devices.borrow().clone());
        let devices = list.unwrap_or_default().devices;
        let healthy = devices.iter().filter(|one| one.health == "Healthy").count();
        let unhealthy = devices.len() - healthy;
        self.statistics.devices(&self.resource, healthy, unhealthy);
    }
}

/// Returns the present list and all later ones.
fn lists(mut devices: watch::Receiver<Bytes>) -> impl Stream<Item = Result<Bytes, Status>> {
    devices.mark_changed();
    stream::unfold(devices, |mut devices| async {
        // The stream stays open for as long as this program serves: the kubelet drops the
        // devices of a stream that ends.
        devices.changed().await.ok()?;
        let list = devices.borrow_and_update().clone();
        Some((Ok(list), devices))
    })
}
