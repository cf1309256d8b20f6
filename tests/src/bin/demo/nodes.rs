//! The cluster: a real control plane, four nodes of different kinds, an
//! exporter on each, and the webhook.

use std::time::Duration;

use anyhow::{Context, Result};
use nvlink_tests::{
    ControlPlane, Exporter, Kubelet, Node, Webhook, assets, kubelet::Container, node, programs,
    wait_until, webhook,
};
use serde_json::Value;

use crate::terminal::Terminal;

const SOON: Duration = Duration::from_secs(60);

/// Name, simulation, GPUs and CPUs. The scheduler prefers the emptiest node, which is the one with
/// the most CPUs: the node without NVLink.
pub(crate) const NODES: [(&str, &str, u32, u32); 4] = [
    ("dgx", "dgx-h100", 8, 112),
    ("hgx", "hgx-a100-4", 4, 64),
    ("pairs", "a100-pcie-pairs", 8, 96),
    ("l40s", "l40s", 8, 192),
];

/// The running programs. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) webhook: Webhook,
    pub(crate) exporters: Vec<(&'static str, Exporter)>,
    /// Stand-ins for the kubelets, by node: they tell the exporters who holds which GPUs.
    kubelets: Vec<(&'static str, Kubelet)>,
    pub(crate) control_plane: ControlPlane,
}

pub(crate) fn start(terminal: &Terminal) -> Result<Cluster> {
    let control_plane = start_control_plane(terminal)?;
    let kubelets = NODES
        .into_iter()
        .map(|(name, ..)| Ok((name, Kubelet::start()?)))
        .collect::<Result<Vec<_>>>()?;
    let exporters = start_nodes(terminal, &control_plane, &kubelets)?;
    terminal.step("The webhook, over TLS")?;
    let webhook = Webhook::start(control_plane.kubeconfig())?;
    terminal.say(&format!(
        "It serves the API server at {}. It is not registered yet: first, a job without it.",
        webhook.url
    ))?;
    Ok(Cluster {
        webhook,
        exporters,
        kubelets,
        control_plane,
    })
}

impl Cluster {
    /// Gives the pod the best GPUs of its node for an all-reduce, as its kubelet would report it.
    pub(crate) fn allocate(&self, pod: &Value, gpus: usize) -> Result<()> {
        let text = |pointer| pod.pointer(pointer).and_then(Value::as_str);
        let node = text("/spec/nodeName").context("the pod has no node")?;
        let profile = NODES.iter().find(|(name, ..)| *name == node);
        let source = format!("sim:{}", profile.context("an unknown node")?.1);
        let print = |arguments: &[&str]| -> Result<Value> {
            let common = ["--source", &source, "--node-name", node, "--output", "json"];
            let text = programs::run(programs::EXPORTER, &[arguments, &common].concat(), "")?;
            Ok(serde_json::from_str(&text)?)
        };
        let topology = print(&["topology"])?;
        let placement = print(&["place", "--gpus", &gpus.to_string()])?;
        let chosen = placement["gpus"].as_array().into_iter().flatten();
        let uuids: Vec<_> = chosen
            .filter_map(Value::as_u64)
            .filter_map(|index| {
                topology["spec"]["gpus"][usize::try_from(index).ok()?]["uuid"].as_str()
            })
            .collect();
        let kubelet = self.kubelets.iter().find(|(name, _)| *name == node);
        let (_, kubelet) = kubelet.context("an unknown node")?;
        kubelet.run_pod(
            text("/metadata/namespace").unwrap_or_default(),
            text("/metadata/name").unwrap_or_default(),
            [Container::named("train").holding("nvidia.com/gpu", &uuids)],
        );
        Ok(())
    }
}

fn start_control_plane(terminal: &Terminal) -> Result<ControlPlane> {
    terminal.step("A real Kubernetes control plane")?;
    let version = assets::kubernetes_version();
    if !assets::ready() {
        terminal.say(&format!(
            "Building Kubernetes {version} from source, the first time only: 6 to 10 minutes on 2 cores."
        ))?;
    }
    assets::build()?;
    let control_plane = ControlPlane::start()?;
    webhook::install_crds(control_plane.kubectl())?;
    terminal.say(&format!(
        "etcd, API server, scheduler and controllers of Kubernetes {version} run on loopback."
    ))?;
    Ok(control_plane)
}

fn start_nodes(
    terminal: &Terminal,
    control_plane: &ControlPlane,
    kubelets: &[(&str, Kubelet)],
) -> Result<Vec<(&'static str, Exporter)>> {
    terminal.step("Four GPU nodes of different kinds, an exporter on each")?;
    let kubectl = control_plane.kubectl();
    let nodes = NODES.map(|(name, _, gpus, cpus)| Node::new(name, gpus).cpus(cpus));
    node::create(kubectl, &nodes)?;
    let start =
        |((name, profile, ..), (_, kubelet)): ((&'static str, &str, u32, u32), &(_, Kubelet))| {
            let source = format!("sim:{profile}");
            let socket = kubelet.socket().to_string_lossy();
            let arguments = ["--source", &source, "--kubelet-socket", &socket];
            Ok((
                name,
                Exporter::publishing(control_plane.kubeconfig(), name, &arguments)?,
            ))
        };
    let exporters = NODES
        .into_iter()
        .zip(kubelets)
        .map(start)
        .collect::<Result<Vec<_>>>()?;
    wait_until("all nodes to be labelled", SOON, || {
        let labelled = kubectl.get(&["nodes", "-l", "nvlink-domains.io/domain-size"])?;
        Ok((labelled["items"].as_array().map(Vec::len) == Some(NODES.len())).then_some(()))
    })?;
    terminal.say("Each exporter has published what it found as labels of its Node, and the whole graph\nas a NodeTopology object.")?;
    let columns = "NODE:.metadata.name,GPUS:.status.capacity.nvidia\\.com/gpu,\
        INTERCONNECT:.metadata.labels.nvlink-domains\\.io/interconnect,\
        DOMAIN-SIZE:.metadata.labels.nvlink-domains\\.io/domain-size,\
        GB/S PER GPU:.metadata.labels.nvlink-domains\\.io/bandwidth";
    terminal.command("kubectl get nodes -o custom-columns=…")?;
    terminal.output(&kubectl.run(&[
        "get",
        "nodes",
        "-o",
        &format!("custom-columns={columns}"),
    ])?)?;
    Ok(exporters)
}
