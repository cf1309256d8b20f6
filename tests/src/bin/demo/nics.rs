//! A network card with each GPU, by one claim: a job on a node that is simulated, as are the DRA drivers of
//! NVIDIA and DRANET there.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nvlink_tests::{Exporter, Kubectl, Node, node, wait_until};
use serde_json::{Value, json};

use crate::{nodes::Cluster, queue::wait_for_class, terminal::Terminal};

const NODE: &str = "cards";
const CLASS: &str = include_str!("nics-class.yaml");
const SOON: Duration = Duration::from_secs(90);

pub(crate) fn show(terminal: &Terminal, cluster: &Cluster) -> Result<()> {
    terminal.step("A network card with each GPU")?;
    terminal.say("Node cards is simulated, without a kubelet. NVIDIA's DRA driver publishes its GPUs, and DRANET its\nnetwork cards, with the PCIe root of each. Jobs of this class get the card at the root of each GPU:")?;
    terminal.file(CLASS)?;
    let control_plane = &cluster.control_plane;
    let all = control_plane.kubectl();
    all.apply(CLASS)?;
    terminal.command("kubectl apply -f cards.yaml\n")?;
    node::create(all, &[Node::new(NODE, 0).pool(NODE)])?;
    let source = ["--source", "sim:dgx-h100"];
    let _exporter = Exporter::publishing(control_plane.kubeconfig(), NODE, &source)?;
    publish(all)?;
    let kubectl = control_plane.namespace(NODE, &json!({}), &json!({}))?;
    wait_for_class(&kubectl, &json!({"nvlink-domains.io/class": "cards"}))?;

    terminal.say("The claim of a job of two GPUs has a request for each GPU and each card. NCCL is told these cards:")?;
    create(&kubectl)?;
    wait_until("the job to be on the node", SOON, || {
        let pod = kubectl.get(&["pod", "train"])?;
        ensure!(pod["spec"]["nodeName"] == NODE, "{:#}", pod["status"]);
        Ok(Some(()))
    })?;
    show_claim(terminal, &kubectl)?;
    let delete = ["delete", "pod", "train", "--force", "--grace-period=0"];
    kubectl.run(&delete)?;
    all.run(&["delete", "domainclass", "cards"])?;
    let slices = ["delete", "resourceslice", "cards-gpus", "cards-nics"];
    all.run(&slices)?;
    all.run(&["delete", "deviceclass", "rdma"])?;
    all.run(&["delete", "node", NODE]).map(drop)
}

/// Publishes the devices of the node.
fn publish(all: &Kubectl) -> Result<()> {
    let rule = "device.driver == 'dra.net' && device.attributes['dra.net'].?rdma.orValue(false)";
    all.create(&json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "rdma"},
        "spec": {"selectors": [{"cel": {"expression": rule}}]},
    }))?;
    let topology = wait_until("the node's topology", SOON, || {
        all.get(&["nodetopology", NODE]).map(Some)
    })?;
    let list = |name: &str| {
        topology["spec"][name]
            .as_array()
            .cloned()
            .unwrap_or_default()
    };
    let gpus = list("gpus").into_iter().map(|gpu| {
        let at = &gpu["index"];
        json!({"name": format!("gpu-{at}"), "attributes": {
            "type": {"string": "gpu"}, "uuid": {"string": gpu["uuid"]},
            "resource.kubernetes.io/pcieRoot": {"string": root(at)},
        }})
    });
    slice(all, "gpus", "gpu.nvidia.com", &gpus.collect::<Vec<_>>())?;
    let nics = list("nics").into_iter().filter_map(|nic| {
        let gpu = nic["gpus"].as_array().filter(|gpus| gpus.len() == 1)?;
        let address = nic["pciBusId"].as_str()?;
        // The driver writes domains of eight digits, the kernel of four.
        let address = address.get(4..)?.to_lowercase();
        let name = format!("pci-{}", address.replace([':', '.'], "-"));
        Some(json!({"name": name, "attributes": {
            "dra.net/pciAddress": {"string": address}, "dra.net/rdma": {"bool": true},
            "resource.kubernetes.io/pcieRoot": {"string": root(&gpu[0])},
        }}))
    });
    slice(all, "nics", "dra.net", &nics.collect::<Vec<_>>())
}

/// Returns the PCIe root of a GPU.
fn root(gpu: &Value) -> String {
    format!("pci0000:{gpu}0")
}

fn slice(all: &Kubectl, name: &str, driver: &str, devices: &[Value]) -> Result<()> {
    let pool = json!({"name": NODE, "generation": 1, "resourceSliceCount": 1});
    all.create(&json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": format!("cards-{name}")},
        "spec": {"driver": driver, "nodeName": NODE, "pool": pool, "devices": devices},
    }))
    .map(drop)
}

fn create(kubectl: &Kubectl) -> Result<()> {
    let container = json!({
        "name": "train", "image": "busybox:1", "resources": {"limits": {"nvidia.com/gpu": 2}},
    });
    let mut spec = json!({"restartPolicy": "Never", "containers": [container]});
    node::in_pool(&mut spec, NODE);
    let annotations = json!({"nvlink-domains.io/class": "cards"});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "train", "annotations": annotations}, "spec": spec,
    });
    kubectl.create(&pod).map(drop)
}

fn show_claim(terminal: &Terminal, kubectl: &Kubectl) -> Result<()> {
    let claims = kubectl.get(&["resourceclaims"])?;
    let results = &claims["items"][0]["status"]["allocation"]["devices"]["results"];
    let results = results.as_array().context("the claim has no devices")?;
    let words = |result: &Value| {
        ["request", "driver", "device"]
            .map(|field| result[field].as_str().unwrap_or_default().to_owned())
            .to_vec()
    };
    let title = ["REQUEST", "DRIVER", "DEVICE"].map(str::to_owned).to_vec();
    terminal.command("kubectl get resourceclaims --namespace cards -o …")?;
    terminal.table(&[vec![title], results.iter().map(words).collect()].concat())?;
    let columns = "custom-columns=POD:.metadata.name,\
        NCCL_IB_HCA:.metadata.annotations.nvlink-domains\\.io/queue-hcas\\.0-1-2";
    terminal.command("kubectl get pods --namespace cards -o custom-columns=…")?;
    terminal.output(&kubectl.run(&["get", "pods", "-o", columns])?)
}
