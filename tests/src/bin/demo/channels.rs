//! IMEX channels for a job over two trays of an NVL72, with NVIDIA's driver for ComputeDomains.

use std::time::Duration;

use anyhow::{Result, ensure};
use nvlink_tests::{ComputeDomains, Exporter, Kubectl, Node, node, wait_until};
use serde_json::json;

use crate::{nodes::Cluster, queue::wait_for_class, terminal::Terminal};

const CLASS: &str = include_str!("rack-class.yaml");
const TRAYS: [&str; 2] = ["tray-1", "tray-2"];
const PODS: [&str; 2] = ["wide-0", "wide-1"];
/// The fabric of the simulated trays.
const CLIQUE: &str = "6f1f4e35-9c0b-4d52-8a67-2b0c7e91d3a8.1";
const SOON: Duration = Duration::from_secs(90);

pub(crate) fn show(terminal: &Terminal, cluster: &Cluster) -> Result<()> {
    terminal.step("One job over two trays of a rack")?;
    terminal.say("Two trays of an NVL72 are simulated, without a kubelet, and so is NVIDIA's driver for ComputeDomains.\nWithout an IMEX channel in each pod, NCCL fails there. The queue manages the channels of this class:")?;
    terminal.file(CLASS)?;
    let control_plane = &cluster.control_plane;
    let all = control_plane.kubectl();
    all.apply(CLASS)?;
    terminal.command("kubectl apply -f rack.yaml\n")?;
    node::create(all, &TRAYS.map(|name| Node::new(name, 4).pool("rack")))?;
    let source = ["--source", "sim:gb200-nvl72"];
    let describe = |name| Exporter::publishing(control_plane.kubeconfig(), name, &source);
    let _exporters = [describe(TRAYS[0])?, describe(TRAYS[1])?];
    let driver = ComputeDomains::start(control_plane, &TRAYS.map(|name| (name, Some(CLIQUE))))?;
    let kubectl = control_plane.namespace("rack", &json!({}), &json!({}))?;
    wait_for_class(&kubectl, &json!({"nvlink-domains.io/class": "rack"}))?;

    terminal.say("Each exporter says in which tray of the rack its node is:")?;
    let list = ["get", "nodetopologies", TRAYS[0], TRAYS[1]];
    terminal.command("kubectl get nodetopologies tray-1 tray-2")?;
    terminal.output(&all.run(&list)?)?;
    terminal.say("A job of two pods names the class. Before it starts, the queue makes its ComputeDomain, and the\nclaim of each pod for the channel of its node:")?;
    PODS.iter().try_for_each(|name| create(&kubectl, name))?;
    wait_until("the job to be on two trays", SOON, || {
        let pods = kubectl.get(&["pods", "--field-selector", "spec.nodeName!="])?;
        let count = pods["items"].as_array().map_or(0, Vec::len);
        ensure!(count == PODS.len(), "{count} pods:\n{}", driver.log());
        Ok(Some(()))
    })?;
    show_claims(terminal, &kubectl)?;
    terminal.say("NCCL_MNNVL_ENABLE is 2. A job that does not fit into one rack would have no channels, and 0. Where the\npods go, their ComputeDomain goes, too.")?;
    let delete = ["delete", "pods", "--all", "--force", "--grace-period=0"];
    kubectl.run(&delete)?;
    let gone = [
        "wait",
        "computedomains",
        "--all",
        "--for=delete",
        "--timeout=60s",
    ];
    kubectl.run(&gone)?;
    all.run(&["delete", "domainclass", "rack"])?;
    all.run(&["delete", "node", TRAYS[0], TRAYS[1]]).map(drop)
}

fn create(kubectl: &Kubectl, name: &str) -> Result<()> {
    let container = json!({
        "name": "train", "image": "busybox:1", "resources": {"limits": {"nvidia.com/gpu": 4}},
    });
    let annotations = json!({
        "nvlink-domains.io/class": "rack", "nvlink-domains.io/gang": "wide",
        "nvlink-domains.io/gang-size": PODS.len().to_string(),
    });
    let mut spec = json!({"restartPolicy": "Never", "containers": [container]});
    node::in_pool(&mut spec, "rack");
    kubectl
        .create(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "annotations": annotations}, "spec": spec,
        }))
        .map(drop)
}

fn show_claims(terminal: &Terminal, kubectl: &Kubectl) -> Result<()> {
    let columns = "POD:.metadata.name,NODE:.spec.nodeName,\
        NCCL_MNNVL_ENABLE:.metadata.annotations.nvlink-domains\\.io/queue-mnnvl";
    let columns = format!("custom-columns={columns}");
    terminal.command("kubectl get pods --namespace rack -o custom-columns=…")?;
    terminal.output(&kubectl.run(&["get", "pods", "-o", &columns])?)?;
    let columns = "POD:.status.reservedFor[0].name,\
        NODE:.status.allocation.devices.results[0].pool,\
        DEVICE:.status.allocation.devices.results[0].device";
    let columns = format!("custom-columns={columns}");
    terminal.command("kubectl get resourceclaims --namespace rack -o custom-columns=…")?;
    terminal.output(&kubectl.run(&["get", "resourceclaims", "-o", &columns])?)
}
