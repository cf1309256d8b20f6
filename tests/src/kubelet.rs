//! A fake kubelet with the part that the exporter uses: the pod resources API, on a real Unix
//! socket. Tests choose its answers, and make it fail, hang and restart.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context, Result};
use axum::{Router, extract::Request, routing::post};
use prost::Message;
use tokio::{net::UnixListener, runtime::Runtime};
use tonic::{Response, Status};
use tonic_prost::ProstCodec;

use crate::workdir;

/// A running fake kubelet. It ends when dropped.
#[derive(Debug)]
pub struct Kubelet {
    socket: PathBuf,
    state: Arc<Mutex<State>>,
    server: Option<Runtime>,
}

/// How it reacts to calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    /// It lists the pods.
    #[default]
    Answers,
    /// It answers with the gRPC status `INTERNAL`.
    Fails,
    Hangs,
}

#[derive(Debug, Default)]
struct State {
    pods: BTreeMap<(String, String), Vec<Container>>,
    mood: Mood,
    calls: usize,
}

impl Kubelet {
    /// Starts a kubelet without pods.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start() -> Result<Self> {
        let mut this = Self {
            socket: workdir::fresh("kubelet")?.join("kubelet.sock"),
            state: Arc::default(),
            server: None,
        };
        this.restart()?;
        Ok(this)
    }

    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Adds a pod, or replaces the pod of this name.
    pub fn run_pod(
        &self,
        namespace: &str,
        pod: &str,
        containers: impl IntoIterator<Item = Container>,
    ) {
        let name = (namespace.to_owned(), pod.to_owned());
        self.state()
            .pods
            .insert(name, containers.into_iter().collect());
    }

    pub fn remove_pod(&self, namespace: &str, pod: &str) {
        self.state()
            .pods
            .remove(&(namespace.to_owned(), pod.to_owned()));
    }

    /// Changes how it reacts to calls.
    pub fn set_mood(&self, mood: Mood) {
        self.state().mood = mood;
    }

    /// Returns the number of calls so far.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.state().calls
    }

    /// Stops it: connections break, and the socket is deleted.
    pub fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown_background();
            // The socket may be gone already.
            let _ = fs::remove_file(&self.socket);
        }
    }

    /// Stops it and starts it again, with the same pods and a new socket at the same path.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn restart(&mut self) -> Result<()> {
        self.stop();
        let server = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let entered = server.enter();
        let listener = UnixListener::bind(&self.socket)
            .with_context(|| format!("cannot listen on {}", self.socket.display()))?;
        drop(entered);
        let state = Arc::clone(&self.state);
        let list = post(move |request| list(state, request));
        let router = Router::new().route("/v1.PodResourcesLister/List", list);
        server.spawn(async move { axum::serve(listener, router).await });
        self.server = Some(server);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn list(
    state: Arc<Mutex<State>>,
    request: Request,
) -> axum::http::Response<tonic::body::Body> {
    let answer = tower::service_fn(move |_: tonic::Request<Nothing>| {
        let state = Arc::clone(&state);
        async move {
            let (mood, pods) = {
                let mut state = lock(&state);
                state.calls += 1;
                (state.mood, answer(&state.pods))
            };
            match mood {
                Mood::Answers => Ok(Response::new(pods)),
                Mood::Fails => Err(Status::internal("the checkpoint is corrupt")),
                Mood::Hangs => std::future::pending().await,
            }
        }
    });
    tonic::server::Grpc::new(ProstCodec::<Answer, Nothing>::default())
        .unary(answer, request)
        .await
}

fn answer(pods: &BTreeMap<(String, String), Vec<Container>>) -> Answer {
    let pod = |((namespace, name), containers): (&(String, String), &Vec<Container>)| Pod {
        name: name.clone(),
        namespace: namespace.clone(),
        containers: containers.clone(),
        cpu_ids: vec![0, 1],
    };
    Answer {
        pods: pods.iter().map(pod).collect(),
    }
}

#[derive(Clone, PartialEq, Message)]
struct Nothing {}

#[derive(Clone, PartialEq, Message)]
struct Answer {
    #[prost(message, repeated, tag = "1")]
    pods: Vec<Pod>,
}

#[derive(Clone, PartialEq, Message)]
struct Pod {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(message, repeated, tag = "3")]
    containers: Vec<Container>,
    #[prost(int64, repeated, tag = "4")]
    cpu_ids: Vec<i64>,
}

/// A container and its devices.
#[derive(Clone, PartialEq, Message)]
pub struct Container {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    devices: Vec<Devices>,
    #[prost(int64, repeated, tag = "3")]
    cpu_ids: Vec<i64>,
    #[prost(message, repeated, tag = "5")]
    claims: Vec<Claim>,
}

#[derive(Clone, PartialEq, Message)]
struct Devices {
    #[prost(string, tag = "1")]
    resource: String,
    #[prost(string, repeated, tag = "2")]
    ids: Vec<String>,
    #[prost(message, optional, tag = "3")]
    topology: Option<Topology>,
}

#[derive(Clone, PartialEq, Message)]
struct Topology {
    #[prost(message, repeated, tag = "1")]
    nodes: Vec<NumaNode>,
}

#[derive(Clone, PartialEq, Message)]
struct NumaNode {
    #[prost(int64, tag = "1")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Claim {
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(message, repeated, tag = "4")]
    devices: Vec<ClaimDevice>,
}

#[derive(Clone, PartialEq, Message)]
struct ClaimDevice {
    #[prost(message, repeated, tag = "1")]
    cdi: Vec<Cdi>,
    #[prost(string, tag = "2")]
    driver: String,
    #[prost(string, tag = "3")]
    pool: String,
    #[prost(string, tag = "4")]
    device: String,
}

#[derive(Clone, PartialEq, Message)]
struct Cdi {
    #[prost(string, tag = "1")]
    name: String,
}

impl Container {
    /// Creates a container without devices.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    /// Adds devices of a device plugin's resource.
    #[must_use]
    pub fn holding<S: AsRef<str>>(mut self, resource: &str, ids: &[S]) -> Self {
        self.devices.push(Devices {
            resource: resource.to_owned(),
            ids: ids.iter().map(|id| id.as_ref().to_owned()).collect(),
            topology: Some(Topology {
                nodes: vec![NumaNode { id: 0 }],
            }),
        });
        self
    }

    /// Adds devices of NVIDIA's DRA driver, from the pool of the node `pool`.
    #[must_use]
    pub fn claiming(self, pool: &str, devices: &[&str]) -> Self {
        self.claiming_by("gpus", pool, devices)
    }

    /// Adds devices of a claim in the namespace `ci`.
    #[must_use]
    pub fn claiming_by(self, claim: &str, pool: &str, devices: &[&str]) -> Self {
        self.claiming_of("gpu.nvidia.com", claim, pool, devices)
    }

    /// Does the same with devices of another driver.
    #[must_use]
    pub fn claiming_of(mut self, driver: &str, claim: &str, pool: &str, devices: &[&str]) -> Self {
        let device = |device: &&str| ClaimDevice {
            cdi: vec![Cdi {
                name: format!("k8s.{driver}/claim=dab5ab50-d59a-42a6-af16-cfd4628c0f7a-{device}"),
            }],
            driver: driver.to_owned(),
            pool: pool.to_owned(),
            device: (*device).to_owned(),
        };
        self.claims.push(Claim {
            name: claim.to_owned(),
            namespace: "ci".to_owned(),
            devices: devices.iter().map(device).collect(),
        });
        self
    }
}
