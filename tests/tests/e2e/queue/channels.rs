//! Gangs in one NVLink fabric get IMEX channels: the queue makes their ComputeDomains, and NVIDIA's driver
//! gives the channels.

use nvlink_tests::{ComputeDomains, assets, wait_until};
use serde_json::{Value, json};

use super::cluster::{Cluster, SOON, job, placement, waits};

/// Trays of one rack.
const RACK: [(&str, &str); 2] = [("a1", "sim:gb200-nvl72"), ("a2", "sim:gb200-nvl72")];
/// A node of no fabric.
const APART: (&str, &str) = ("b1", "sim:dgx-h100");
const CLIQUE: &str = "6f1f4e35-9c0b-4d52-8a67-2b0c7e91d3a8.1";

fn lacks_claims() -> bool {
    assets::lacks("resource.k8s.io/v1", 34)
}

fn driver(cluster: &Cluster) -> ComputeDomains {
    let nodes = [("a1", Some(CLIQUE)), ("a2", Some(CLIQUE))];
    ComputeDomains::start(&cluster.plane, &nodes).unwrap()
}

/// Creates a gang of pods that start together, each with so many GPUs.
fn create(cluster: &Cluster, gang: &str, pods: usize, gpus: u32) -> Vec<String> {
    let names: Vec<String> = (0..pods).map(|at| format!("{gang}-{at}")).collect();
    for name in &names {
        let mut pod = job(name, gpus);
        pod["metadata"]["annotations"] = json!({
            "nvlink-domains.io/gang": gang, "nvlink-domains.io/gang-size": pods.to_string(),
        });
        cluster.team.create(&pod).unwrap();
    }
    names
}

fn bound(cluster: &Cluster, names: &[String]) -> Vec<Value> {
    names.iter().map(|name| cluster.bound(name)).collect()
}

fn domains(cluster: &Cluster) -> Vec<Value> {
    let all = cluster.team.get(&["computedomains"]).unwrap();
    all["items"].as_array().unwrap().clone()
}

/// Returns the claim by which a pod gets its channel.
fn claim(cluster: &Cluster, pod: &Value) -> Value {
    let claims = pod["spec"]["resourceClaims"].as_array().unwrap();
    let ours = claims
        .iter()
        .find(|one| one["name"] == "nvlink-domains-channel");
    let name = ours.unwrap()["resourceClaimName"].as_str().unwrap();
    cluster.team.get(&["resourceclaim", name]).unwrap()
}

/// Returns what NCCL is told of NVLink between pods.
fn told(pod: &Value) -> &str {
    let value = &pod["metadata"]["annotations"]["nvlink-domains.io/queue-mnnvl"];
    value.as_str().unwrap()
}

/// Asserts that each of the pods has the channel of its node, by one ComputeDomain, and returns its name.
fn share_domain(cluster: &Cluster, pods: &[Value]) -> String {
    let names = pods.iter().map(|pod| {
        let placement = placement(pod).unwrap();
        placement["computeDomain"].as_str().unwrap().to_owned()
    });
    let names: Vec<String> = names.collect();
    assert!(names.iter().all(|name| *name == names[0]), "{names:?}");
    let domain = cluster.team.get(&["computedomain", &names[0]]).unwrap();
    assert_eq!(domain["spec"]["numNodes"], 0);
    let mut owners: Vec<&Value> = domain["metadata"]["ownerReferences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|owner| &owner["uid"])
        .collect();
    let mut uids: Vec<&Value> = pods.iter().map(|pod| &pod["metadata"]["uid"]).collect();
    owners.sort_by_key(|uid| uid.to_string());
    uids.sort_by_key(|uid| uid.to_string());
    assert_eq!(owners, uids);
    for pod in pods {
        let claim = claim(cluster, pod);
        let device = &claim["status"]["allocation"]["devices"]["results"][0];
        assert_eq!(device["device"], "channel-0", "{claim:#}");
        assert_eq!(device["pool"], pod["spec"]["nodeName"]);
        let config = &claim["spec"]["devices"]["config"][0]["opaque"]["parameters"];
        assert_eq!(config["domainID"], domain["metadata"]["uid"]);
        assert_eq!(told(pod), "2");
    }
    names[0].clone()
}

#[test]
fn a_gang_gets_the_channels_of_its_nodes_and_its_successor_gets_them_anew() {
    if lacks_claims() {
        return;
    }
    let cluster = Cluster::with_channels(&RACK, json!({}));
    let _driver = driver(&cluster);
    let names = create(&cluster, "train", 2, 2);
    let first = share_domain(&cluster, &bound(&cluster, &names));
    // Each node has a channel, which the driver gives once, although GPUs are left.
    let others = create(&cluster, "other", 2, 2);
    cluster.create("alone", 2);
    cluster.bound("alone");
    wait_until("the driver to label the nodes", SOON, || {
        let label = "resource.nvidia.com/computeDomain";
        let nodes = cluster.plane.kubectl().get(&["nodes", "-l", label])?;
        Ok((nodes["items"].as_array().map(Vec::len) == Some(2)).then_some(()))
    })
    .unwrap();
    assert!(others.iter().all(|name| waits(&cluster.pod(name))));
    let delete = |names: &[String]| {
        for name in names {
            cluster.end(name);
            cluster.team.run(&["delete", "pod", name, "--now"]).unwrap();
        }
    };
    delete(&names);
    let second = share_domain(&cluster, &bound(&cluster, &others));
    assert_ne!(first, second);
    // It is deleted with its pods.
    wait_until("the first ComputeDomain to go", SOON, || {
        Ok((domains(&cluster).len() == 1).then_some(()))
    })
    .unwrap();
    delete(&others);
    let names = create(&cluster, "train", 2, 2);
    let third = share_domain(&cluster, &bound(&cluster, &names));
    assert_ne!(first, third, "other pods of the same names");
}

#[test]
fn a_gang_that_leaves_the_fabric_gets_no_channels() {
    if lacks_claims() {
        return;
    }
    let cluster = Cluster::with_channels(&[RACK[0], RACK[1], APART], json!({"scope": "zone"}));
    let _driver = driver(&cluster);
    let pods = bound(&cluster, &create(&cluster, "wide", 3, 4));
    for pod in &pods {
        let claim = claim(&cluster, pod);
        assert_eq!(claim["spec"]["devices"]["requests"], Value::Null);
        assert!(claim["status"]["allocation"].is_object(), "{claim:#}");
        assert_eq!(told(pod), "0");
        assert_eq!(placement(pod).unwrap().get("computeDomain"), None);
    }
    assert_eq!(domains(&cluster), Vec::<Value>::new());
}

/// The driver's controller does not run, or is far behind.
#[test]
fn a_gang_waits_for_the_template_of_its_domain_and_says_so() {
    if lacks_claims() {
        return;
    }
    let cluster = Cluster::with_channels(&RACK, json!({}));
    ComputeDomains::install_crds(cluster.plane.kubectl()).unwrap();
    let names = create(&cluster, "train", 2, 4);
    wait_until("the reason", SOON, || {
        let pod = cluster.pod(&names[0]);
        let reason = &pod["metadata"]["annotations"]["nvlink-domains.io/queue-reason"];
        let reason = reason.as_str().unwrap_or_default();
        let said =
            reason.starts_with("Refused: ") && reason.contains("made no ResourceClaimTemplate");
        anyhow::ensure!(said, "{reason}");
        Ok(Some(()))
    })
    .unwrap();
    assert!(names.iter().all(|name| waits(&cluster.pod(name))));
    let _driver = driver(&cluster);
    share_domain(&cluster, &bound(&cluster, &names));
    assert_eq!(domains(&cluster).len(), 1, "that of the first attempt");
    let metrics = cluster.webhook.as_ref().unwrap().replica.metrics().unwrap();
    let series = "nvlink_webhook_queue_writes_total{write=\"compute-domain\",outcome=\"written\"}";
    assert!(metrics.contains(series), "{metrics}");
}

#[test]
fn the_next_leader_starts_a_gang_in_the_domain_that_the_last_one_made() {
    if lacks_claims() {
        return;
    }
    let mut cluster = Cluster::with_channels(&RACK, json!({}));
    let _driver = driver(&cluster);
    cluster.restart_to_die_after("compute-domain=1");
    let names = create(&cluster, "train", 2, 4);
    let webhook = cluster.webhook.as_ref().unwrap();
    wait_until("the leader to die", SOON, || {
        Ok(webhook.replica.metrics().err())
    })
    .unwrap();
    assert_eq!(domains(&cluster).len(), 1);
    cluster.restart();
    share_domain(&cluster, &bound(&cluster, &names));
    assert_eq!(domains(&cluster).len(), 1);
}
