//! Two thousand pods, as fast as the API server accepts them, while everything around the
//! webhook changes.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use nvlink_tests::{
    Balancer, ControlPlane, Kubectl, Replica, certificates::Authority, wait_until, workdir,
};
use serde_json::{Value, json};

use super::control_plane;
use crate::pods::{assert_mutated, comparable, spec};

const LONG: Duration = Duration::from_secs(240);
/// The number of pods that a Job creates; then those by clients of the API, and by kubectl.
const BY_JOB: usize = 1000;
const BY_CLIENTS: usize = 900;
const BY_KUBECTL: usize = 100;
const CLIENTS: usize = 8;

/// A Secret volume: the files are symlinks into a directory that is replaced as a whole.
struct Volume {
    directory: PathBuf,
    authority: Authority,
    versions: AtomicUsize,
}

impl Volume {
    fn new() -> Self {
        let directory = workdir::fresh("secret-volume").unwrap();
        let authority = Authority::new("storm").unwrap();
        fs::write(directory.join("ca.crt"), &authority.certificate).unwrap();
        let volume = Self {
            directory,
            authority,
            versions: AtomicUsize::new(0),
        };
        volume.rotate();
        for name in ["tls.crt", "tls.key"] {
            symlink(format!("..data/{name}"), volume.directory.join(name)).unwrap();
        }
        volume
    }

    /// Installs a new certificate as the kubelet does.
    fn rotate(&self) {
        let version = format!("..{}", self.versions.fetch_add(1, Ordering::Relaxed));
        let fresh = self.directory.join(&version);
        fs::create_dir(&fresh).unwrap();
        let files = self.authority.issue("tls", &fresh).unwrap();
        fs::rename(&files.certificate, fresh.join("tls.crt")).unwrap();
        let swap = self.directory.join("..data_tmp");
        symlink(&version, &swap).unwrap();
        fs::rename(&swap, self.directory.join("..data")).unwrap();
    }

    fn arguments(&self, url: &str) -> Vec<String> {
        let path = |name: &str| self.directory.join(name).to_string_lossy().into_owned();
        let pairs = [
            ("--tls-cert", path("tls.crt")),
            ("--tls-key", path("tls.key")),
            ("--ca-file", path("ca.crt")),
            ("--url", url.to_owned()),
            ("--tls-poll-seconds", "1".to_owned()),
        ];
        pairs
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect()
    }
}

fn replica(kubeconfig: &Path, arguments: &[String]) -> Replica {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Replica::start(kubeconfig, &arguments).unwrap()
}

fn template() -> Value {
    json!({
        "metadata": {
            "labels": {"storm": "yes"},
            "annotations": {"nvlink-domains.io/class": "nvlink"},
        },
        "spec": spec(2),
    })
}

/// The number of requests that failed and were retried.
#[derive(Debug, Default)]
struct Failed {
    /// The API server was not reachable.
    away: AtomicUsize,
    /// What the API server reported when it could not reach the webhook.
    webhook: Mutex<Vec<String>>,
}

impl Failed {
    /// Counts the error, and returns how long to wait before the next attempt: the API server
    /// needs a moment to notice that its connection to a killed replica broke, and until then
    /// each attempt fails.
    fn count(&self, error: &str) -> Duration {
        if error.contains("failed calling webhook") {
            self.webhook.lock().unwrap().push(error.to_owned());
            return Duration::from_secs(1);
        }
        self.away.fetch_add(1, Ordering::Relaxed);
        Duration::from_millis(100)
    }

    /// Asserts that only the requests in flight in the killed replica failed: one for each client, one
    /// for kubectl and one for the Job's controller. Where the machine is slow, they are tried again
    /// before the API server has noticed, and fail once more.
    fn check(&self) {
        let unanswered = self.webhook.lock().unwrap();
        // Where the machine stands still for five seconds, all requests of that time are late.
        let late = |error: &&String| error.contains("context deadline exceeded");
        let broken = unanswered.iter().filter(|error| !late(error)).count();
        assert!(broken <= 2 * (CLIENTS + 2), "{unanswered:#?}");
    }
}

/// Creates `count` pods `NAME-N`, and retries until each exists.
async fn create(client: kube::Client, name: String, count: usize, failed: Arc<Failed>) {
    let pods: Api<Pod> = Api::namespaced(client, "storm");
    for n in 0..count {
        let mut pod = template();
        pod["metadata"]["name"] = json!(format!("{name}-{n}"));
        let pod: Pod = serde_json::from_value(pod).unwrap();
        loop {
            match pods.create(&PostParams::default(), &pod).await {
                Ok(_) => break,
                // The answer to an earlier attempt was lost.
                Err(kube::Error::Api(status)) if status.code == 409 => break,
                Err(error) => {
                    tokio::time::sleep(failed.count(&error.to_string())).await;
                }
            }
        }
    }
}

fn by_clients(control_plane: &ControlPlane, failed: &Arc<Failed>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = control_plane.client().await.unwrap();
        let tasks = (0..CLIENTS).map(|n| {
            let count = BY_CLIENTS / CLIENTS + usize::from(n < BY_CLIENTS % CLIENTS);
            tokio::spawn(create(
                client.clone(),
                format!("client-{n}"),
                count,
                Arc::clone(failed),
            ))
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
    });
}

/// Applies lists of ten pods. It uses `apply`, so that the next call creates the pods
/// that a failed call did not.
fn by_kubectl(kubectl: &Kubectl, failed: &Failed) {
    for n in 0..BY_KUBECTL / 10 {
        let pods = (0..10).map(|m| {
            let mut pod = template();
            pod["apiVersion"] = json!("v1");
            pod["kind"] = json!("Pod");
            pod["metadata"]["name"] = json!(format!("kubectl-{n}-{m}"));
            pod
        });
        let list = json!({"apiVersion": "v1", "kind": "List", "items": pods.collect::<Vec<_>>()});
        while let Err(error) = kubectl.run_with(&["create", "-f", "-"], &list.to_string()) {
            let error = error.to_string();
            // After a failed call, the only errors are that some pods already exist.
            let lines = || error.lines().filter(|line| line.contains("rror"));
            if lines().count() > 0 && lines().all(|line| line.contains("AlreadyExists")) {
                break;
            }
            thread::sleep(failed.count(&error));
        }
    }
}

fn job() -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"},
        "spec": {"parallelism": BY_JOB, "completions": BY_JOB, "template": template()},
    })
}

fn wait_until_registered(kubectl: &Kubectl) {
    wait_until("the registration to work", LONG, || {
        let mut probe = template();
        probe["apiVersion"] = json!("v1");
        probe["kind"] = json!("Pod");
        probe["metadata"]["name"] = json!("probe");
        let arguments = ["create", "--dry-run=server", "-f", "-"];
        kubectl.run_with(&arguments, &probe.to_string()).map(Some)
    })
    .unwrap();
}

/// Waits until all pods exist, and returns them.
fn all_pods(kubectl: &Kubectl) -> Vec<Value> {
    wait_until("all pods to exist", LONG, || {
        let pods = kubectl.get(&["pods", "-l", "storm=yes"])?["items"].take();
        let pods = pods.as_array().cloned().unwrap_or_default();
        let all = BY_JOB + BY_CLIENTS + BY_KUBECTL;
        anyhow::ensure!(pods.len() == all, "{} of {all} pods", pods.len());
        Ok(Some(pods))
    })
    .unwrap()
}

/// Returns the metrics line that counts the certificates that `replica` loaded.
fn reloads(replica: &Replica) -> String {
    const RELOADS: &str = "nvlink_webhook_certificate_reloads_total{result=\"success\"} ";
    let page = replica.metrics().unwrap();
    let line = page.lines().find(|line| line.starts_with(RELOADS));
    line.unwrap_or_default().to_owned()
}

#[test]
fn two_thousand_pods_while_everything_changes() {
    let (control_plane, _turn) = control_plane();
    let kubectl = control_plane
        .namespace("storm", &json!({}), &json!({}))
        .unwrap();
    let kubeconfig = control_plane.kubeconfig();
    let (volume, balancer) = (Volume::new(), Balancer::start().unwrap());
    let arguments = volume.arguments(&format!("https://{}", balancer.address));
    let (first, second) = (
        replica(kubeconfig, &arguments),
        replica(kubeconfig, &arguments),
    );
    balancer.set(vec![first.backend(), second.backend()]);
    wait_until_registered(&kubectl);

    let start = Instant::now();
    let failed = Arc::new(Failed::default());
    thread::scope(|scope| {
        let rotating = scope.spawn(|| {
            for _ in 0..3 {
                thread::sleep(Duration::from_secs(4));
                volume.rotate();
            }
        });
        let disturbing = scope.spawn(|| {
            thread::sleep(Duration::from_secs(2));
            drop(first); // killed at once, as by the kernel
            balancer.set(vec![second.backend()]);
            let third = replica(kubeconfig, &arguments);
            balancer.set(vec![third.backend(), second.backend()]);
            second.process.terminate(LONG).unwrap();
            balancer.set(vec![third.backend()]);
            control_plane.restart_api_server().unwrap();
            third
        });
        kubectl.create(&job()).unwrap();
        let clients = scope.spawn(|| by_clients(control_plane, &failed));
        by_kubectl(&kubectl, &failed);
        clients.join().unwrap();
        rotating.join().unwrap();
        let third = disturbing.join().unwrap();
        let pods = all_pods(&kubectl);
        check(&pods);
        println!(
            "{} pods in {:.1} s, all mutated once; {failed:?}; {}",
            pods.len(),
            start.elapsed().as_secs_f64(),
            reloads(&third)
        );
    });
    failed.check();
}

/// Asserts that each pod is mutated once: all pods from one template are equal.
fn check(pods: &[Value]) {
    let mut kinds: BTreeMap<String, Value> = BTreeMap::new();
    for pod in pods {
        assert_mutated(pod, "nvlink", 2);
        let name = pod["metadata"]["name"].as_str().unwrap();
        let kind = name.split('-').next().unwrap_or_default();
        let made = &pod["spec"];
        let first = kinds.entry(kind.to_owned()).or_insert_with(|| made.clone());
        let same = |pod: &Value| comparable(&json!({"metadata": {}, "spec": pod}));
        assert_eq!(same(made), same(first), "{name} differs from the others");
    }
    assert_eq!(kinds.len(), 3);
    for made in kinds.values() {
        let names = made["containers"][0]["env"].as_array().unwrap().iter();
        let mut names: Vec<_> = names.map(|one| one["name"].to_string()).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all, "a variable is set twice");
    }
}
