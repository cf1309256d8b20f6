//! A newcomer's way: the commands of README as they stand, on a node that runs pods, with the images
//! that `make images` builds; then an upgrade, a rollback and the end, while pods are created.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Instant,
};

use anyhow::ensure;
use nvlink_tests::{
    ControlPlane, Helm, Kubectl, Lab, LabNode, REGISTRY, assets, crowd, http, wait_until, workdir,
};
use serde_json::{Value, json};

use super::{SOON, WORK, spec, variable};
use crate::{
    allocations::held,
    pods::{decision, gpu_pod},
    release::release,
    shared::dry_run,
};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const PROFILE: &str = "dgx-h100";
const NODE: &str = "lab-install";

/// A cluster as GPU operators leave it: the RuntimeClass `nvidia`, and a label on GPU nodes.
struct Cluster {
    lab: Lab,
    control_plane: ControlPlane,
}

impl Cluster {
    fn start() -> Self {
        let control_plane = ControlPlane::start_for_kubelets().unwrap();
        let kubectl = control_plane.kubectl();
        let runtime = json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": {"name": "nvidia"}, "handler": "nvidia",
        });
        kubectl.create(&runtime).unwrap();
        let lab = Lab::start(&control_plane, &LabNode::new(NODE, PROFILE)).unwrap();
        let label = "nvidia.com/gpu.present=true";
        kubectl.run(&["label", "node", NODE, label]).unwrap();
        Self { lab, control_plane }
    }

    fn kubectl(&self) -> &Kubectl {
        self.control_plane.kubectl()
    }

    fn import_images(&self) {
        for (program, archive) in release().images() {
            let repository = format!("{REGISTRY}/{program}");
            self.lab.import(&archive, &repository).unwrap();
        }
    }

    /// Runs a block of README in the root of the project, as a newcomer's shell does.
    fn run_block(&self, block: &str) -> String {
        let helm = assets::helm().unwrap();
        let script = format!(
            "set -e\ncd {ROOT}\nexport HOME={home} PATH={helm}:$PATH\n{block}",
            home = workdir::fresh("home").unwrap().display(),
            helm = helm.parent().unwrap().display(),
        );
        let output = self.kubectl().shell(&script).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{block}: {said}\n{}", self.logs());
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the ends of the logs of the release's pods, those of `helm test` among them.
    fn logs(&self) -> String {
        let pods = ["-l", "app.kubernetes.io/instance=nvlink-domains"];
        let logs = ["logs", "-n", "nvlink-system", "--tail=20", "--prefix"];
        let logs = self.kubectl().run(&[&logs[..], &pods].concat());
        logs.unwrap_or_else(|error| format!("{error:#}"))
    }
}

/// Returns the shell blocks of README from the chapter "Install" on.
fn blocks() -> Vec<String> {
    let readme = fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    let (_, rest) = readme.split_once("\n## Install\n").unwrap();
    let blocks = rest.split("\n```sh\n").skip(1);
    let block = |text: &str| text.split_once("\n```").unwrap().0.to_owned();
    blocks.map(block).collect()
}

#[test]
fn the_commands_of_readme_install_both_programs_and_run_a_job() {
    let cluster = Cluster::start();
    cluster.import_images();
    let said: Vec<String> = blocks()
        .iter()
        .map(|block| cluster.run_block(block))
        .collect();
    let all = said.join("\n");
    // What the exporter read from the driver, by its labels.
    assert!(all.contains("nvswitch"), "{all}");
    // What the job printed: the device plugin's choice, and the webhook's variables.
    assert_eq!(variable(&all, "CUDA_VISIBLE_DEVICES"), Some("0,1"), "{all}");
    let gpus = variable(&all, "NVIDIA_VISIBLE_DEVICES").unwrap();
    assert_eq!(gpus.matches("GPU-").count(), 2, "{all}");
    assert!(all.contains(r#""class":"one-domain""#), "{all}");

    let kubectl = cluster.kubectl();
    let level = "pod-security.kubernetes.io/enforce=restricted";
    kubectl
        .run(&["label", "namespace", "nvlink-system", level])
        .unwrap();
    the_exporter_reports_a_job(&cluster);
    let helm = Helm::on(kubectl).unwrap();
    a_device_plugin_goes_between_and_out_again(&cluster, &helm);
    no_pod_is_refused(&cluster, &helm);
}

/// Runs a pod, and reads from the exporter's pod what it holds.
fn the_exporter_reports_a_job(cluster: &Cluster) {
    let ci = cluster
        .control_plane
        .namespace("ci", &json!({}), &json!({}))
        .unwrap();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "busy"},
        "spec": spec(NODE, 4, WORK),
    });
    ci.create(&pod).unwrap();
    let selector = [
        "-n",
        "nvlink-exporter",
        "-l",
        "app.kubernetes.io/name=nvlink-exporter",
    ];
    let found = [&["pods"][..], &selector].concat();
    let exporter = cluster.kubectl().get(&found).unwrap();
    let address = exporter["items"][0]["status"]["podIP"].as_str().unwrap();
    let url = format!("http://{address}:9836/metrics");
    wait_until("the exporter to report the pod", SOON, || {
        Ok((held(&http::text(&url)?, "busy").len() == 4).then_some(()))
    })
    .unwrap();
    ci.run(&["delete", "pod", "busy"]).unwrap();
}

/// Puts the chart's device plugin between the kubelet and the vendor's, as docs/preferred.md says, and
/// takes it out again.
fn a_device_plugin_goes_between_and_out_again(cluster: &Cluster, helm: &Helm) {
    let (lab, kubectl) = (&cluster.lab, cluster.kubectl());
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
        "metadata": {"name": "preferred"}, "spec": {"devices": {"mapping": "Preferred"}},
    });
    kubectl.create(&class).unwrap();
    let (own, _) = lab.plugin_directories();
    lab.stop_vendor();
    helm.release("upgrade", "devicePlugin: {enabled: true}", &["--wait"])
        .unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.logs()));
    lab.start_vendor_in(&own.with_file_name("nvlink-domains"))
        .unwrap();
    wait_for_label(kubectl, Some("preferred"));
    let ci = kubectl.in_namespace("ci");
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "ordered", "annotations": {"nvlink-domains.io/class": "preferred"}},
        "spec": spec(NODE, 4, "env"),
    });
    let log = log_of(&ci, &pod);
    assert_eq!(
        variable(&log, "CUDA_VISIBLE_DEVICES"),
        Some("0,1,2,3"),
        "{log}"
    );
    let gpus = variable(&log, "NVLINK_DOMAINS_GPUS").unwrap_or_else(|| panic!("{log}"));
    assert_eq!(gpus.matches("GPU-").count(), 4, "{log}");

    lab.stop_vendor();
    helm.release("upgrade", "devicePlugin: {enabled: false}", &["--wait"])
        .unwrap();
    lab.start_vendor().unwrap();
    wait_for_label(kubectl, None);
    pod["metadata"] = json!({"name": "plain"});
    let log = log_of(&ci, &pod);
    assert_eq!(variable(&log, "NVLINK_DOMAINS_GPUS"), None, "{log}");
}

fn wait_for_label(kubectl: &Kubectl, value: Option<&str>) {
    wait_until("the label of the node", SOON, || {
        let node = kubectl.get(&["node", NODE])?;
        let label = node["metadata"]["labels"]["nvlink-domains.io/devices"].as_str();
        let gpus = node["status"]["allocatable"]["nvidia.com/gpu"].as_str();
        ensure!(label == value && gpus == Some("8"), "{label:?}, {gpus:?}");
        Ok(Some(()))
    })
    .unwrap();
}

/// Runs a pod to its end, and returns its log.
fn log_of(kubectl: &Kubectl, pod: &Value) -> String {
    kubectl.create(pod).unwrap();
    let name = pod["metadata"]["name"].as_str().unwrap();
    wait_until("the pod to end", SOON, || {
        let pod = kubectl.get(&["pod", name])?;
        ensure!(pod["status"]["phase"] == "Succeeded", "{:#}", pod["status"]);
        Ok(Some(()))
    })
    .unwrap();
    kubectl.run(&["logs", name]).unwrap()
}

/// What the API server says when the webhook does not answer within five seconds.
const LATE: &str = "context deadline exceeded";

/// Upgrades, rolls back and uninstalls while pods of a class are created all the time.
fn no_pod_is_refused(cluster: &Cluster, helm: &Helm) {
    let kubectl = cluster.kubectl();
    let mut pod = gpu_pod("probe", 2);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "one-domain"});
    let (stop, began) = (AtomicBool::new(false), Instant::now());
    let (tried, [upgraded, ends]) = thread::scope(|scope| {
        let tries = scope.spawn(|| {
            let mut tried = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let at = Instant::now();
                tried.push((at, dry_run(kubectl, &pod)));
            }
            tried
        });
        let _stop = Stop(&stop);
        let changed = "webhook: {podAnnotations: {round: '2'}}";
        helm.release("upgrade", changed, &["--wait"]).unwrap();
        let upgraded = Instant::now();
        helm.on_release("rollback", &["--wait"]).unwrap();
        let ends = Instant::now();
        helm.on_release("uninstall", &["--wait"]).unwrap();
        stop.store(true, Ordering::Relaxed);
        (tries.join().unwrap(), [upgraded, ends])
    });
    let when = |at: Instant| at - began;
    let steps = format!(
        "upgraded at {:?}, rolled back at {:?}",
        when(upgraded),
        when(ends)
    );
    let mut late = Vec::new();
    for (at, pod) in &tried {
        let pod = match pod {
            Ok(pod) => pod,
            Err(error) if format!("{error:#}").contains(LATE) => {
                late.push(when(*at));
                continue;
            }
            Err(error) => panic!("at {:?}, {steps}: {error:#}", when(*at)),
        };
        assert!(
            *at > ends || decision(pod).is_some(),
            "a pod passed by the webhook"
        );
    }
    // Other tests may keep both cores from the webhook for its five seconds, or from kube-proxy for longer
    // than a pod drains.
    let most = 3 * usize::try_from(crowd()).unwrap();
    assert!(late.len() <= most, "too late at {late:?}, {steps}");
    assert!(tried.len() > 20, "only {} pods", tried.len());
}

/// Ends the creation of pods, also when the test fails.
struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
