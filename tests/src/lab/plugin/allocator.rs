//! The kubelet's side of device plugins, as far as it asks for devices: it runs nothing.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use axum::{Router, extract::Request, http::Uri, http::uri::PathAndQuery, routing::post};
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::{
    net::{UnixListener, UnixStream},
    runtime::Runtime,
    sync::watch,
};
use tonic::{
    Response, Status, client, server,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::{
    super::{LabNode, Vendor, runtime, started},
    Answer, Plugin,
    messages::{
        ALLOCATE, AllocateRequest, AllocateResponse, Devices, Empty, Ids, LIST_AND_WATCH, PREFER,
        PreferRequest, PreferResponse, REGISTER, Registration, Wish,
    },
};
use crate::{device_plugin::DevicePlugin, nvml, wait::wait_until, workdir};

const START: Duration = Duration::from_secs(30);

/// A node's device plugin, what stands between if the node has it, and a kubelet that asks for
/// devices as the real one does, and runs no containers. All of them end when dropped.
#[derive(Debug)]
pub struct Allocator {
    offer: watch::Receiver<Option<Offer>>,
    vendor: Vendor,
    recording: serde_json::Value,
    // Dropped in this order: who calls before who serves.
    kubelet: Runtime,
    between: Option<DevicePlugin>,
    plugin: Option<Runtime>,
}

/// What a device plugin offers the kubelet.
#[derive(Clone, Debug)]
struct Offer {
    /// The number of its registration.
    number: usize,
    plugin: Channel,
    devices: Vec<String>,
}

impl Allocator {
    /// Starts the device plugin of a node, and waits until the kubelet has its devices.
    ///
    /// # Errors
    /// When a part does not come up.
    pub fn start(node: &LabNode) -> Result<Self> {
        let directory = workdir::fresh("allocator")?;
        let vendor = Vendor::new(node, &directory, None);
        fs::create_dir_all(&vendor.kubelet)?;
        let (send, offer) = watch::channel(None);
        let kubelet = runtime()?;
        let socket = vendor.kubelet.join("kubelet.sock");
        let entered = kubelet.enter();
        let listener = UnixListener::bind(&socket)
            .with_context(|| format!("cannot listen on {}", socket.display()))?;
        drop(entered);
        let router = router(vendor.kubelet.clone(), send);
        kubelet.spawn(async { axum::serve(listener, router).await });
        let between = vendor.start_between()?;
        let mut this = Self {
            offer,
            recording: nvml::recording_of(&node.profile, &node.name)?,
            vendor,
            kubelet,
            between,
            plugin: None,
        };
        this.start_plugin()?;
        Ok(this)
    }

    /// Ends the vendor's device plugin, and waits until the kubelet has no devices.
    ///
    /// # Errors
    /// When they stay.
    pub fn stop_plugin(&mut self) -> Result<()> {
        // Connections end with their runtime only.
        if let Some(plugin) = self.plugin.take() {
            plugin.shutdown_background();
        }
        let offer = &self.offer;
        wait_until("the devices to be gone", START, || {
            Ok(offer.borrow().is_none().then_some(()))
        })
    }

    /// Starts the vendor's device plugin again, and waits until the kubelet has its devices.
    ///
    /// # Errors
    /// When they do not come back.
    pub fn start_plugin(&mut self) -> Result<()> {
        let plugin = Plugin::new(&self.vendor.directory, &self.recording, self.vendor.choice);
        self.plugin = Some(started(plugin)?);
        let offer = &self.offer;
        wait_until("the kubelet to have devices", START, || {
            Ok(offer.borrow().is_some().then_some(()))
        })
    }

    /// Returns what stands between, if the node has it.
    #[must_use]
    pub fn between(&self) -> Option<&DevicePlugin> {
        self.between.as_ref()
    }

    /// Returns what `nvlink-exporter record` writes about the node.
    #[must_use]
    pub fn recording(&self) -> &serde_json::Value {
        &self.recording
    }

    /// Returns the ids of all devices.
    ///
    /// # Errors
    /// When the kubelet has none.
    pub fn devices(&self) -> Result<Vec<String>> {
        Ok(self.offered()?.devices)
    }

    fn offered(&self) -> Result<Offer> {
        let offer = self.offer.borrow().clone();
        offer.context("the kubelet has no devices")
    }

    /// Asks which `size` of these devices are preferred.
    ///
    /// # Errors
    /// When the plugin does not answer.
    pub fn prefer(&self, available: &[String], size: usize) -> Result<Vec<String>> {
        let wish = Wish {
            available: available.to_vec(),
            required: Vec::new(),
            size: i32::try_from(size)?,
        };
        let question = PreferRequest {
            containers: vec![wish],
        };
        let answer: PreferResponse = self.call(PREFER, question)?;
        let first = answer.containers.into_iter().next();
        Ok(first.map(|one| one.ids).unwrap_or_default())
    }

    /// Allocates these devices to a container, and returns its variables.
    ///
    /// # Errors
    /// When the plugin does not answer, or not for one container.
    pub fn allocate(&self, ids: &[String]) -> Result<HashMap<String, String>> {
        let question = AllocateRequest {
            containers: vec![Ids { ids: ids.to_vec() }],
        };
        let answer: AllocateResponse = self.call(ALLOCATE, question)?;
        let first = answer.containers.into_iter().next();
        Ok(first.context("no container in the answer")?.environment)
    }

    fn call<Q, A>(&self, path: &'static str, question: Q) -> Result<A>
    where
        Q: Message + Default + 'static,
        A: Message + Default + 'static,
    {
        let mut plugin = client::Grpc::new(self.offered()?.plugin);
        let codec = ProstCodec::<Q, A>::default();
        let answer = self.kubelet.block_on(async {
            plugin.ready().await?;
            let path = PathAndQuery::from_static(path);
            let answer = plugin.unary(tonic::Request::new(question), path, codec);
            anyhow::Ok(answer.await?)
        })?;
        Ok(answer.into_inner())
    }
}

/// Serves what a kubelet serves to device plugins.
fn router(directory: PathBuf, send: watch::Sender<Option<Offer>>) -> Router {
    let count = Arc::new(AtomicUsize::default());
    let register = move |request: Request| {
        let (directory, send, count) = (directory.clone(), send.clone(), Arc::clone(&count));
        answer(request, move |registration| {
            let number = count.fetch_add(1, Ordering::Relaxed);
            let socket = directory.join(&registration.endpoint);
            tokio::spawn(watch(socket, number, send.clone()));
        })
    };
    Router::new().route(REGISTER, post(register))
}

async fn answer(request: Request, take: impl Fn(Registration) + Clone) -> Answer {
    let service = tower::service_fn(move |question: tonic::Request<Registration>| {
        take(question.into_inner());
        async { Ok::<_, Status>(Response::new(Empty {})) }
    });
    server::Grpc::new(ProstCodec::<Empty, Registration>::default())
        .unary(service, request)
        .await
}

/// Keeps what a device plugin offers until its stream of devices ends.
async fn watch(socket: PathBuf, number: usize, send: watch::Sender<Option<Offer>>) {
    // A plugin that is gone registers again.
    let _ = keep(&socket, number, &send).await;
    send.send_if_modified(|offer| offer.take_if(|one| one.number == number).is_some());
}

async fn keep(socket: &Path, number: usize, send: &watch::Sender<Option<Offer>>) -> Result<()> {
    let path = socket.to_owned();
    let connect = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { io::Result::Ok(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    let plugin = endpoint.connect_with_connector(connect).await?;
    let mut lists = client::Grpc::new(plugin.clone());
    lists.ready().await?;
    let codec = ProstCodec::<Empty, Devices>::default();
    let path = PathAndQuery::from_static(LIST_AND_WATCH);
    let lists = lists.server_streaming(tonic::Request::new(Empty {}), path, codec);
    let mut lists = lists.await?.into_inner();
    while let Some(list) = lists.message().await? {
        let devices = list.devices.into_iter().map(|device| device.id);
        send.send_replace(Some(Offer {
            number,
            plugin: plugin.clone(),
            devices: devices.collect(),
        }));
    }
    Ok(())
}
