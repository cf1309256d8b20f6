//! The variables that each fabric and each kind of device sets in containers:
//! `tests/golden/fabrics.txt`, `unfit.txt` and `devices.txt`.

use nvlink_api::class::Class;
use nvlink_topology::labels;

use crate::fixture::{
    admission, check_golden, pod,
    story::{CONTAINERS, METADATA, story_of},
    subject, with,
};
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

/// Returns the story of what `environment` sets in the containers of `pod`.
fn environment(title: &str, environment: Value, pod: Value) -> String {
    story_of(title, &json!({"environment": environment}), pod, CONTAINERS)
}

/// Returns the pod with KAI as its scheduler.
fn placed_by_kai(mut pod: Value) -> Value {
    pod["spec"]["schedulerName"] = json!("kai-scheduler");
    pod
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
        environment("the user's values are kept", infiniband.clone(), set),
        environment("one node needs no network", infiniband.clone(), alone()),
        environment(
            "one GPU does not communicate",
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
        environment(
            "the nodes share NVLink, but jobs must not use it",
            json!({"fabric": "RoCE", "rdmaDevices": ["mlx5_0"], "mnnvl": "Disabled"}),
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
            "the class's own variables override the table",
            json!({"fabric": "TCP", "extra": {"UCX_TLS": "tcp,cuda", "NCCL_DEBUG": "WARN"}}),
            gang(),
        ),
    ];
    check_golden("fabrics.txt", &text.concat());
}

/// Pods in which a variable would break the job, or would not be read.
#[test]
fn variables_that_do_not_fit() {
    let tcp = json!({"fabric": "TCP", "networkInterface": "eth0"});
    let roce = json!({"fabric": "RoCE", "networkInterface": "eth0", "rdmaDevices": ["mlx5_0"]});
    let of_host = |env: Value| {
        let mut pod = gang();
        pod["spec"]["hostNetwork"] = json!(true);
        pod["spec"]["containers"][0]["env"] = env;
        pod
    };
    let own = json!([{"name": "NCCL_SOCKET_IFNAME", "value": "=ens3"}]);
    let mapped = json!([{"name": "NVSHMEM_HCA_PE_MAPPING", "value": "mlx5_0:1:4"}]);
    let mut worker = gang();
    worker["spec"]["containers"][0]["command"] = json!(["/usr/sbin/sshd", "-De"]);
    let text = [
        environment("the host's network, TCP", tcp.clone(), of_host(json!([]))),
        environment("the host's network, RoCE", roce.clone(), of_host(json!([]))),
        environment(
            "the host's interface, named by the pod",
            tcp.clone(),
            of_host(own),
        ),
        environment(
            "the host's interface, named by the class",
            json!({"fabric": "TCP", "networkInterface": "eth0", "extra": {"NCCL_SOCKET_IFNAME": "=ens3"}}),
            of_host(json!([])),
        ),
        environment(
            "NVSHMEM has a map of its own",
            roce.clone(),
            with(gang(), "/spec/containers/0", "env", mapped),
        ),
        environment("a worker of an MPIJob", roce, worker.clone()),
        environment("no variables that its ranks need", json!({}), worker),
    ];
    check_golden("unfit.txt", &text.concat());
}

/// Reports whether the user is warned about IMEX channels in a class with `environment`, if `rack`
/// nodes share NVLink.
fn told(environment: Value, rack: u32, pod: &Value) -> bool {
    let admission = admission(&[]);
    let spec = serde_json::from_value(json!({"environment": environment})).unwrap();
    let class = Class::new("own", &spec).map_err(|error| error.to_string());
    let mut view = admission.view.write();
    view.set_class("own", class);
    for node in 0..rack {
        let labels = [
            (labels::DOMAIN_SIZE, "8"),
            (labels::BANDWIDTH, "900"),
            (labels::DOMAIN, "rack"),
        ];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        view.set_node(&format!("gb200-{node}"), labels.into());
    }
    drop(view);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let admitted = runtime.block_on(admission.admit(pod.clone(), "ci", &subject()));
    let warnings = admitted.unwrap().warnings;
    warnings
        .iter()
        .any(|line| line.contains("NCCL fails where it finds no IMEX channel"))
}

#[test]
fn gangs_on_shared_nvlink_are_warned_about_channels() {
    let alone = pod(8, own(json!({})));
    let none = || json!({});
    assert!(told(none(), 2, &gang()));
    assert!(told(json!({"fabric": "MNNVL"}), 0, &gang()));
    assert!(told(
        json!({"fabric": "MNNVL", "mnnvl": "Auto"}),
        0,
        &gang()
    ));
    // No rank of another pod shares a fabric.
    assert!(!told(none(), 1, &gang()) && !told(none(), 2, &alone));
    // The class sets what NCCL does, or states that each pod has a channel.
    assert!(!told(json!({"mnnvl": "Disabled"}), 2, &gang()));
    assert!(!told(
        json!({"fabric": "MNNVL", "mnnvl": "Required"}),
        2,
        &gang()
    ));
    assert!(!told(
        json!({"extra": {"NCCL_MNNVL_ENABLE": "0"}}),
        2,
        &gang()
    ));
    // The pod itself does.
    let variable = json!([{"name": "NCCL_MNNVL_ENABLE", "value": "0"}]);
    let settled = with(gang(), "/spec/containers/0", "env", variable);
    assert!(!told(none(), 2, &settled));
    let claim = json!([{"name": "channel", "resourceClaimTemplateName": "train-channel"}]);
    let claiming = with(gang(), "/spec", "resourceClaims", claim);
    assert!(!told(none(), 2, &claiming));
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
    let fraction = || {
        let mut pod = holding(json!({"cpu": 1}));
        let annotations = &mut pod["metadata"]["annotations"];
        annotations["gpu-fraction"] = json!("0.5");
        annotations["gpu-fraction-container-name"] = json!("second");
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
            "a part of a GPU, as HAMi allocates it",
            json!({}),
            holding(part),
        ),
        devices(
            "a GPU under another vendor's name",
            json!({}),
            holding(json!({"volcano.sh/vgpu-number": 1})),
        ),
        devices("a fraction of a GPU, as KAI allocates it", json!({}), {
            let mut pod = fraction();
            pod["spec"]["schedulerName"] = json!("kai-scheduler");
            pod
        }),
        devices(
            "a fraction of a GPU, in a pod that another scheduler places",
            json!({}),
            fraction(),
        ),
        devices(
            "a class of nodes that share GPUs",
            json!({"nodeSelector": {"matchLabels": sharing}}),
            pod(2, own(json!({}))),
        ),
        devices(
            "a pod for nodes that partition GPUs",
            json!({}),
            on("nvidia.com/mig.strategy", "single"),
        ),
        devices(
            "a pod for nodes that do not partition GPUs",
            json!({}),
            on("nvidia.com/mig.strategy", "none"),
        ),
        devices(
            "a pod that waits in the queue",
            json!({"placement": {"whenUnavailable": "Queue"}}),
            pod(2, own(json!({}))),
        ),
        devices(
            "a claim of the queue replaces the resource",
            json!({"placement": {"whenUnavailable": "Queue"}, "devices": {"mapping": "Claim"}}),
            pod(2, own(json!({}))),
        ),
        devices(
            "a claim with the NICs of the GPUs, for a gang",
            json!({
                "placement": {"whenUnavailable": "Queue"}, "environment": {"fabric": "Infiniband"},
                "devices": {"mapping": "Claim", "nics": {"deviceClassName": "rdma", "perGpu": 2}}
            }),
            pod(2, own(json!({labels::GANG: "g", labels::GANG_SIZE: "2"}))),
        ),
        devices(
            "the node's plugin orders the GPUs",
            json!({"devices": {"mapping": "Preferred"}}),
            pod(2, own(json!({}))),
        ),
        devices(
            "a pod that cannot wait for its claim",
            json!({"placement": {"whenUnavailable": "Queue"}, "devices": {"mapping": "Claim"}}),
            placed_by_kai(pod(2, own(json!({})))),
        ),
        devices(
            "a class that only claims pods never refuses them",
            json!({
                "placement": {"whenUnavailable": "Queue"}, "devices": {"mapping": "Claim"},
                "appliesTo": {"minGpus": 2, "precedence": 9}
            }),
            placed_by_kai(pod(2, json!({}))),
        ),
    ];
    check_golden("devices.txt", &text.concat());
}

#[test]
fn the_decision_says_what_chooses_the_gpus() {
    let decision = |spec: Value| story_of("decision", &spec, pod(2, own(json!({}))), METADATA);
    let preferred = decision(json!({"devices": {"mapping": "Preferred"}}));
    assert!(
        preferred.contains(r#"\"devices\":\"Preferred\""#),
        "{preferred}"
    );
    let plugin = decision(json!({}));
    assert!(plugin.contains("decision") && !plugin.contains(r#"\"devices\""#));
}
