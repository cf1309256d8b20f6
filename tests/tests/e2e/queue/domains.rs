//! A job of several GPUs starts within one NVLink domain, whatever is free elsewhere.

use std::collections::{BTreeSet, VecDeque};

use fastrand::Rng;
use nvlink_tests::wait_until;
use serde_json::{Value, json};

use super::cluster::{Cluster, SOON, placement, waits};

const JOBS: u32 = 40;

/// Starts one node of eight GPUs: four pairs with NVLink.
fn pairs() -> Cluster {
    Cluster::of(&[("n1", "sim:a100-pcie-pairs")], json!({}))
}

/// Returns the GPUs of each domain of the node.
fn domains(cluster: &Cluster) -> Vec<BTreeSet<u64>> {
    let node = cluster
        .plane
        .kubectl()
        .get(&["nodetopology", "n1"])
        .unwrap();
    let domains = node["spec"]["domains"].as_array().unwrap();
    let domains: Vec<_> = domains.iter().map(|domain| gpus(&domain["gpus"])).collect();
    assert!(domains.len() == 4 && domains.iter().all(|domain| domain.len() == 2));
    domains
}

fn gpus(list: &Value) -> BTreeSet<u64> {
    let list = list.as_array().unwrap().iter();
    list.map(|gpu| gpu.as_u64().unwrap()).collect()
}

/// Asserts that the pod has its GPUs within one domain, and returns them.
#[track_caller]
fn assert_within(pod: &Value, count: usize, domains: &[BTreeSet<u64>]) -> BTreeSet<u64> {
    let placed = gpus(&placement(pod).unwrap()["gpus"]);
    assert_eq!(placed.len(), count);
    assert!(
        domains.iter().any(|domain| placed.is_subset(domain)),
        "{placed:?} {domains:?}"
    );
    placed
}

#[test]
fn a_job_waits_while_free_gpus_are_in_different_domains() {
    let cluster = pairs();
    let domains = domains(&cluster);
    let singles: Vec<String> = (0..8).map(|number| format!("single-{number}")).collect();
    for name in &singles {
        cluster.create_for(name, 1, "30m");
    }
    let held: Vec<u64> = singles
        .iter()
        .map(|name| {
            *assert_within(&cluster.bound(name), 1, &domains)
                .first()
                .unwrap()
        })
        .collect();
    cluster.create_for("pair", 2, "30m");
    let holder = |gpu: &u64| &singles[held.iter().position(|held| held == gpu).unwrap()];
    for domain in &domains {
        cluster.end(holder(domain.first().unwrap()));
    }
    let fragmented = wait_until("the job to see the fragments", SOON, || {
        let pod = cluster.pod("pair");
        assert!(
            waits(&pod),
            "four GPUs are free, but no two in one domain: {pod:#}"
        );
        let reason = pod["metadata"]["annotations"]["nvlink-domains.io/queue-reason"].as_str();
        Ok(reason
            .filter(|text| text.starts_with("Fragmented: 4 GPUs are free"))
            .map(drop))
    });
    fragmented.unwrap();
    let last = &domains[2];
    cluster.end(holder(last.last().unwrap()));
    let placed = assert_within(&cluster.bound("pair"), 2, &domains);
    assert_eq!(placed, *last);
}

#[test]
fn mixed_jobs_that_come_and_go_never_cross_a_domain() {
    let cluster = pairs();
    let domains = domains(&cluster);
    let mut rng = Rng::with_seed(15);
    let mut running: VecDeque<(String, usize)> = VecDeque::new();
    for number in 0..JOBS {
        let count = rng.u32(1..=2);
        let name = format!("job-{number:02}");
        cluster.create_for(&name, count, "10m");
        running.push_back((name, count as usize));
        if number % 3 > 0 && running.len() > 5 {
            // One of the older ones ends, so that gaps are anywhere.
            let (name, count) = running.remove(rng.usize(..3)).unwrap();
            assert_within(&cluster.bound(&name), count, &domains);
            cluster.end(&name);
        }
    }
    for (name, count) in running {
        assert_within(&cluster.bound(&name), count, &domains);
        cluster.end(&name);
    }
}
