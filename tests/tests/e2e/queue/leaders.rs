//! Only the present leader moves pods on, whatever an earlier one believes.

use nvlink_tests::{
    Replica,
    certificates::Authority,
    programs::{self, WEBHOOK},
    wait_until, workdir,
};
use serde_json::{Value, json};

use super::cluster::{Cluster, SOON, placement, waits};

/// Sends a signal to the webhook.
pub(super) fn signal(replica: &Replica, name: &str) {
    let pid = replica.process.id().to_string();
    let sent = std::process::Command::new("kill")
        .args([name, &pid])
        .status();
    assert!(sent.unwrap().success());
}

fn term(cluster: &Cluster) -> i64 {
    let lease = cluster
        .plane
        .kubectl()
        .get(&["lease", "nvlink-webhook", "-n", "default"]);
    lease.unwrap()["spec"]["leaseTransitions"].as_i64().unwrap()
}

fn patch(pod: &Value, term: &str) -> String {
    json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": pod["metadata"]["resourceVersion"]},
        {"op": "add", "path": "/metadata/annotations/nvlink-domains.io~1queue-term", "value": term},
        {"op": "remove", "path": "/spec/schedulingGates/0"},
    ])
    .to_string()
}

/// Starts a replica that does not lead yet.
fn second(cluster: &Cluster) -> Replica {
    let files = Authority::new("second").unwrap();
    let files = files
        .issue("tls", &workdir::fresh("second").unwrap())
        .unwrap();
    let [cert, key] = [&files.certificate, &files.key].map(|path| path.to_string_lossy());
    let arguments = ["--tls-cert", &cert, "--tls-key", &key];
    Replica::start(cluster.plane.kubeconfig(), &arguments).unwrap()
}

/// Waits until the API server refuses what the leader of an earlier term would write, had it been
/// stopped just before.
fn refuses(cluster: &Cluster, term: i64) {
    wait_until("the policies to refuse the old term", SOON, || {
        let pod = cluster.pod("waits");
        assert!(waits(&pod), "the old term released it");
        let stale = patch(&pod, &term.to_string());
        let dry = [
            "patch",
            "pod",
            "waits",
            "--type=json",
            "--dry-run=server",
            "-p",
            &stale,
        ];
        let said = cluster.team.refused(&dry, "")?;
        Ok(said
            .contains("rule term: another replica leads")
            .then_some(()))
    })
    .unwrap();
}

#[test]
fn a_leader_that_was_stopped_changes_nothing_when_it_goes_on() {
    let cluster = Cluster::start(&["n1"], json!({}));
    let policies = ["policies", "--lease-namespace", "default"];
    let policies = programs::run(WEBHOOK, &policies, "").unwrap();
    let apply = ["apply", "--server-side", "-f", "-"];
    cluster.plane.kubectl().run_with(&apply, &policies).unwrap();
    cluster.create("holds", 8);
    cluster.bound("holds");
    // As by a new installation: the API server watches what policies read only while there are some.
    let delete = ["delete", "-f", "-"];
    cluster
        .plane
        .kubectl()
        .run_with(&delete, &policies)
        .unwrap();
    cluster.plane.kubectl().run_with(&apply, &policies).unwrap();
    cluster.create("waits", 8);
    let first = term(&cluster);
    let second = second(&cluster);
    // The registration names the first one, which cannot answer now.
    let registration = [
        "delete",
        "mutatingwebhookconfiguration",
        "nvlink-domains.io",
    ];
    cluster.plane.kubectl().run(&registration).unwrap();
    let stopped = &cluster.webhook.as_ref().unwrap().replica;
    signal(stopped, "-STOP");
    wait_until("the second replica to lead", SOON, || {
        Ok((term(&cluster) > first).then_some(()))
    })
    .unwrap();

    refuses(&cluster, first);
    signal(stopped, "-CONT");
    cluster.end("holds");
    let released = cluster.bound("waits");
    let plan = placement(&released).unwrap()["plan"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(plan.starts_with(&format!("{}-", term(&cluster))), "{plan}");
    let log = second.process.log();
    assert!(
        log.contains("releasing a job") && !log.contains("cannot write"),
        "{log}"
    );
}

#[test]
fn the_queue_goes_on_when_somebody_takes_the_lease_from_the_only_replica() {
    let cluster = Cluster::start(&["n1"], json!({}));
    let policies = ["policies", "--lease-namespace", "default"];
    let policies = programs::run(WEBHOOK, &policies, "").unwrap();
    let apply = ["apply", "--server-side", "-f", "-"];
    cluster.plane.kubectl().run_with(&apply, &policies).unwrap();
    cluster.create("holds", 8);
    cluster.bound("holds");
    let lease = ["lease", "nvlink-webhook", "-n", "default"];
    let empty = r#"--patch={"spec": {"holderIdentity": ""}}"#;
    let cases = [
        ([&["delete"], &lease[..]].concat(), "deleted"),
        (
            [&["patch"], &lease[..], &["--type=merge", empty]].concat(),
            "cleared",
        ),
    ];
    for (command, pod) in cases {
        let before = term(&cluster);
        cluster.create(pod, 8);
        cluster.plane.kubectl().run(&command).unwrap();
        wait_until("a new term", SOON, || {
            let found = cluster.plane.kubectl().get(&lease).ok();
            let number = found.and_then(|it| it["spec"]["leaseTransitions"].as_i64());
            Ok(number.filter(|&number| number > before))
        })
        .unwrap();
        cluster.end(if pod == "deleted" { "holds" } else { "deleted" });
        let released = cluster.bound(pod);
        let plan = placement(&released).unwrap()["plan"].to_string();
        assert!(plan.contains(&format!("{}-", term(&cluster))), "{plan}");
    }
}
