//! Tests of the harness.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::bail;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use nvlink_tests::{Node, Process, Prometheus, command, node, wait_until, workdir};
use serde_json::json;

use crate::shared::control_plane;

const SOON: Duration = Duration::from_secs(30);

/// Returns a pod without GPUs for the nodes of `pool`.
fn plain_pod(pool: &str) -> serde_json::Value {
    let mut spec = json!({"containers": [{"name": "main", "image": "busybox"}]});
    node::in_pool(&mut spec, pool);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain"}, "spec": spec})
}

#[test]
fn the_scheduler_binds_a_pod() {
    let kubectl = control_plane()
        .namespace("harness-bind", &json!({}), &json!({}))
        .unwrap();
    node::create(
        &kubectl,
        &[Node::new("harness-bind", 0).pool("harness-bind")],
    )
    .unwrap();
    kubectl.create(&plain_pod("harness-bind")).unwrap();
    let bound = wait_until("the pod to be bound", SOON, || {
        let pod = kubectl.get(&["pod", "plain"])?;
        Ok(pod["spec"]["nodeName"].as_str().map(str::to_owned))
    });
    assert_eq!(bound.unwrap(), "harness-bind");
}

#[test]
fn a_deployment_and_a_job_create_pods() {
    let kubectl = control_plane()
        .namespace("harness-owners", &json!({}), &json!({}))
        .unwrap();
    kubectl
        .run(&[
            "create",
            "deployment",
            "web",
            "--image=busybox",
            "--replicas=2",
        ])
        .unwrap();
    kubectl
        .run(&["create", "job", "once", "--image=busybox"])
        .unwrap();
    let count = |selector: &str| {
        wait_until("the pods", SOON, || {
            let pods = kubectl.get(&["pods", "-l", selector])?;
            Ok(pods["items"]
                .as_array()
                .map(Vec::len)
                .filter(|&count| count > 0))
        })
    };
    assert_eq!(count("job-name=once").unwrap(), 1);
    assert!(count("app=web").unwrap() > 0);
}

#[test]
fn a_user_has_only_their_own_rights() {
    let alice = control_plane().kubectl_as("alice").unwrap();
    assert_eq!(
        alice
            .run(&[
                "auth",
                "whoami",
                "-o",
                "jsonpath={.status.userInfo.username}"
            ])
            .unwrap(),
        "alice"
    );
    let said = alice.refused(&["get", "pods"], "").unwrap();
    assert!(
        said.contains(r#"User "alice" cannot list resource "pods""#),
        "{said}"
    );

    let runner = "system:serviceaccount:ci:runner";
    let runner = control_plane().kubectl_as(runner).unwrap();
    let groups = runner
        .run(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.groups}"])
        .unwrap();
    assert!(groups.contains("system:serviceaccounts:ci"), "{groups}");
}

#[tokio::test]
async fn the_client_reaches_the_api_server() {
    let client = control_plane().client().await.unwrap();
    let namespaces = Api::<Namespace>::all(client)
        .list(&Default::default())
        .await
        .unwrap();
    assert!(
        namespaces
            .iter()
            .any(|one| one.metadata.name.as_deref() == Some("kube-system"))
    );
}

#[test]
fn a_program_that_ends_at_once_is_reported_with_its_log() {
    let directory = workdir::fresh("ends").unwrap();
    let mut shell = command("sh");
    shell.args(["-c", "echo flag not known >&2; exit 3"]);
    let process = Process::start("shell", &directory, shell).unwrap();
    let error = process
        .wait_until("it to serve", SOON, || Ok(None::<()>))
        .unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.contains("flag not known") && error.contains("exit status: 3"),
        "{error}"
    );
    assert!(!error.contains("waited"), "the deadline passed: {error}");
}

#[test]
fn a_dropped_process_is_killed() {
    let mut sleep = command("sleep");
    sleep.arg("1000");
    let process = Process::start("sleep", &workdir::fresh("drop").unwrap(), sleep).unwrap();
    let id = process.id();
    assert!(is_running(id));
    drop(process);
    assert!(!is_running(id));
}

#[test]
fn a_process_outlives_the_thread_that_started_it() {
    let mut sleep = command("sleep");
    sleep.arg("1000");
    let start = || Process::start("sleep", &workdir::fresh("thread").unwrap(), sleep).unwrap();
    let process = thread::scope(|scope| scope.spawn(start).join().unwrap());
    assert!(
        wait_until("it to end", Duration::from_millis(300), || {
            Ok(process.check_running().is_err().then_some(()))
        })
        .is_err()
    );
}

#[test]
fn a_killed_parent_leaves_nothing_behind() {
    let mut parent = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "harness::parent_to_be_killed",
            "--ignored",
            "--nocapture",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(parent.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let said = lines
        .filter_map(|line| {
            line.split_once("left behind: ")
                .map(|(_, rest)| rest.to_owned())
        })
        .next()
        .expect("the parent prints what it started");
    let (child, directory) = said.split_once(' ').unwrap();
    let child: u32 = child.parse().unwrap();
    let directory = Path::new(directory);
    assert!(is_running(child) && directory.exists());

    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_until(
        "the child and its directory to be removed",
        SOON,
        || match (is_running(child), directory.exists()) {
            (false, false) => Ok(Some(())),
            (runs, exists) => bail!("child runs: {runs}, directory exists: {exists}"),
        },
    )
    .unwrap();
}

#[test]
#[ignore = "the parent of a_killed_parent_leaves_nothing_behind, in a process of its own"]
fn parent_to_be_killed() {
    let prometheus = Prometheus::start(&[]).unwrap();
    let directory = workdir::fresh("parent").unwrap();
    println!(
        "left behind: {} {}",
        prometheus.process.id(),
        directory.parent().unwrap().display()
    );
    // Waits until the other end is closed, which is after the kill.
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Reports whether a process exists and is not a zombie.
fn is_running(id: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    status
        .rsplit_once(") ")
        .is_some_and(|(_, state)| !state.starts_with('Z'))
}
