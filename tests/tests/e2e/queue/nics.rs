//! Claims that ask for the NICs next to their GPUs, of a stand-in of DRANET: the slices that it writes, by
//! pkg/inventory/db.go and pkg/apis/attributes.go of August 2026, where RDMA devices have a network namespace
//! each (`rdma system set netns exclusive`). While a pod has a NIC, DRANET sees its PCI function, but neither
//! its interface nor its RDMA device.

use std::collections::BTreeMap;

use nvlink_tests::{assets, wait_until};
use serde_json::{Value, json};

use super::cluster::{Cluster, SOON, job, root_of, waits};

/// The GPU next to each NIC: names follow the slots, which are not in the order of the GPUs.
const GPUS: [u32; 8] = [2, 3, 0, 1, 6, 7, 4, 5];

fn address_of(gpu: u32) -> String {
    format!("0000:{gpu:x}1:00.0")
}

fn device_of(gpu: u32) -> String {
    address_of(gpu).replace([':', '.'], "-")
}

fn rdma_of(gpu: u32) -> String {
    let at = GPUS.iter().position(|one| *one == gpu).unwrap();
    format!("mlx5_{at}")
}

/// Writes the slice of DRANET for node `n1`; pods have the NICs of the GPUs `in_use`. The node's own NIC is not
/// published, but one without RDMA is, at the root of GPUs 0 and 1.
fn publish(cluster: &Cluster, in_use: &[u32]) {
    let text = |text: &str| json!({"string": text});
    let nic = |gpu: u32| {
        let away = in_use.contains(&gpu);
        let mut attributes = json!({
            "dra.net/pciAddress": text(&address_of(gpu)),
            "resource.kubernetes.io/pcieRoot": text(&root_of(gpu)),
            "dra.net/rdma": {"bool": !away},
        });
        if !away {
            attributes["dra.net/rdmaDevice"] = text(&rdma_of(gpu));
            attributes["dra.net/ifName"] = text(&format!("gpu{gpu}rdma0"));
            attributes["dra.net/encapsulation"] = text("ether");
        }
        json!({"name": device_of(gpu), "attributes": attributes})
    };
    let storage = json!({"name": "0000-00-02-0", "attributes": {
        "dra.net/pciAddress": text("0000:00:02.0"), "dra.net/ifName": text("ens2"),
        "resource.kubernetes.io/pcieRoot": text(&root_of(0)), "dra.net/rdma": {"bool": false},
    }});
    let devices: Vec<Value> = (0..8).map(nic).chain([storage]).collect();
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": "n1-dra.net"},
        "spec": {
            "driver": "dra.net", "nodeName": "n1", "devices": devices,
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        },
    });
    cluster.plane.kubectl().apply(&slice.to_string()).unwrap();
}

/// Returns the GPUs whose NICs the scheduler allocated to a pod, by rank, and asserts that its containers are
/// told these, and that each is at the root of its GPU.
fn nics(cluster: &Cluster, pod: &Value) -> Vec<u32> {
    let name = &pod["spec"]["resourceClaims"][0]["resourceClaimName"];
    let claim = ["resourceclaim", name.as_str().unwrap()];
    let claim = cluster.team.get(&claim).unwrap();
    let results = claim["status"]["allocation"]["devices"]["results"].clone();
    let results = results.as_array().unwrap().iter();
    let by_request: BTreeMap<&str, &str> = results
        .map(|one| {
            (
                one["request"].as_str().unwrap(),
                one["device"].as_str().unwrap(),
            )
        })
        .collect();
    let ranks = by_request.len() / 2;
    let gpu_with = |device: &str, of: fn(u32) -> String| {
        let mut gpus = 0..8;
        gpus.find(|gpu| of(*gpu) == device).unwrap()
    };
    let of_ranks = (0..ranks).map(|rank| {
        let nic = gpu_with(by_request[&*format!("nics-{rank}")], device_of);
        let gpu = by_request[&*format!("rank-{rank}")];
        assert_eq!(gpu_with(gpu, super::cluster::device_of), nic, "the nearest");
        nic
    });
    let own: Vec<u32> = of_ranks.collect();
    let names: Vec<String> = own.iter().map(|gpu| rdma_of(*gpu)).collect();
    let annotation = |key: &str| {
        let key = format!("nvlink-domains.io/{key}.0-{}-{ranks}", ranks - 1);
        pod["metadata"]["annotations"][key].clone()
    };
    assert_eq!(annotation("queue-hcas"), format!("={}", names.join(",")));
    let ports: Vec<String> = names.iter().map(|name| format!("{name}:1")).collect();
    assert_eq!(annotation("queue-hca-ports"), ports.join(","));
    own
}

/// Starts node `n1`, whose NICs DRANET lists, and a class that gives each GPU one of them. Asserts that a pod
/// which is there before DRANET waits, and says for what.
fn start() -> Cluster {
    let spec = json!({
        "environment": {"fabric": "RoCE", "networkInterface": "eth0"},
        "devices": {"mapping": "Claim", "nics": {"deviceClassName": "rdma"}},
    });
    let cluster = Cluster::claiming_with(&[("n1", "sim:dgx-h100")], json!({}), spec);
    cluster.create("early", 1);
    wait_until("the reason", SOON, || {
        let pod = cluster.pod("early");
        let why = &pod["metadata"]["annotations"]["nvlink-domains.io/queue-reason"];
        let why = why.as_str().unwrap_or_default();
        Ok((why.contains("DeviceClass rdma") && waits(&pod)).then_some(()))
    })
    .unwrap();
    let expression =
        "device.driver == 'dra.net' && device.attributes['dra.net'].?rdma.orValue(false)";
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "rdma"},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    });
    cluster.plane.kubectl().create(&class).unwrap();
    publish(&cluster, &[]);
    cluster
}

/// Creates a gang of two pods with two GPUs each. The leader dies between their claims.
fn start_gang(cluster: &mut Cluster) {
    cluster.restart_to_die_after("claim=1");
    for name in ["g-0", "g-1"] {
        let mut pod = job(name, 2);
        pod["metadata"]["annotations"] = json!({
            "nvlink-domains.io/gang": "g", "nvlink-domains.io/gang-size": "2",
        });
        cluster.team.create(&pod).unwrap();
    }
    wait_until("the leader to die after the first claim", SOON, || {
        let claims = cluster.team.get(&["resourceclaims"])?;
        let claims = claims["items"].as_array().map(Vec::len);
        Ok((claims == Some(2)).then_some(()))
    })
    .unwrap();
    cluster.restart();
}

/// Asserts where the variables of the pod come from.
fn reads_variables(pod: &Value) {
    let env = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    let by = |name: &str| env.iter().find(|one| one["name"] == name).unwrap();
    for (variable, key) in [
        ("NCCL_IB_HCA", "queue-hcas"),
        ("UCX_NET_DEVICES", "queue-hca-ports"),
        ("NVSHMEM_HCA_LIST", "queue-hca-ports"),
    ] {
        let path = format!("metadata.annotations['nvlink-domains.io/{key}.0-1-2']");
        assert_eq!(by(variable)["valueFrom"]["fieldRef"]["fieldPath"], *path);
    }
    assert_eq!(by("UCX_TLS")["value"], "rc,cuda,sm,self");
}

#[test]
fn each_gpu_comes_with_the_nic_next_to_it() {
    if assets::lacks("resource.k8s.io/v1", 34) {
        return;
    }
    let mut cluster = start();
    let mut taken = nics(&cluster, &cluster.bound("early"));
    start_gang(&mut cluster);
    for name in ["g-0", "g-1"] {
        let pod = cluster.bound(name);
        taken.extend(nics(&cluster, &pod));
        reads_variables(&pod);
    }
    // DRANET looks again, and sees less of the NICs that pods have.
    publish(&cluster, &taken);
    cluster.create("rest", 3);
    taken.extend(nics(&cluster, &cluster.bound("rest")));
    taken.sort_unstable();
    assert_eq!(taken, (0..8).collect::<Vec<_>>(), "no NIC twice");
}
