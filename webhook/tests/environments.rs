//! What each fabric and each kind of device puts into containers:
//! `tests/golden/fabrics.txt` and `devices.txt`.

#![allow(clippy::unwrap_used, clippy::too_many_lines)]

mod fixture;

use fixture::{
    check_golden, pod,
    story::{CONTAINERS, story_of},
};
use nvlink_topology::labels;
use serde_json::{Value, json};

fn own(annotations: Value) -> Value {
    let mut own = json!({labels::CLASS: "own"});
    let more = annotations.as_object().unwrap().clone();
    own.as_object_mut().unwrap().extend(more);
    own
}

fn gang() -> Value {
    pod(8, own(json!({labels::GANG: "g"})))
}

/// What `environment` puts into the containers of `pod`.
fn environment(title: &str, environment: Value, pod: Value) -> String {
    story_of(title, &json!({"environment": environment}), pod, CONTAINERS)
}

#[test]
fn fabrics() {
    let alone = || pod(2, own(json!({})));
    let infiniband = json!({
        "fabric": "Infiniband", "networkInterface": "eth0",
        "rdmaDevices": ["mlx5_1", "mlx5_10"], "gpuDirect": "SYS"
    });
    let roce = |roce: Value| {
        json!({
            "fabric": "RoCE", "networkInterface": "eth0", "rdmaDevices": ["mlx5_0"], "roce": roce
        })
    };
    let chosen = json!({
        "trafficClass": 96, "serviceLevel": 0,
        "addressFamily": "AF_INET6", "addressRange": "fd02::/16"
    });
    let mut set = gang();
    set["spec"]["containers"][0]["env"] = json!([
        {"name": "NCCL_IB_HCA", "value": "mlx5_3"},
        {"name": "UCX_TLS", "value": ""}
    ]);
    let text = [
        environment("InfiniBand", infiniband.clone(), gang()),
        environment("what the user set stays", infiniband.clone(), set),
        environment("one node needs no network", infiniband.clone(), alone()),
        environment(
            "one GPU talks to nobody",
            json!({"fabric": "PCIe", "peerToPeer": "SYS"}),
            pod(1, own(json!({}))),
        ),
        environment(
            "opted out",
            infiniband,
            pod(
                8,
                own(json!({labels::GANG: "g", labels::ENVIRONMENT: "none"})),
            ),
        ),
        environment("RoCE, address chosen by NCCL", roce(chosen), gang()),
        environment(
            "RoCE, address by index",
            roce(json!({"trafficClass": 106, "gidIndex": 3})),
            gang(),
        ),
        environment(
            "TCP",
            json!({"fabric": "TCP", "networkInterface": "eth0"}),
            gang(),
        ),
        environment(
            "MNNVL",
            json!({"fabric": "MNNVL", "networkInterface": "eth0"}),
            gang(),
        ),
        environment(
            "MNNVL required, InfiniBand between racks",
            json!({"fabric": "MNNVL", "networkInterface": "eth0", "rdmaDevices": ["ibp0"], "mnnvl": "Required"}),
            gang(),
        ),
        environment("PCIe only", json!({"fabric": "PCIe"}), alone()),
        environment(
            "PCIe only, peer access measured",
            json!({"fabric": "PCIe", "peerToPeer": "SYS"}),
            alone(),
        ),
        environment(
            "peer access is broken",
            json!({"peerToPeer": "Disabled"}),
            alone(),
        ),
        environment(
            "what the class says beats the table",
            json!({"fabric": "TCP", "extra": {"UCX_TLS": "tcp,cuda", "NCCL_DEBUG": "WARN"}}),
            gang(),
        ),
    ];
    check_golden("fabrics.txt", &text.concat());
}

#[test]
fn devices() {
    let holding = |limits: Value| {
        let mut pod = pod(2, own(json!({})));
        pod["spec"]["containers"]
            .as_array_mut()
            .unwrap()
            .push(json!({
                "name": "second", "resources": {"limits": limits}
            }));
        pod
    };
    let devices = |title, spec, pod| story_of(title, &spec, pod, CONTAINERS);
    let on = |key: &str, value: &str| {
        let mut pod = pod(2, own(json!({})));
        pod["spec"]["nodeSelector"] = json!({key: value});
        pod
    };
    let slices = json!({"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb": 2});
    let part = json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000});
    let sharing = json!({"nvidia.com/gpu.sharing-strategy": "time-slicing"});
    let text = [
        devices(
            "whole GPUs, and a container without",
            json!({}),
            holding(json!({"cpu": 1})),
        ),
        devices(
            "a slice beside whole GPUs",
            json!({}),
            holding(json!({"nvidia.com/mig-1g.10gb": 1})),
        ),
        devices(
            "slices and a whole GPU in one container",
            json!({}),
            holding(slices),
        ),
        devices(
            "a shared GPU",
            json!({}),
            holding(json!({"nvidia.com/gpu.shared": 1})),
        ),
        devices(
            "a part of a GPU, as HAMi hands out",
            json!({}),
            holding(part),
        ),
        devices(
            "a GPU under another vendor's name",
            json!({}),
            holding(json!({"volcano.sh/vgpu-number": 1})),
        ),
        devices("a fraction of a GPU, as KAI hands out", json!({}), {
            let mut pod = holding(json!({"cpu": 1}));
            pod["metadata"]["annotations"]["gpu-fraction"] = json!("0.5");
            pod
        }),
        devices(
            "a class of nodes that share GPUs",
            json!({"nodeSelector": {"matchLabels": sharing}}),
            pod(2, own(json!({}))),
        ),
        devices(
            "a pod for nodes that cut GPUs up",
            json!({}),
            on("nvidia.com/mig.strategy", "single"),
        ),
        devices(
            "a pod for nodes that do not",
            json!({}),
            on("nvidia.com/mig.strategy", "none"),
        ),
        devices(
            "the queue is not there yet",
            json!({"placement": {"whenUnavailable": "Queue"}}),
            pod(2, own(json!({}))),
        ),
        devices(
            "claims need the queue",
            json!({"placement": {"whenUnavailable": "Queue"}, "devices": {"mapping": "Claim"}}),
            pod(2, own(json!({}))),
        ),
        devices(
            "mapped devices need the queue",
            json!({"placement": {"whenUnavailable": "Queue"}, "devices": {"mapping": "Mapped"}}),
            pod(2, own(json!({}))),
        ),
        devices(
            "what claims pods never denies them",
            json!({
                "placement": {"whenUnavailable": "Queue"},
                "appliesTo": {"minGpus": 2, "precedence": 9}
            }),
            pod(2, json!({})),
        ),
    ];
    check_golden("devices.txt", &text.concat());
}
