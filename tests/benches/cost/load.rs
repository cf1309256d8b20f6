//! The load: clients that create pods or patch the status of pods.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use nvlink_tests::ControlPlane;
use serde_json::{Value, json};
use tokio::{runtime::Runtime, task::JoinSet};

use crate::sides::{Side, class};

pub(crate) const CLIENTS: u32 = 8;
/// Time for the API server to finish its background work.
const PAUSE: Duration = Duration::from_millis(300);

/// The variables of the largest pod: with its other parts and those that the webhook adds, it has nearly the
/// 2,000 parts that the rule `size` admits.
const LARGEST: usize = 1950;

/// The kind of request that the clients send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    GpuPods,
    PlainPods,
    GpuStatus,
    PlainStatus,
}

pub(crate) const WORK: [Work; 4] = [
    Work::GpuPods,
    Work::PlainPods,
    Work::GpuStatus,
    Work::PlainStatus,
];

impl Work {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::GpuPods => "pods of a class created",
            Self::PlainPods => "pods without GPUs created",
            Self::GpuStatus => "status of pods of a class patched",
            Self::PlainStatus => "status of pods without GPUs patched",
        }
    }

    fn gpus(self) -> bool {
        matches!(self, Self::GpuPods | Self::GpuStatus)
    }
}

/// Eight clients, and the number of requests that they have sent so far.
pub(crate) struct Load {
    runtime: Runtime,
    clients: Vec<Client>,
    requests: u32,
    next: Arc<AtomicU32>,
}

impl Load {
    /// Returns clients that send `requests` together.
    pub(crate) fn new(plane: &ControlPlane, requests: u32) -> Result<Self> {
        let runtime = Runtime::new()?;
        let clients = (0..CLIENTS).map(|_| runtime.block_on(plane.client()));
        Ok(Self {
            clients: clients.collect::<Result<_>>()?,
            runtime,
            requests,
            next: Arc::default(),
        })
    }

    fn api(&self, side: Side, client: usize) -> Api<Pod> {
        Api::namespaced(self.clients[client].clone(), side.namespace())
    }

    /// Creates the pods whose status is patched: one for each client.
    pub(crate) fn prepare(&self, side: Side, work: Work) -> Result<()> {
        if matches!(work, Work::GpuPods | Work::PlainPods) {
            return Ok(());
        }
        let api = self.api(side, 0);
        self.runtime.block_on(async {
            for client in 0..CLIENTS {
                let pod = pod(&format!("standing-{client}"), work.gpus());
                let pod = serde_json::from_value(pod)?;
                api.create(&PostParams::default(), &pod).await?;
            }
            Ok(())
        })
    }

    /// Runs all clients, each with its share. Returns the number of requests and the time.
    pub(crate) fn run(&self, side: Side, work: Work) -> Result<(u32, Duration)> {
        let share = self.requests.div_ceil(CLIENTS);
        let start = Instant::now();
        self.runtime.block_on(async {
            let mut running = JoinSet::new();
            for client in 0..self.clients.len() {
                let api = self.api(side, client);
                let next = Arc::clone(&self.next);
                running.spawn(async move {
                    for _ in 0..share {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        request(&api, work, client, number).await?;
                    }
                    anyhow::Ok(())
                });
            }
            while let Some(ended) = running.join_next().await {
                ended??;
            }
            Ok((share * CLIENTS, start.elapsed()))
        })
    }

    /// Creates the largest pod of a class, without storing it. Returns the time that it took.
    pub(crate) fn create_largest(&self, side: Side) -> Result<Duration> {
        let mut pod = pod("largest", true);
        let variables =
            (0..LARGEST).map(|number| json!({"name": format!("V{number}"), "value": "x"}));
        pod["spec"]["containers"][0]["env"] = variables.collect();
        let pod: Pod = serde_json::from_value(pod)?;
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let api = self.api(side, 0);
        let start = Instant::now();
        self.runtime.block_on(api.create(&dry, &pod))?;
        Ok(start.elapsed())
    }

    /// Deletes all pods of the side.
    pub(crate) fn tidy(&self, side: Side, _work: Work) -> Result<()> {
        let api = self.api(side, 0);
        let (how, all) = (DeleteParams::default(), ListParams::default());
        self.runtime.block_on(api.delete_collection(&how, &all))?;
        thread::sleep(PAUSE);
        Ok(())
    }
}

async fn request(api: &Api<Pod>, work: Work, client: usize, number: u32) -> Result<()> {
    match work {
        Work::GpuPods | Work::PlainPods => {
            let pod = pod(&format!("load-{number}"), work.gpus());
            let pod = serde_json::from_value(pod)?;
            api.create(&PostParams::default(), &pod).await?;
        }
        Work::GpuStatus | Work::PlainStatus => {
            let condition =
                json!({"type": "Ready", "status": "False", "message": number.to_string()});
            let patch = json!({"status": {"conditions": [condition]}});
            let name = format!("standing-{client}");
            api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch))
                .await?;
        }
    }
    Ok(())
}

/// Returns a pod of a training job, as users write it and controllers complete it. No
/// scheduler handles it.
pub(crate) fn pod(name: &str, gpus: bool) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "train", "job-name": "train-7"}},
        "spec": {
            "restartPolicy": "Never", "schedulerName": "nobody",
            "containers": [{
                "name": "main", "image": "registry.example.com/train:1.2.3",
                "command": ["torchrun", "--nproc-per-node=8", "train.py"],
                "env": [
                    {"name": "DATA", "value": "/data"}, {"name": "EPOCHS", "value": "90"},
                    {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
                ],
                "resources": {"limits": {"cpu": "8", "memory": "64Gi"}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "shm", "mountPath": "/dev/shm"}]
            }],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}}
            ]
        }
    });
    if gpus {
        pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": class(0)});
        pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = json!("8");
    }
    pod
}
