//! What the developer of a GitLab job reads in its log: the jobs run by the double of GitLab Runner.

use std::time::Duration;

use nvlink_tests::{GitlabJob, JobEnd, Kubectl, wait_until};
use serde_json::{Value, json};

use super::cluster::{Cluster, SOON};
use crate::ci::example;

/// The account of the runner, in the namespace of its jobs.
const RUNNER: &str = "system:serviceaccount:team:runner";

/// Returns a job of 4 GPUs.
fn job(name: &str) -> Value {
    let gpus = json!({"containers": [{"name": "build", "resources": {"limits": {"nvidia.com/gpu": "4"}}}]});
    json!({
        "id": 7, "name": name, "project_id": 42, "project_name": "vision", "root_namespace_id": 9,
        "script": "echo trained",
        "runner": {
            "name": "gpu", "namespace": "team", "poll_interval": 1, "poll_timeout": 60,
            "pod_labels_overwrite_allowed": ".*", "pod_annotations_overwrite_allowed": ".*",
            "pod_termination_grace_period_seconds": 0, "pod_spec": [gpus],
        },
    })
}

/// Gives the runner what its documentation demands in the namespace of its jobs, and no more.
fn grant(space: &Kubectl, user: &str) {
    let rule = |resources: &[&str], verbs: &[&str]| json!({"apiGroups": [""], "resources": resources, "verbs": verbs});
    let rules = [
        rule(&["pods"], &["create", "delete", "get", "list", "watch"]),
        rule(
            &["pods/exec", "pods/attach"],
            &["create", "get", "patch", "delete"],
        ),
        rule(&["events"], &["list", "watch"]),
        rule(&["serviceaccounts"], &["get"]),
    ];
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "runner"}, "rules": rules,
    });
    space.create(&role).unwrap();
    let user = format!("--user={user}");
    let bind = ["create", "rolebinding", "runner", "--role=runner", &user];
    space.run(&bind).unwrap();
}

fn runner(cluster: &Cluster) {
    grant(&cluster.team, RUNNER);
}

fn start(cluster: &Cluster, job: &Value) -> GitlabJob {
    let kubeconfig = cluster.plane.kubeconfig_for(RUNNER).unwrap();
    GitlabJob::start(&kubeconfig, job).unwrap()
}

/// Returns the log of a job that ends so.
fn ended(cluster: &Cluster, job: &Value, end: JobEnd) -> String {
    let run = start(cluster, job);
    assert_eq!(run.end(SOON).unwrap(), end, "{}", run.log());
    run.log()
}

#[track_caller]
fn assert_parts(log: &str, parts: &[&str]) {
    for part in parts {
        assert!(log.contains(part), "{part:?} is not in {log}");
    }
}

fn none_left(team: &Kubectl) {
    wait_until("the runner's pods to be gone", SOON, || {
        let pods = team.get(&["pods", "-l", "manager.runner.gitlab.com/name=gpu"])?;
        Ok(pods["items"]
            .as_array()
            .is_some_and(Vec::is_empty)
            .then_some(()))
    })
    .unwrap();
}

#[test]
fn the_log_of_a_job_says_why_it_waits_and_why_it_was_rejected() {
    let cluster = Cluster::start(&["n1"], json!({"queueTimeout": "10s"}));
    runner(&cluster);
    cluster.create_for("holds", 8, "1h");
    cluster.bound("holds");
    let log = ended(&cluster, &job("train"), JobEnd::SystemFailure);
    let waits = "to be running on the node <unknown>, status is Pending\n";
    // While it waits, the conditions; when it has failed, the Event.
    assert_parts(
        &log,
        &[
            waits,
            "\tSchedulingGated: ",
            "\tInsufficient: \"it needs 4 GPUs in one NVLink domain, and none is free; position 1 of class line; fails if it still waits at ",
            "UTC, and its GPUs are not expected to be free before ",
            "WARNING: Event retrieved from the cluster: the pod waited 10s in the queue of class \"line\", which is as long as it may: it needs 4 GPUs in one NVLink domain, and none is free. Start the job again later; to let jobs wait longer, an administrator raises placement.queueTimeout of class \"line\"\n",
            "ERROR: Job failed (system failure): prepare environment: waiting for pod running: pod status is failed.",
        ],
    );
    assert_eq!(log.matches("Event retrieved").count(), 1, "{log}");
    none_left(&cluster.team);

    // GitLab repeats it, as its author wants: each attempt waits anew.
    let mut again = job("again");
    again["retries"] = json!(1);
    let log = ended(&cluster, &again, JobEnd::SystemFailure);
    assert_eq!(log.matches("Event retrieved").count(), 2, "{log}");

    // No queue can start this one, so the log has a warning before the end, too.
    let mut large = job("large");
    large["runner"]["pod_spec"][0]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] =
        json!("9");
    let log = ended(&cluster, &large, JobEnd::SystemFailure);
    assert_parts(
        &log,
        &["WARNING: Event retrieved from the cluster: no node of its class can run it"],
    );
}

#[test]
fn a_job_that_is_cancelled_while_it_waits_leaves_its_place() {
    let cluster = Cluster::start(&["n1"], json!({}));
    runner(&cluster);
    cluster.create("holds", 8);
    cluster.bound("holds");
    let waits = start(&cluster, &job("first"));
    waits.wait_for("position 1 of class line", SOON).unwrap();
    let second = start(&cluster, &job("second"));
    second.wait_for("position 2 of class line", SOON).unwrap();
    // Where the class says nothing, the runner's patience does.
    let pods = cluster.team.get(&["pods", "-l", "pod"]).unwrap();
    let pod = pods["items"][0]["metadata"]["name"].as_str().unwrap();
    let told = cluster.team.get(&["pod", pod]).unwrap();
    let message = told["status"]["conditions"].to_string();
    assert!(message.contains("fails if it still waits at "), "{message}");

    assert_eq!(waits.cancel(SOON).unwrap(), JobEnd::Cancelled);
    assert_parts(&waits.log(), &["ERROR: Job failed: canceled\n"]);
    second.wait_for("position 1 of class line", SOON).unwrap();
    cluster.end("holds");
    second
        .wait_for("to be running on the node n1, status is Pending", SOON)
        .unwrap();
    second.cancel(Duration::from_secs(30)).unwrap();
}

/// Returns the config.toml in the values of GitLab Runner's chart.
fn config(values: &str) -> String {
    let values: Value = serde_saphyr::from_str(&example(values)).unwrap();
    values["runners"]["config"].as_str().unwrap().to_owned()
}

/// Creates the namespace of the jobs and the account of a runner, with its rights there.
fn install(cluster: &Cluster, name: &str) -> std::path::PathBuf {
    let space = format!("ci-{name}");
    let space = cluster
        .plane
        .namespace(&space, &json!({}), &json!({}))
        .unwrap();
    let user = format!("system:serviceaccount:ci-{name}:{name}-runner");
    grant(&space, &user);
    cluster.plane.kubeconfig_for(&user).unwrap()
}

#[test]
fn the_runners_of_the_example_run_the_jobs_of_listed_projects() {
    let cluster = Cluster::of(&[("n1", "sim:dgx-h100"), ("n2", "sim:dgx-h100")], json!({}));
    let all = cluster.plane.kubectl();
    for (node, pool) in [("n1", "training"), ("n2", "inference")] {
        all.run(&["label", "node", node, &format!("pool={pool}")])
            .unwrap();
    }
    all.apply(&example("gitlab/classes.yaml")).unwrap();
    let training = install(&cluster, "training");
    let run = |kubeconfig: &std::path::Path, values: &str, project: u64| {
        let job = json!({"id": 1, "name": "train", "project_id": project, "project_name": "vision", "script": "true"});
        GitlabJob::start_with(kubeconfig, Some(&config(values)), &job).unwrap()
    };
    // Another project is told how it gets the right, and waits for nothing.
    let values = "gitlab/values-training.yaml";
    let refused = wait_until("the class to be seen", SOON, || {
        let job = run(&training, values, 7);
        let end = job.end(SOON)?;
        let log = job.log();
        let refused = end == JobEnd::SystemFailure && log.contains("rule not-authorized");
        anyhow::ensure!(refused, "{end:?}: {log}");
        Ok(Some(log))
    })
    .unwrap();
    assert_parts(
        &refused,
        &[
            "ERROR: Job failed (system failure): prepare environment: setting up build pod: admission webhook",
            "project 7 is not listed in the class. To grant this right to project 7:\nkubectl patch domainclasses.nvlink-domains.io training",
        ],
    );
    let first = run(&training, values, 42);
    first
        .wait_for("to be running on the node n1", SOON)
        .unwrap();
    let second = run(&training, values, 42);
    second
        .wait_for("position 1 of class training", SOON)
        .unwrap();
    let inference = install(&cluster, "inference");
    let small = run(&inference, "gitlab/values-inference.yaml", 7);
    small
        .wait_for("to be running on the node n2", SOON)
        .unwrap();
    assert_eq!(first.cancel(SOON).unwrap(), JobEnd::Cancelled);
    for job in [second, small] {
        job.cancel(SOON).unwrap();
    }
}

/// Creates a class for project 42.
fn create_gold(cluster: &Cluster) {
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
        "metadata": {"name": "gold"}, "spec": {
            "access": {"mode": "Restricted", "ciProjects": [{
                "provider": "gitlab", "projectIds": [42],
                "runners": [{"namespace": "team", "serviceAccount": "runner"}],
            }]},
            "placement": {"whenUnavailable": "Queue"},
        },
    });
    cluster.plane.kubectl().create(&class).unwrap();
}

#[test]
fn a_job_that_claims_to_be_of_another_project_is_refused() {
    let cluster = Cluster::start(&["n1"], json!({}));
    runner(&cluster);
    create_gold(&cluster);
    let of = |project: u64, variable: &str, value: &str| {
        let mut job = job("train");
        job["project_id"] = json!(project);
        job["runner"]["pod_annotations"] = json!({"nvlink-domains.io/class": "gold"});
        job["variables"] = json!({variable: value});
        job
    };
    let honest = wait_until("the class to be seen", SOON, || {
        let run = start(&cluster, &of(42, "CI", "true"));
        run.wait_for("to be running on the node n1", SOON)
            .map(|()| Some(run))
    });
    honest.unwrap().cancel(SOON).unwrap();

    let id = "project.runner.gitlab.com/id=42";
    let mut old = of(43, "KUBERNETES_POD_LABELS_1", id);
    old["runner"]["protected_labels"] = json!(false);
    for (job, part) in [
        (
            of(43, "KUBERNETES_POD_LABELS_1", id),
            "project 43 is not listed in the class",
        ),
        (old, "the project of the pod cannot be told"),
        (
            of(43, "KUBERNETES_POD_ANNOTATIONS_1", id),
            "the project of the pod cannot be told",
        ),
        (
            of(43, "KUBERNETES_SERVICE_ACCOUNT_OVERWRITE", "runner"),
            "project 43 is not listed in the class",
        ),
        (
            of(42, "NVIDIA_VISIBLE_DEVICES", "all"),
            "ask for it to be removed from the runner's config.toml, which configures all jobs of GitLab Runner",
        ),
    ] {
        let log = ended(&cluster, &job, JobEnd::SystemFailure);
        assert_parts(&log, &["denied the request: rule ", part]);
        assert!(!log.contains("webhook=ignore"), "{log}");
    }
    none_left(&cluster.team);
}
