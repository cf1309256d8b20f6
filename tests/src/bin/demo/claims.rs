//! Exactly the GPUs of the plan, by a claim: a job on a real node with a DRA driver.

use anyhow::{Context, Result};
use nvlink_tests::{ControlPlane, Exporter, Kubectl, Lab, LabNode};
use serde_json::{Value, json};

use crate::{
    alone::Files,
    devices::{self, FREE_OF_MESH, MESH},
    job::{show_log, wait_for_pod},
    nodes::Cluster,
    queue::{end_all, wait_for_class},
    terminal::Terminal,
};

const NODE: &str = "mesh";
const CLASS: &str = include_str!("exact-class.yaml");
const NAMES_CLASS: &str =
    "  template:\n    metadata:\n      annotations:\n        nvlink-domains.io/class: exact\n";

pub(crate) fn show(terminal: &Terminal, cluster: &Cluster) -> Result<()> {
    terminal.step("Exactly these GPUs, by a claim")?;
    terminal.say("One more node starts: the mesh of before, with a DRA driver in place of the device plugin. A\nnotebook holds three of its GPUs. Jobs of one more class get their GPUs by claims:")?;
    terminal.file(CLASS)?;
    let control_plane = &cluster.control_plane;
    create_device_class(control_plane)?;
    control_plane.kubectl().apply(CLASS)?;
    terminal.command("kubectl apply -f exact.yaml\n")?;
    let lab = Lab::start(control_plane, &LabNode::new(NODE, MESH).claimed())?;
    let _exporter = start_exporter(control_plane, &lab)?;
    let kubectl = control_plane.namespace("exact", &json!({}), &json!({}))?;
    start_notebook(&kubectl, &lab)?;
    wait_for_class(&kubectl, &json!({"nvlink-domains.io/class": "exact"}))?;

    terminal.say("The job of four GPUs names the class. The queue chooses the GPUs and makes a claim for them, one\nrequest for each rank, and the scheduler allocates these:")?;
    terminal.command("kubectl create -f job.yaml --namespace exact")?;
    let job = Files::JOB.replace("  template:\n", NAMES_CLASS);
    terminal.output(&kubectl.run_with(&["create", "-f", "-"], &job)?)?;
    wait_for_pod(&kubectl, "train")?;
    terminal.command("kubectl get resourceclaims --namespace exact -o custom-columns=…")?;
    let columns = "NAME:.metadata.name,POD:.status.reservedFor[0].name,\
        GPUS:.status.allocation.devices.results[*].device";
    let columns = format!("custom-columns={columns}");
    terminal.output(&kubectl.run(&["get", "resourceclaims", "-o", &columns])?)?;
    terminal.say("A device has the number of its device file, which need not be the index of the GPU. The container sees\nthem in this order: CUDA_VISIBLE_DEVICES counts its own GPUs by PCI address.")?;
    show_log(terminal, &kubectl)?;
    let log = kubectl.run(&["logs", "job/train"])?;
    let ranks = ranks(&log, given(&kubectl, &lab)?).context("the job does not say its order")?;
    devices::show_claimed(terminal, lab.recording(), &ranks)?;
    end_all(&kubectl)
}

/// Creates the class of the devices, as the DRA driver's chart does.
fn create_device_class(control_plane: &ControlPlane) -> Result<()> {
    let selector = "device.driver == 'gpu.nvidia.com' && \
            device.attributes['gpu.nvidia.com'].type == 'gpu'";
    let selector = json!({"cel": {"expression": selector}});
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
        "metadata": {"name": "gpu.nvidia.com"}, "spec": {"selectors": [selector]},
    });
    control_plane.kubectl().create(&class).map(drop)
}

fn start_exporter(control_plane: &ControlPlane, lab: &Lab) -> Result<Exporter> {
    let (source, socket) = (format!("sim:{MESH}"), lab.pod_resources());
    let socket = socket.to_string_lossy();
    let arguments = ["--source", &source, "--kubelet-socket", &socket];
    Exporter::publishing(control_plane.kubeconfig(), NODE, &arguments)
}

/// Starts a pod with a claim of its own for the GPUs that shall not be free.
fn start_notebook(kubectl: &Kubectl, lab: &Lab) -> Result<()> {
    let gpus = lab.recording()["spec"]["gpus"]
        .as_array()
        .into_iter()
        .flatten();
    let held = gpus.filter(|gpu| {
        gpu["index"]
            .as_u64()
            .is_some_and(|index| !FREE_OF_MESH.contains(&index))
    });
    let held: Vec<&Value> = held.map(|gpu| &gpu["uuid"]).collect();
    let expression = format!(
        "device.attributes['gpu.nvidia.com'].uuid in {}",
        json!(held)
    );
    let request = json!({
        "name": "gpus",
        "exactly": {
            "deviceClassName": "gpu.nvidia.com", "count": held.len(),
            "selectors": [{"cel": {"expression": expression}}],
        },
    });
    kubectl.create(&json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "notebook"}, "spec": {"devices": {"requests": [request]}},
    }))?;
    let container = json!({
        "name": "notebook", "image": "busybox:1",
        "command": ["sh", "-c", "until [ -e /tmp/trained ] && ! pidof touch >/dev/null; do sleep 0.1; done"],
        "resources": {"claims": [{"name": "gpus"}]},
    });
    kubectl.create(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "notebook"},
        "spec": {
            "restartPolicy": "Never",
            "resourceClaims": [{"name": "gpus", "resourceClaimName": "notebook"}],
            "containers": [container],
        },
    }))?;
    let wait = [
        "wait",
        "pod/notebook",
        "--for=condition=Ready",
        "--timeout=60s",
    ];
    kubectl.run(&wait).map(drop)
}

/// Returns the indices of the GPUs that the scheduler gave to the job.
fn given(kubectl: &Kubectl, lab: &Lab) -> Result<Vec<u64>> {
    let claims = kubectl.get(&["resourceclaims"])?;
    let claims = claims["items"].as_array().into_iter().flatten();
    let of_job = claims.filter(|claim| claim["metadata"]["name"] != "notebook");
    let results = of_job.filter_map(|claim| {
        let allocation = &claim["status"]["allocation"];
        allocation["devices"]["results"].as_array()
    });
    let devices = lab.claimable()?;
    let gpu = |result: &Value| devices.get(result["device"].as_str()?).copied();
    let gpus = results.flatten().filter_map(gpu);
    Ok(gpus.map(u64::from).collect())
}

/// Returns the indices of the GPUs that a container sees, by rank, from the output of `env`.
fn ranks(log: &str, mut gpus: Vec<u64>) -> Option<Vec<u64>> {
    gpus.sort_unstable();
    let mut variables = log.lines().filter_map(|line| line.trim().split_once('='));
    let (_, order) = variables.find(|(name, _)| *name == "CUDA_VISIBLE_DEVICES")?;
    let gpu = |at: &str| gpus.get(at.parse::<usize>().ok()?).copied();
    order.split(',').map(gpu).collect()
}
