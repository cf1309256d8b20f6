//! The cluster: a real control plane, four real nodes with simulated GPUs, an exporter for each,
//! and the webhook.

use std::{path::PathBuf, thread, time::Duration};

use anyhow::{Context, Result, anyhow};
use nvlink_tests::{
    ControlPlane, Exporter, Lab, LabNode, Webhook, assets, port, programs, wait_until, webhook,
};
use serde_json::{Value, json};

use crate::{queue, terminal::Terminal};

pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Name and simulation.
pub(crate) const NODES: [(&str, &str); 4] = [
    ("dgx", "dgx-h100"),
    ("hgx", "hgx-a100-4"),
    ("pairs", "a100-pcie-pairs"),
    ("l40s", "l40s"),
];

/// The node without NVLink, and without a notebook.
const EMPTIEST: &str = "l40s";

/// The running programs. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) webhook: Webhook,
    /// The address of the webhook's page of the cluster.
    pub(crate) page: String,
    pub(crate) exporters: Vec<(&'static str, Exporter)>,
    /// The directory of kubectl's plugin.
    pub(crate) plugin: PathBuf,
    _labs: Vec<Lab>,
    pub(crate) control_plane: ControlPlane,
}

impl Cluster {
    /// Returns the exporter of a node.
    ///
    /// # Errors
    /// When there is no such node.
    pub(crate) fn exporter(&self, node: &str) -> Result<&Exporter> {
        let found = self.exporters.iter().find(|(name, _)| *name == node);
        let (_, exporter) = found.with_context(|| format!("{node} is an unknown node"))?;
        Ok(exporter)
    }
}

pub(crate) fn start(terminal: &Terminal) -> Result<Cluster> {
    terminal.step("A real Kubernetes control plane")?;
    terminal.say(&format!(
        "etcd, API server, scheduler and controllers of Kubernetes {} start on loopback.",
        assets::kubernetes_version()
    ))?;
    let control_plane = ControlPlane::start_for_kubelets()?;
    webhook::install_crds(control_plane.kubectl())?;
    terminal.step("Four GPU nodes of different kinds, an exporter for each")?;
    terminal.say(
        "kubelet, containerd, kube-proxy and a device plugin with simulated GPUs start on each.",
    )?;
    let labs = start_nodes(&control_plane)?;
    let exporters = start_exporters(terminal, &control_plane, &labs)?;
    start_notebooks(terminal, &control_plane)?;
    terminal.step("The webhook, over TLS")?;
    let page = port::address()?.to_string();
    let listens = ["--web.listen-address", &page];
    let webhook = Webhook::start_with(control_plane.kubeconfig(), &listens)?;
    terminal.say(&format!(
        "It serves the API server at {}, and a page of the cluster at\nhttp://{page}/. It is not registered yet: first, a job without it.",
        webhook.url
    ))?;
    install_policies(terminal, &control_plane)?;
    Ok(Cluster {
        webhook,
        page: format!("http://{page}/"),
        exporters,
        plugin: queue::plugin()?,
        _labs: labs,
        control_plane,
    })
}

/// Installs the policies, by which the API server refuses what the webhook would refuse, also while no
/// webhook runs.
fn install_policies(terminal: &Terminal, control_plane: &ControlPlane) -> Result<()> {
    terminal
        .say("The API server enforces the same rules by policies, also while no webhook runs:")?;
    terminal.command(
        "nvlink-webhook policies --lease-namespace default | kubectl apply --server-side -f -",
    )?;
    let print = ["policies", "--lease-namespace", "default"];
    let policies = programs::run(programs::WEBHOOK, &print, "")?;
    let apply = ["apply", "--server-side", "-f", "-"];
    let applied = control_plane.kubectl().run_with(&apply, &policies)?;
    let bindings = applied
        .lines()
        .filter(|line| line.starts_with("validatingadmissionpolicybinding"));
    terminal.output(&format!(
        "{} policies with their bindings",
        bindings.count()
    ))
}

fn start_nodes(control_plane: &ControlPlane) -> Result<Vec<Lab>> {
    thread::scope(|scope| {
        let starting = NODES.map(|(name, profile)| {
            scope.spawn(move || Lab::start(control_plane, &LabNode::new(name, profile)))
        });
        let started = starting.into_iter().map(|node| {
            node.join()
                .map_err(|_| anyhow!("the start of a node panicked"))?
        });
        started.collect()
    })
}

fn start_exporters(
    terminal: &Terminal,
    control_plane: &ControlPlane,
    labs: &[Lab],
) -> Result<Vec<(&'static str, Exporter)>> {
    let kubectl = control_plane.kubectl();
    let start = |((name, profile), lab): ((&'static str, &str), &Lab)| {
        let source = format!("sim:{profile}");
        let socket = lab.pod_resources();
        let socket = socket.to_string_lossy();
        let arguments = ["--source", &source, "--kubelet-socket", &socket];
        let arguments = [&arguments[..], &["--collection-interval", "1s"]].concat();
        let exporter = Exporter::publishing(control_plane.kubeconfig(), name, &arguments)?;
        Ok((name, exporter))
    };
    let exporters = NODES.into_iter().zip(labs).map(start);
    let exporters = exporters.collect::<Result<Vec<_>>>()?;
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

/// Starts a pod with one GPU on each node except [`EMPTIEST`], which the scheduler then prefers.
fn start_notebooks(terminal: &Terminal, control_plane: &ControlPlane) -> Result<()> {
    terminal.say(&format!(
        "Researchers use notebooks with one GPU each, on all nodes except {EMPTIEST}:"
    ))?;
    let kubectl = control_plane.namespace("research", &json!({}), &json!({}))?;
    for (node, _) in NODES.iter().filter(|(name, _)| *name != EMPTIEST) {
        let capacity = control_plane.kubectl().get(&["node", node])?;
        let cpus = capacity["status"]["capacity"]["cpu"].as_str();
        let cpus: u32 = cpus.context("the node has no CPUs")?.parse()?;
        kubectl.create(&notebook(node, cpus))?;
    }
    let wait = ["wait", "pods", "--all", "--for=condition=Ready"];
    kubectl.run(&[&wait[..], &["--timeout=60s"]].concat())?;
    terminal.command("kubectl get pods --namespace research -o custom-columns=…")?;
    let columns = "NAME:.metadata.name,STATUS:.status.phase,NODE:.spec.nodeName";
    let columns = format!("custom-columns={columns}");
    terminal.output(&kubectl.run(&["get", "pods", "-o", &columns])?)
}

/// Returns a pod that requests a quarter of the CPUs of its node: enough that the scheduler sees
/// the difference, whatever the size of the machine.
fn notebook(node: &str, cpus: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("notebook-{node}")},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{
                "name": "notebook",
                "image": "busybox:1",
                "command": ["sleep", "infinity"],
                "resources": {
                    "requests": {"cpu": format!("{}m", cpus * 250)},
                    "limits": {"nvidia.com/gpu": "1"},
                },
            }],
        },
    })
}
