//! The webhook in a large cluster, on a real API server: memory, and the time
//! from its start until it is ready. Prints a table and the goals.
//!
//! 10,000 nodes, each with a NodeTopology of 8 GPUs of which a pod holds some, and
//! 100 classes. Pods are not there: nothing of the webhook watches them.
//! `NODES=1000` makes it smaller.

#![allow(missing_docs)]

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use nvlink_tests::{
    ControlPlane, Webhook,
    programs::{self, EXPORTER},
    webhook::install_crds,
};
use serde_json::{Value, json};

const CLASSES: usize = 100;
const WRITERS: usize = 16;
const STARTS: usize = 3;
const MEGABYTES: f64 = 200.0;
const SECONDS: f64 = 5.0;
const MIB: f64 = 1024.0;

fn main() -> Result<()> {
    let nodes = match std::env::var("NODES") {
        Ok(text) => text.parse().context("NODES is a number")?,
        Err(_) => 10_000,
    };
    // Compiled before anything is timed.
    let arguments = ["topology", "--source", "sim:dgx-h100", "--output", "json"];
    let document = serde_json::from_str(&programs::run(EXPORTER, &arguments, "")?)?;
    let plane = ControlPlane::start()?;
    install_crds(plane.kubectl())?;
    let runtime = tokio::runtime::Runtime::new()?;
    let start = Instant::now();
    runtime.block_on(fill(&plane, document, nodes))?;
    println!(
        "{nodes} nodes and {CLASSES} classes made in {:.1?}",
        start.elapsed()
    );
    for _ in 0..STARTS {
        measure(&plane)?;
    }
    Ok(())
}

/// Starts the webhook, and sees what it costs.
fn measure(plane: &ControlPlane) -> Result<()> {
    let start = Instant::now();
    let webhook = Webhook::start(plane.kubeconfig())?;
    let ready = start.elapsed().as_secs_f64();
    let status = fs::read_to_string(format!("/proc/{}/status", webhook.replica.process.id()))?;
    let memory = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        number.map_or(f64::NAN, |kib| kib / MIB)
    };
    println!(
        "  ready after {ready:.1} s (goal {SECONDS})   RSS {:.0} MiB (goal {MEGABYTES})   at most {:.0} MiB",
        memory("VmRSS:"),
        memory("VmHWM:"),
    );
    Ok(())
}

/// Makes the objects, many at a time.
async fn fill(plane: &ControlPlane, document: Value, nodes: usize) -> Result<()> {
    let cluster = Arc::new(Cluster {
        client: plane.client().await?,
        document,
    });
    for index in 0..CLASSES {
        cluster.class(index).await?;
    }
    let next = Arc::new(AtomicUsize::new(0));
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..WRITERS {
        let (cluster, next) = (Arc::clone(&cluster), Arc::clone(&next));
        writers.spawn(async move {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= nodes {
                    return Ok::<_, kube::Error>(());
                }
                cluster.node(index).await?;
            }
        });
    }
    while let Some(ended) = writers.join_next().await {
        ended??;
    }
    Ok(())
}

struct Cluster {
    client: Client,
    document: Value,
}

impl Cluster {
    fn api(&self, kind: &str, plural: &str) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("nvlink-domains.io", "v1alpha1", kind);
        Api::all_with(
            self.client.clone(),
            &ApiResource::from_gvk_with_plural(&kind, plural),
        )
    }

    async fn class(&self, index: usize) -> Result<()> {
        let class = json!({
            "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
            "metadata": {"name": format!("class-{index:03}")},
            "spec": {
                "nodeSelector": {"matchLabels": {"pool": format!("pool-{}", index % 10)}},
                "minBandwidth": "100GBps"
            }
        });
        let api = self.api("DomainClass", "domainclasses");
        api.create(&PostParams::default(), &serde_json::from_value(class)?)
            .await?;
        Ok(())
    }

    /// A node with the labels that clouds and operators give it, and its NodeTopology.
    async fn node(&self, index: usize) -> Result<(), kube::Error> {
        let name = format!("gpu-node-{index:05}.cluster.example");
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": labels(&name, index)}
        });
        let node: Node = parse(node)?;
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.create(&PostParams::default(), &node).await?;
        let mut document = self.document.clone();
        document["metadata"]["name"] = json!(name);
        let topologies = self.api("NodeTopology", "nodetopologies");
        topologies
            .create(&PostParams::default(), &parse(document)?)
            .await?;
        let held: Vec<_> = (0..index % 8).collect();
        let status = json!({"status": {"allocations": [
            {"namespace": "ci", "pod": format!("train-{index}"), "container": "main", "gpus": held}
        ]}});
        let parameters = PatchParams::default();
        topologies
            .patch_status(&name, &parameters, &Patch::Merge(status))
            .await?;
        Ok(())
    }
}

fn labels(name: &str, index: usize) -> Value {
    let mut labels = json!({
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": "p5.48xlarge",
        "topology.kubernetes.io/region": "eu-west-1", "topology.kubernetes.io/zone": "eu-west-1a",
        "pool": format!("pool-{}", index % 10),
        "nvlink-domains.io/domain-size": "8", "nvlink-domains.io/bandwidth": "450"
    });
    for index in 0..20 {
        labels[format!("nvidia.com/gpu.feature-{index}")] = json!("true");
    }
    labels
}

fn parse<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, kube::Error> {
    serde_json::from_value(value).map_err(kube::Error::SerdeError)
}
