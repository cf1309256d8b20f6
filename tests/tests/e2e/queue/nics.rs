//! Claims that ask for the NICs next to their GPUs, of a stand-in of DRANET: the slices that it writes, by
//! pkg/inventory/db.go and pkg/apis/attributes.go of August 2026 (commit f258477), where RDMA devices have a
//! network namespace each (`rdma system set netns exclusive`). While a pod has a NIC, DRANET sees its PCI
//! function, but neither its interface nor its RDMA device.

use std::collections::BTreeMap;

use nvlink_tests::{assets, wait_until};
use serde_json::{Value, json};

use super::cluster::{Cluster, SOON, job, root_of, waits};

/// What DRANET says of the RDMA devices of NICs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    /// Up to v1.4.0: not which ones they are, so the exporter's names are used.
    Old,
    /// After commit cc754d2.
    New,
}

/// The NICs of node `n1`, by the GPU next to each: their PCI addresses, as the kernel writes them, and their RDMA
/// devices, as its exporter sees them.
fn cards(cluster: &Cluster) -> BTreeMap<u32, (String, String)> {
    let topology = cluster.plane.kubectl().get(&["nodetopology", "n1"]);
    let nics = topology.unwrap()["spec"]["nics"].clone();
    let nics = nics.as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let card = |nic: &Value| {
        let gpus = nic["gpus"].as_array()?;
        let gpu = gpus.first().filter(|_| gpus.len() == 1)?.as_u64()?;
        let gpu = u32::try_from(gpu).unwrap();
        // NVML's domains have eight digits.
        let address = text(&nic["pciBusId"])[4..].to_lowercase();
        Some((gpu, (address, text(&nic["name"]))))
    };
    nics.filter_map(card).collect()
}

/// Returns the name of a device, by `NormalizePCIAddress` of pkg/names.
fn device_of(address: &str) -> String {
    format!("pci-{}", address.replace([':', '.'], "-"))
}

/// Writes the slice of DRANET for node `n1`; pods have the NICs of the GPUs `in_use`. One without RDMA is at the root
/// of GPUs 0 and 1.
fn publish(cluster: &Cluster, version: Version, in_use: &[u32]) {
    let text = |text: &str| json!({"string": text});
    let nic = |(gpu, (address, name)): (u32, (String, String))| {
        let away = in_use.contains(&gpu);
        let mut attributes = json!({
            "dra.net/pciAddress": text(&address),
            "resource.kubernetes.io/pcieRoot": text(&root_of(gpu)),
            "dra.net/rdma": {"bool": !away},
        });
        if !away {
            attributes["dra.net/ifName"] = text(&format!("gpu{gpu}rdma0"));
            attributes["dra.net/state"] = text("up");
            attributes["dra.net/encapsulation"] = text("ether");
        }
        if !away && version == Version::New {
            attributes["dra.net/rdmaDevice"] = text(&name);
        }
        json!({"name": device_of(&address), "attributes": attributes})
    };
    let storage = json!({"name": device_of("0000:01:00.0"), "attributes": {
        "dra.net/pciAddress": text("0000:01:00.0"), "dra.net/ifName": text("ens2"),
        "resource.kubernetes.io/pcieRoot": text(&root_of(0)), "dra.net/rdma": {"bool": false},
    }});
    let devices: Vec<Value> = cards(cluster)
        .into_iter()
        .map(nic)
        .chain([storage])
        .collect();
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
    let cards = cards(cluster);
    let of_ranks = (0..ranks).map(|rank| {
        let gpu = by_request[&*format!("rank-{rank}")];
        let gpu = (0..8)
            .find(|one| super::cluster::device_of(*one) == gpu)
            .unwrap();
        let nic = by_request[&*format!("nics-{rank}")];
        assert_eq!(nic, device_of(&cards[&gpu].0), "the nearest to {gpu}");
        gpu
    });
    let own: Vec<u32> = of_ranks.collect();
    let names: Vec<&str> = own.iter().map(|gpu| &*cards[gpu].1).collect();
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
    publish(&cluster, Version::Old, &[]);
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
    assert_eq!(by("NVSHMEM_ENABLE_NIC_PE_MAPPING")["value"], "1");
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
    publish(&cluster, Version::New, &taken);
    cluster.create("rest", 3);
    taken.extend(nics(&cluster, &cluster.bound("rest")));
    let mut all = taken.clone();
    all.sort_unstable();
    assert_eq!(all, (0..8).collect::<Vec<_>>(), "no NIC twice");

    // A pod goes, and its NICs come back when DRANET looks again.
    publish(&cluster, Version::New, &taken);
    cluster.end("rest");
    cluster
        .team
        .run(&["delete", "pod", "rest", "--now"])
        .unwrap();
    cluster.create("next", 3);
    wait_until("its turn", SOON, || {
        Ok((!waits(&cluster.pod("next"))).then_some(()))
    })
    .unwrap();
    let next = cluster.pod("next");
    assert!(next["spec"]["nodeName"].is_null(), "DRANET sees no RDMA");
    publish(&cluster, Version::New, &taken[..5]);
    assert_eq!(nics(&cluster, &cluster.bound("next")).len(), 3);
}
