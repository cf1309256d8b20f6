//! Measures the webhook in a large cluster, on a real API server: its memory, and the
//! time from its start until it is ready. Prints a table and the goals.
//!
//! There are 10,000 nodes, each with a NodeTopology of 8 GPUs of which a pod holds some,
//! and 100 classes. There are no pods, because the webhook does not watch pods. All but a
//! few nodes are copied inside etcd, because an API server takes minutes to validate
//! them. `NODES=1000` makes it smaller.

mod store;

use std::{fs, time::Instant};

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
use store::Store;

const CLASSES: usize = 100;
/// The number of nodes that are created through the API server.
const TEMPLATES: usize = 10;
const STARTS: usize = 3;
const MEGABYTES: f64 = 200.0;
const SECONDS: f64 = 5.0;
const MIB: f64 = 1024.0;

fn main() -> Result<()> {
    let nodes = match std::env::var("NODES") {
        Ok(text) => text.parse().context("invalid NODES")?,
        Err(_) => 10_000,
    };
    // This compiles the program before anything is timed.
    let arguments = ["topology", "--source", "sim:dgx-h100", "--output", "json"];
    let document = serde_json::from_str(&programs::run(EXPORTER, &arguments, "")?)?;
    let plane = ControlPlane::start()?;
    install_crds(plane.kubectl())?;
    let runtime = tokio::runtime::Runtime::new()?;
    let start = Instant::now();
    runtime.block_on(fill(&plane, document, nodes))?;
    println!(
        "{nodes} nodes and {CLASSES} classes created in {:.1?}",
        start.elapsed()
    );
    for _ in 0..STARTS {
        measure(&plane)?;
    }
    Ok(())
}

/// Starts the webhook, and prints its start time and memory.
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

/// Creates a few nodes through the API, and the others as copies of them.
async fn fill(plane: &ControlPlane, document: Value, nodes: usize) -> Result<()> {
    let client = plane.client().await?;
    let cluster = Cluster { client, document };
    for index in 0..CLASSES {
        cluster.class(index).await?;
    }
    let mut templates = Vec::new();
    let store = Store::new(plane.etcd().context("the control plane has no etcd")?);
    for index in 0..TEMPLATES.min(nodes) {
        for (key, uid) in cluster.node(index).await? {
            templates.push(store.template(key, &name(index), &uid)?);
        }
    }
    store.copy(&templates, TEMPLATES..nodes)
}

fn name(index: usize) -> String {
    format!("gpu-node-{index:05}.cluster.example")
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

    /// Creates a node with the labels that clouds and operators set, and its
    /// NodeTopology. Returns their keys in etcd and their UIDs.
    async fn node(&self, index: usize) -> Result<[(String, String); 2]> {
        let name = name(index);
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": labels(&name, index)}
        });
        let node: Node = parse(node)?;
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.create(&PostParams::default(), &node).await?;
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
        let topology = topologies
            .patch_status(&name, &parameters, &Patch::Merge(status))
            .await?;
        let uid = |uid: Option<String>| uid.context("the object has no UID");
        let prefix = "/registry/nvlink-domains.io/nodetopologies";
        Ok([
            (format!("/registry/minions/{name}"), uid(node.metadata.uid)?),
            (format!("{prefix}/{name}"), uid(topology.metadata.uid)?),
        ])
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

fn parse<T: serde::de::DeserializeOwned>(value: Value) -> Result<T> {
    Ok(serde_json::from_value(value)?)
}
