//! Pods of a class whose GPUs come by claims: the queue makes them, the scheduler allocates exactly
//! what they name.

use std::collections::BTreeSet;

use nvlink_tests::{Kubectl, assets, programs, wait_until};
use serde_json::{Value, json};

use super::cluster::{Cluster, SOON, device_of, job, placement, waits};
use crate::pods::container;

const MESH: (&str, &str) = ("n1", "sim:dgx1-v100");

/// Returns the claims of the queue.
fn claims(cluster: &Cluster) -> Vec<Value> {
    let all = cluster.team.get(&["resourceclaims"]).unwrap();
    all["items"].as_array().unwrap().clone()
}

fn claim_name(pod: &Value) -> &str {
    let claims = pod["spec"]["resourceClaims"].as_array().unwrap();
    let ours = claims.iter().find(|one| one["name"] == "nvlink-domains");
    ours.unwrap()["resourceClaimName"].as_str().unwrap()
}

/// Returns the GPUs that the scheduler allocated to a pod, by index, in the order of its ranks.
fn allocated(cluster: &Cluster, pod: &Value) -> Vec<u32> {
    let claim = cluster
        .team
        .get(&["resourceclaim", claim_name(pod)])
        .unwrap();
    let results = claim["status"]["allocation"]["devices"]["results"].clone();
    let mut results = results.as_array().unwrap().clone();
    let text = |one: &Value, key: &str| one[key].as_str().unwrap().to_owned();
    let rank = |one: &Value| -> u32 {
        let request = text(one, "request");
        request.strip_prefix("rank-").unwrap().parse().unwrap()
    };
    results.sort_by_key(rank);
    let gpu = |one: &Value| (0..8).find(|gpu| device_of(*gpu) == text(one, "device"));
    results.iter().map(|one| gpu(one).unwrap()).collect()
}

fn annotation<'a>(pod: &'a Value, key: &str) -> &'a str {
    let text = &pod["metadata"]["annotations"][format!("nvlink-domains.io/{key}")];
    text.as_str().unwrap_or_else(|| panic!("no {key}: {pod:#}"))
}

/// Returns what `place` chooses of the free GPUs of the node.
fn placed(gpus: usize, free: &[u32]) -> Vec<u32> {
    let free: Vec<String> = free.iter().map(ToString::to_string).collect();
    let (gpus, free) = (gpus.to_string(), free.join(","));
    let place = [
        "place", "--source", MESH.1, "--scope", "node", "--gpus", &gpus, "--free", &free,
        "--output", "json",
    ];
    let text = programs::run(programs::EXPORTER, &place, "").unwrap();
    let placement: Value = serde_json::from_str(&text).unwrap();
    let gpus = placement["gpus"].as_array().unwrap().iter();
    gpus.map(|gpu| u32::try_from(gpu.as_u64().unwrap()).unwrap())
        .collect()
}

/// Returns the positions of GPUs among themselves, as `CUDA_VISIBLE_DEVICES` counts them.
fn relative(gpus: &[u32]) -> String {
    let before = |gpu: &u32| gpus.iter().filter(|other| *other < gpu).count().to_string();
    gpus.iter().map(before).collect::<Vec<_>>().join(",")
}

fn lacks_claims() -> bool {
    assets::lacks("resource.k8s.io/v1", 34)
}

/// Asserts that the only container of the pod is told about its GPUs in this order.
fn sees_in_order(pod: &Value, expected: &[u32], uuids: &[String]) {
    let main = &pod["spec"]["containers"][0];
    assert_eq!(
        main["resources"]["limits"],
        Value::Null,
        "it is not asked for twice"
    );
    let key = format!("0-{}-{}", expected.len() - 1, expected.len());
    let named: Vec<&str> = expected.iter().map(|&gpu| &*uuids[gpu as usize]).collect();
    let order = format!("queue-order.{key}");
    assert_eq!(annotation(pod, &order), relative(expected));
    let gpus = format!("queue-gpus.{key}");
    assert_eq!(annotation(pod, &gpus), named.join(","));
    let env = main["env"].as_array().unwrap().iter();
    let mut visible = env.filter(|one| one["name"] == "CUDA_VISIBLE_DEVICES");
    assert_eq!(
        visible.next().unwrap()["valueFrom"]["fieldRef"]["fieldPath"],
        *format!("metadata.annotations['nvlink-domains.io/{order}']")
    );
}

#[test]
fn the_scheduler_allocates_the_gpus_of_place_in_their_order() {
    if lacks_claims() {
        return;
    }
    let cluster = Cluster::claiming(&[MESH], json!({}));
    let uuids = cluster.uuids("n1");
    let mut free: Vec<u32> = (0..8).collect();
    for (name, gpus, stays) in [
        ("a", 3, true),
        ("b", 4, false),
        ("c", 2, true),
        ("d", 1, true),
    ] {
        cluster.create(name, u32::try_from(gpus).unwrap());
        let pod = cluster.bound(name);
        let expected = placed(gpus, &free);
        assert_eq!(allocated(&cluster, &pod), expected, "{name} of {free:?}");
        sees_in_order(&pod, &expected, &uuids);
        match stays {
            true => free.retain(|gpu| !expected.contains(gpu)),
            false => {
                cluster.end(name);
                cluster.team.run(&["delete", "pod", name, "--now"]).unwrap();
            }
        }
    }
    // What is left over is deleted with its pod.
    cluster
        .team
        .run(&["delete", "pods", "--all", "--force", "--grace-period=0"])
        .unwrap();
    wait_until("all claims to be deleted", SOON, || {
        Ok(claims(&cluster).is_empty().then_some(()))
    })
    .unwrap();
}

const GANG: [&str; 2] = ["g-0", "g-1"];

/// Creates a gang whose pods have two GPUs each.
fn create_gang(cluster: &Cluster) {
    for name in GANG {
        let mut pod = job(name, 2);
        pod["metadata"]["annotations"] = json!({
            "nvlink-domains.io/gang": "g", "nvlink-domains.io/gang-size": "2",
        });
        cluster.team.create(&pod).unwrap();
    }
}

#[test]
fn each_container_has_its_ranks_and_a_gang_its_claims() {
    if lacks_claims() {
        return;
    }
    let mut cluster = Cluster::claiming(&[MESH], json!({}));
    let mut pod = job("several", 0);
    let mut sidecar = container("sidecar", 1);
    sidecar["restartPolicy"] = json!("Always");
    pod["spec"]["initContainers"] = json!([container("init", 2), sidecar]);
    pod["spec"]["containers"] = json!([
        container("one", 2),
        container("none", 0),
        container("two", 1)
    ]);
    cluster.team.create(&pod).unwrap();
    let pod = cluster.bound("several");
    let all = allocated(&cluster, &pod);
    assert_eq!(all.len(), 4);
    // The init container and the first one, the last one, and the sidecar.
    for (key, own) in [
        ("0-1-2", &all[..2]),
        ("2-2-1", &all[2..3]),
        ("3-3-1", &all[3..]),
    ] {
        let key = format!("queue-order.{key}");
        assert_eq!(annotation(&pod, &key), relative(own));
    }
    let env = pod["spec"]["containers"][1]["env"].to_string();
    assert!(env.contains("void"), "{env}");

    cluster.restart_to_die_after("claim=1");
    create_gang(&cluster);
    wait_until("the leader to die after the first claim", SOON, || {
        Ok((claims(&cluster).len() == 2).then_some(()))
    })
    .unwrap();
    assert!(GANG.iter().all(|name| waits(&cluster.pod(name))));
    cluster.restart();
    let gang = GANG.map(|name| allocated(&cluster, &cluster.bound(name)));
    let held: BTreeSet<u32> = gang.iter().flatten().chain(&all).copied().collect();
    assert_eq!(held.len(), 8, "no GPU twice");
    let plans = GANG.map(|name| placement(&cluster.pod(name)).unwrap()["plan"].clone());
    assert_eq!(plans[0], plans[1]);
}

/// Creates the pod `a` of two GPUs, and stops the scheduler until the queue has released it. Returns
/// the first of the planned GPUs.
fn release_unbound(cluster: &mut Cluster) -> u32 {
    cluster.plane.stop_scheduler();
    cluster.create("a", 2);
    let planned = wait_until("the pod to be released", SOON, || {
        let pod = cluster.pod("a");
        let placed = placement(&pod).filter(|_| !waits(&pod));
        Ok(placed.map(|placed| placed["gpus"].clone()))
    })
    .unwrap();
    u32::try_from(planned[0].as_u64().unwrap()).unwrap()
}

#[test]
fn a_claim_is_made_anew_when_its_gpus_are_lost() {
    if lacks_claims() {
        return;
    }
    let mut cluster = Cluster::claiming(&[MESH], json!({}));
    let lost = release_unbound(&mut cluster);
    cluster.set_slice("n1", &[lost]);
    cluster.plane.start_scheduler().unwrap();
    let pod = cluster.bound("a");
    let free: Vec<u32> = (0..8).filter(|gpu| *gpu != lost).collect();
    let got = allocated(&cluster, &pod);
    assert!(!got.contains(&lost) && got.len() == 2, "{got:?}");
    assert_eq!(got, placed(2, &free));
    assert_eq!(placement(&pod).unwrap()["gpus"], json!(got));
    assert_eq!(annotation(&pod, "queue-order.0-1-2"), relative(&got));

    // Somebody deletes the claim of a released pod.
    cluster.plane.stop_scheduler();
    cluster.create("b", 1);
    wait_until("the claim of b", SOON, || {
        Ok((!waits(&cluster.pod("b")) && claims(&cluster).len() == 2).then_some(()))
    })
    .unwrap();
    let name = claim_name(&cluster.pod("b")).to_owned();
    cluster
        .team
        .run(&["delete", "resourceclaim", &name])
        .unwrap();
    cluster.plane.start_scheduler().unwrap();
    assert_eq!(allocated(&cluster, &cluster.bound("b")).len(), 1);
}

#[test]
fn a_claim_is_made_anew_when_an_administrator_taints_its_gpu() {
    if assets::lacks_taint_rules() {
        return;
    }
    let mut cluster = Cluster::claiming(&[MESH], json!({}));
    let lost = release_unbound(&mut cluster);
    // The queue does not read these rules; the scheduler does.
    let rule = json!({
        "apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule",
        "metadata": {"name": "admin"},
        "spec": {
            "deviceSelector": {
                "driver": "gpu.nvidia.com", "pool": "n1", "device": device_of(lost),
            },
            "taint": {"key": "example.com/bad", "effect": "NoSchedule"},
        },
    });
    cluster.plane.kubectl().create(&rule).unwrap();
    cluster.plane.start_scheduler().unwrap();
    let pod = cluster.bound("a");
    let got = allocated(&cluster, &pod);
    assert!(got.len() == 2 && !got.contains(&lost), "{got:?}");
    assert_eq!(annotation(&pod, "queue-order.0-1-2"), relative(&got));
}

#[test]
fn a_pod_that_goes_while_it_waits_leaves_nothing() {
    if lacks_claims() {
        return;
    }
    let mut cluster = Cluster::claiming(&[MESH], json!({}));
    cluster.create("holds", 8);
    cluster.bound("holds");
    cluster.create("waits", 8);
    cluster
        .team
        .run(&["delete", "pod", "waits", "--now"])
        .unwrap();
    assert_eq!(claims(&cluster).len(), 1, "a pod that waits has no claim");

    // The leader dies when it has made the claim, and the pod goes before the next one leads.
    cluster.restart_to_die_after("claim=1");
    cluster.create("next", 8);
    cluster.end("holds");
    let next = cluster.pod("next");
    wait_until("the claim of a pod that still waits", SOON, || {
        let claims = claims(&cluster);
        let mut names = claims.iter().map(|claim| &claim["metadata"]["name"]);
        Ok(names.any(|name| name == claim_name(&next)).then_some(()))
    })
    .unwrap();
    assert!(waits(&cluster.pod("next")));
    cluster
        .team
        .run(&["delete", "pod", "next", "holds", "--now"])
        .unwrap();
    cluster.restart();
    wait_until("all claims to be deleted", SOON, || {
        Ok(claims(&cluster).is_empty().then_some(()))
    })
    .unwrap();
    // The GPUs are free: nothing was booked for a pod that is gone.
    cluster.create("last", 8);
    assert_eq!(allocated(&cluster, &cluster.bound("last")).len(), 8);
}

#[test]
fn a_gang_whose_claims_are_refused_keeps_none_and_says_why() {
    if lacks_claims() {
        return;
    }
    const CLAIMS: &str = "count/resourceclaims.resource.k8s.io";
    let cluster = Cluster::claiming(&[MESH], json!({}));
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "claims"}, "spec": {"hard": {CLAIMS: "1"}},
    });
    cluster.team.create(&quota).unwrap();
    // No controller counts here.
    let counted = json!({"status": {"hard": {CLAIMS: "1"}, "used": {CLAIMS: "0"}}}).to_string();
    let patch = ["patch", "resourcequota", "claims", "--subresource=status"];
    cluster
        .team
        .run(&[&patch[..], &["--type=merge", "-p", &counted]].concat())
        .unwrap();
    create_gang(&cluster);
    let why = wait_until("the pod to say what is in the way", SOON, || {
        let pod = cluster.pod("g-0");
        let conditions = pod["status"]["conditions"].as_array().cloned();
        let mut queued = conditions.into_iter().flatten();
        let queued = queued.find(|one| one["type"] == "nvlink-domains.io/Queued");
        let refused = queued.filter(|one| one["reason"] == "Refused");
        Ok(refused.map(|one| one["message"].as_str().unwrap().to_owned()))
    })
    .unwrap();
    assert!(why.contains("exceeded quota: claims"), "{why}");
    assert_eq!(reason(&cluster, "g-0"), "Refused");
    assert!(GANG.iter().all(|name| waits(&cluster.pod(name))));
    wait_until("the claim that was made to be deleted", SOON, || {
        Ok(claims(&cluster).is_empty().then_some(()))
    })
    .unwrap();
    cluster
        .team
        .run(&["delete", "resourcequota", "claims"])
        .unwrap();
    let gang = GANG.map(|name| allocated(&cluster, &cluster.bound(name)));
    assert_eq!(gang.iter().flatten().count(), 4);
}

/// Returns the reason that a waiting pod shows, as a word.
fn reason(cluster: &Cluster, pod: &str) -> String {
    let pod = cluster.pod(pod);
    let reason = &pod["metadata"]["annotations"]["nvlink-domains.io/queue-reason"];
    let word = reason.as_str().and_then(|text| text.split(':').next());
    word.unwrap_or_default().to_owned()
}

/// Lets the scheduler serve requests for a resource by claims.
fn serve_requests(cluster: &Cluster, resource: &str) {
    let name = json!({"spec": {"extendedResourceName": resource}}).to_string();
    let patch = ["patch", "deviceclass", "gpu.nvidia.com", "--type=merge"];
    let all = cluster.plane.kubectl();
    all.run(&[&patch[..], &["-p", &name]].concat()).unwrap();
}

/// Waits until the condition `RequestsKnown` of the class names these DeviceClasses, or is absent.
fn wait_for_unknown_requests(cluster: &Cluster, named: Option<&str>) {
    wait_until("the condition RequestsKnown", SOON, || {
        let class = cluster.plane.kubectl().get(&["domainclass", "plain"])?;
        let conditions = class["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let known = conditions.find(|one| one["type"] == "RequestsKnown");
        let said = known.map(|known| known["message"].to_string());
        let right = match named {
            Some(named) => said.is_some_and(|said| said.contains(named)),
            None => said.is_none(),
        };
        anyhow::ensure!(right, "{class:#}");
        Ok(Some(()))
    })
    .unwrap();
}

#[test]
fn a_class_without_claims_waits_until_something_serves_its_requests() {
    if assets::lacks("DRAExtendedResource by default", 36) {
        return;
    }
    let cluster = Cluster::claiming(&[MESH], json!({}));
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
        "metadata": {"name": "plain"}, "spec": {"placement": {"whenUnavailable": "Queue"}},
    });
    cluster.plane.kubectl().create(&class).unwrap();
    let mut pod = job("plain", 2);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "plain"});
    wait_until("the webhook to know the class", SOON, || {
        Ok(cluster.team.create(&pod).ok())
    })
    .unwrap();
    wait_until("the queue to see that no node serves it", SOON, || {
        Ok((reason(&cluster, "plain") == "Impossible").then_some(()))
    })
    .unwrap();
    // Admission does not know that this name stands for GPUs.
    serve_requests(&cluster, "example.com/gpu");
    wait_for_unknown_requests(&cluster, Some("gpu.nvidia.com (example.com/gpu)"));
    serve_requests(&cluster, "nvidia.com/gpu");
    wait_for_unknown_requests(&cluster, None);
    let pod = cluster.bound("plain");
    assert_eq!(pod["spec"]["resourceClaims"], Value::Null);
}

/// A ClusterRole of an earlier version does not have the right.
#[test]
fn without_the_right_to_see_device_classes_claims_are_made_all_the_same() {
    if lacks_claims() {
        return;
    }
    let mut cluster = Cluster::claiming(&[MESH], json!({}));
    let all = cluster.plane.kubectl();
    let mut role = all
        .get(&["clusterrole", "nvlink-webhook-controller"])
        .unwrap();
    let mut lost = 0;
    for rule in role["rules"].as_array_mut().unwrap() {
        let resources = rule["resources"].as_array_mut().unwrap();
        let before = resources.len();
        resources.retain(|one| one != "deviceclasses");
        lost += before - resources.len();
    }
    assert_eq!(lost, 1, "{role:#}");
    all.run_with(&["replace", "-f", "-"], &role.to_string())
        .unwrap();
    cluster.restart();
    cluster.create("a", 2);
    assert_eq!(allocated(&cluster, &cluster.bound("a")).len(), 2);
}

/// Starts a pod of three GPUs without a class, and returns the names of its devices.
fn served_by_dra(others: &Kubectl) -> BTreeSet<String> {
    others.create(&job("plain", 3)).unwrap();
    let plain = wait_until("the plain pod to be bound", SOON, || {
        let pod = others.get(&["pod", "plain"])?;
        Ok(pod["spec"]["nodeName"].is_string().then_some(pod))
    })
    .unwrap();
    assert_eq!(plain["spec"]["resourceClaims"], Value::Null);
    assert_eq!(
        plain["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"],
        "3"
    );
    let made = others.get(&["resourceclaims"]).unwrap()["items"][0].clone();
    let results = made["status"]["allocation"]["devices"]["results"].clone();
    let held: BTreeSet<String> = results
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["device"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(held.len(), 3);
    held
}

#[test]
fn plain_requests_that_dra_serves_are_seen_and_not_doubled() {
    if assets::lacks("DRAExtendedResource by default", 36) {
        return;
    }
    let cluster = Cluster::claiming(&[MESH], json!({}));
    serve_requests(&cluster, "nvidia.com/gpu");
    let others = cluster
        .plane
        .namespace("others", &json!({}), &json!({}))
        .unwrap();
    let held = served_by_dra(&others);
    cluster.create("ours", 5);
    let got = allocated(&cluster, &cluster.bound("ours"));
    assert!(
        got.iter().all(|gpu| !held.contains(&device_of(*gpu))),
        "{got:?} {held:?}"
    );
    cluster.create("waits", 1);
    wait_until("the queue to see that all are held", SOON, || {
        Ok((reason(&cluster, "waits") == "Insufficient").then_some(()))
    })
    .unwrap();
    others
        .run(&["delete", "pod", "plain", "--force", "--grace-period=0"])
        .unwrap();
    cluster.bound("waits");
}
