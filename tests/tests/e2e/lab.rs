//! Pods that really run, on a node with a kubelet, containers and a device plugin, and what the
//! exporter reads from that kubelet.

use std::{collections::BTreeSet, sync::OnceLock, time::Duration};

use nvlink_tests::{
    Choice, ControlPlane, Exporter, Kubectl, Lab, LabNode, Webhook, http, wait_until, webhook,
};
use serde_json::{Value, json};

use crate::{
    allocations::{held, of_pod, quality, succeeded},
    pods::{assert_mutated, decision},
    shared::shared,
};

mod channels;
mod claimed;
mod gitlab;
mod install;
mod machine;
mod planned;
mod preferred;
mod residue;
mod restarts;

const SOON: Duration = Duration::from_secs(60);
/// GPUs 0 to 3 and 4 to 7 are meshes; between the two, only some have an NVLink.
const PROFILE: &str = "dgx1-v100";

/// A control plane for kubelets, with a webhook and a class.
struct Cluster {
    control_plane: ControlPlane,
    kubectl: Kubectl,
    _webhook: Webhook,
}

/// Returns the cluster of all tests of this module; each has a node of its own.
fn cluster() -> &'static Cluster {
    static SHARED: OnceLock<Result<Cluster, String>> = OnceLock::new();
    let start = || {
        let control_plane = ControlPlane::start_for_kubelets()?;
        webhook::install_crds(control_plane.kubectl())?;
        let webhook = Webhook::start(control_plane.kubeconfig())?;
        webhook.register(control_plane.kubectl())?;
        for (name, spec) in [
            (
                "preferred",
                json!({"placement": {"scope": "node"}, "devices": {"mapping": "Preferred"}}),
            ),
            (
                "claimed",
                json!({
                    "placement": {"scope": "node", "whenUnavailable": "Queue"},
                    "devices": {"mapping": "Claim"},
                }),
            ),
            // The last one, so that who sees it sees all.
            ("lab", json!({"appliesTo": {"minGpus": 2}})),
        ] {
            control_plane.kubectl().create(&json!({
                "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
                "metadata": {"name": name}, "spec": spec,
            }))?;
        }
        let kubectl = control_plane.namespace("ci", &json!({}), &json!({}))?;
        wait_until("the webhook to see the class", SOON, || {
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"},
                "spec": spec("nowhere", 2, "true"),
            });
            let arguments = ["create", "--dry-run=server", "-f", "-", "-o", "json"];
            let text = kubectl.run_with(&arguments, &pod.to_string())?;
            Ok(decision(&serde_json::from_str(&text)?))
        })?;
        Ok(Cluster {
            control_plane,
            kubectl,
            _webhook: webhook,
        })
    };
    shared(&SHARED, start)
}

/// A node and its exporter.
struct Bench {
    exporter: Exporter,
    lab: Lab,
    kubectl: &'static Kubectl,
}

impl Bench {
    fn start(node: &LabNode) -> Self {
        Self::start_with(node, PROFILE)
    }

    /// Starts a node, and an exporter of its `profile`.
    fn start_with(node: &LabNode, profile: &str) -> Self {
        let cluster = cluster();
        let lab = Lab::start(&cluster.control_plane, node).unwrap();
        let socket = lab.pod_resources().to_str().unwrap().to_owned();
        let source = format!("sim:{profile}");
        let arguments = ["--source", &source, "--kubelet-socket", &socket];
        let arguments = [&arguments[..], &["--collection-interval", "100ms"]].concat();
        let kubeconfig = cluster.control_plane.kubeconfig();
        let exporter = Exporter::publishing(kubeconfig, lab.name(), &arguments).unwrap();
        wait_until("the node to be labelled", SOON, || {
            let node = cluster.kubectl.get(&["node", lab.name()])?;
            let labels = &node["metadata"]["labels"];
            Ok(labels["nvlink-domains.io/domain-size"].as_str().map(drop))
        })
        .unwrap();
        Self {
            exporter,
            lab,
            kubectl: &cluster.kubectl,
        }
    }

    /// Creates a pod that holds GPUs of this node until [`Bench::end`], and waits until it runs.
    fn run_pod(&self, name: &str, gpus: u32) {
        self.run_pod_of("lab", name, gpus);
    }

    /// Does the same with a pod that names a class.
    fn run_pod_of(&self, class: &str, name: &str, gpus: u32) {
        self.create_pod_of(class, name, gpus);
        self.wait_for_phase(name, "Running");
    }

    fn create_pod_of(&self, class: &str, name: &str, gpus: u32) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "annotations": {"nvlink-domains.io/class": class}},
            "spec": spec(self.lab.name(), gpus, WORK),
        });
        self.kubectl.create(&pod).unwrap();
    }

    fn wait_for_phase(&self, pod: &str, phase: &str) {
        wait_until(&format!("{pod} to be {phase}"), SOON, || {
            let pod = self.kubectl.get(&["pod", pod])?;
            anyhow::ensure!(pod["status"]["phase"] == phase, "{:#}", pod["status"]);
            Ok(Some(()))
        })
        .unwrap();
    }

    /// Returns what a container that runs [`WORK`] got. `arguments` are those of `kubectl logs`. It
    /// may run before it has printed anything.
    fn printed(&self, arguments: &[&str]) -> String {
        wait_until("the container to print its variables", SOON, || {
            let log = self.kubectl.run(&[&["logs"], arguments].concat())?;
            anyhow::ensure!(log.contains("ready\n"), "{log}");
            Ok(Some(log))
        })
        .unwrap()
    }

    /// Lets the work of a pod end.
    fn end(&self, pod: &str) {
        let touch = ["exec", pod, "--", "touch", "/tmp/end"];
        self.kubectl.run(&touch).unwrap();
    }

    /// Waits until the metrics are as wanted, and returns them.
    fn wait_for(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        wait_until(what, SOON, || {
            let text = self.exporter.metrics()?;
            if wanted(&text) {
                return Ok(Some(text));
            }
            let lines = text
                .lines()
                .filter(|line| line.starts_with("nvlink_alloc") || line.starts_with("nvlink_imex"));
            anyhow::bail!("{}", lines.collect::<Vec<_>>().join("\n"))
        })
        .unwrap()
    }

    fn wait_for_pod(&self, name: &str, gpus: usize) -> String {
        self.wait_for(&format!("{name} with {gpus} GPUs"), |text| {
            held(text, name).len() == gpus
        })
    }

    /// Returns the UUID of a GPU.
    fn uuid(&self, gpu: u32) -> &str {
        let gpus = self.lab.recording()["spec"]["gpus"].as_array().unwrap();
        gpus.iter().find(|one| one["index"] == gpu).unwrap()["uuid"]
            .as_str()
            .unwrap()
    }
}

/// Prints what the container got, and works until somebody creates a file. It does not end before
/// `touch` has, which the kernel would kill with it.
const WORK: &str = "env; find /dev -name 'nvidia[0-9]*'; echo ready; until [ -e /tmp/end ] && ! pidof touch >/dev/null; do sleep 0.1; done; echo done";

/// Returns the spec of a pod that runs a shell script on this node.
fn spec(node: &str, gpus: u32, script: &str) -> Value {
    json!({
        "nodeSelector": {"kubernetes.io/hostname": node},
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [{
            "name": "main",
            "image": "busybox:1",
            "command": ["sh", "-c", script],
            "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}},
        }],
    })
}

/// Returns the value of a variable in the output of `env`.
fn variable<'a>(log: &'a str, name: &str) -> Option<&'a str> {
    let mut variables = log.lines().filter_map(|line| line.split_once('='));
    variables
        .find(|(found, _)| *found == name)
        .map(|(_, value)| value)
}

#[test]
fn a_job_runs_on_the_gpus_that_the_exporter_reports_and_ends() {
    let bench = Bench::start(&LabNode::new("lab-job", PROFILE));
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"},
        "spec": {"template": {"spec": spec("lab-job", 4, WORK)}},
    });
    bench.kubectl.create(&job).unwrap();
    let pod = wait_until("the job's pod", SOON, || {
        let pods = bench.kubectl.get(&["pods", "-l", "job-name=train"])?;
        Ok(pods["items"].get(0).cloned())
    })
    .unwrap();
    let name = pod["metadata"]["name"].as_str().unwrap();
    assert_mutated(&pod, "lab", 4);
    bench.wait_for_phase(name, "Running");

    let text = bench.wait_for_pod(name, 4);
    let gpus = held(&text, name);
    assert!(gpus == [0, 1, 2, 3] || gpus == [4, 5, 6, 7], "{gpus:?}");
    assert_eq!(quality(&text, name), (Some(1.0), Some(1.0)));
    assert_eq!(of_pod(&text, "nvlink_placement_domains", name), Some(1.0));

    let log = bench.printed(&["job/train"]);
    let visible: Vec<&str> = variable(&log, "NVIDIA_VISIBLE_DEVICES")
        .unwrap_or_else(|| panic!("{log}"))
        .split(',')
        .collect();
    let held: BTreeSet<&str> = gpus.iter().map(|&gpu| bench.uuid(gpu)).collect();
    assert_eq!(visible.iter().copied().collect::<BTreeSet<_>>(), held);
    assert_eq!(variable(&log, "CUDA_VISIBLE_DEVICES"), Some("0,1,2,3"));

    bench.end(name);
    let wait = ["wait", "--for=condition=complete", "--timeout=60s"];
    bench
        .kubectl
        .run(&[&wait[..], &["job/train"]].concat())
        .unwrap();
    let log = bench.kubectl.run(&["logs", "job/train"]).unwrap();
    assert!(log.ends_with("done\n"), "{log}");
    let text = bench.wait_for_pod(name, 0);
    assert_eq!(quality(&text, name), (None, None));
}

#[test]
fn a_device_plugin_that_knows_no_links_gives_a_job_a_worse_placement() {
    let node = LabNode::new("lab-scattered", PROFILE).choosing(Choice::Scattered);
    let bench = Bench::start(&node);
    bench.run_pod("scattered", 4);
    let text = bench.wait_for_pod("scattered", 4);
    let (node, free) = quality(&text, "scattered");
    assert!(node.unwrap() < 1.0, "{:?}", held(&text, "scattered"));
    assert_eq!(free, node, "all GPUs were free");
}

#[test]
fn allocations_come_back_after_a_restart_of_the_kubelet() {
    let bench = Bench::start(&LabNode::new("lab-restart", PROFILE));
    bench.run_pod("stays", 2);
    let before = held(&bench.wait_for_pod("stays", 2), "stays");

    bench.lab.stop_kubelet().unwrap();
    bench.wait_for("the kubelet to be missed", |text| {
        succeeded(text) == Some(0.0) && held(text, "stays").is_empty()
    });
    bench.lab.start_kubelet().unwrap();
    assert_eq!(held(&bench.wait_for_pod("stays", 2), "stays"), before);

    // The pod did not notice, and the next one gets other GPUs.
    let pod = bench.kubectl.get(&["pod", "stays"]).unwrap();
    let status = &pod["status"]["containerStatuses"][0];
    assert!(
        status["restartCount"] == 0 && status["state"]["running"].is_object(),
        "{status:#}"
    );
    bench.run_pod("next", 6);
    let next = held(&bench.wait_for_pod("next", 6), "next");
    assert!(next.iter().all(|gpu| !before.contains(gpu)), "{next:?}");
}

#[test]
fn programs_in_pods_are_reached_and_reach_the_api_server() {
    let bench = Bench::start(&LabNode::new("lab-network", PROFILE));
    let script = "nc -w 5 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null && \
        ls /var/run/secrets/kubernetes.io/serviceaccount && \
        echo hello >/tmp/index.html && httpd -f -p 8080 -h /tmp";
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "server", "labels": {"app": "server"}},
        "spec": spec("lab-network", 0, script),
    });
    pod["spec"]["containers"][0]["resources"] = json!({});
    bench.kubectl.create(&pod).unwrap();
    bench
        .kubectl
        .run(&["create", "service", "clusterip", "server", "--tcp=80:8080"])
        .unwrap();
    bench.wait_for_phase("server", "Running");
    let address = bench.kubectl.get(&["pod", "server"]).unwrap()["status"]["podIP"]
        .as_str()
        .unwrap()
        .to_owned();
    let said = wait_until("the pod to answer", SOON, || {
        http::text(&format!("http://{address}:8080/")).map(Some)
    });
    assert_eq!(said.unwrap(), "hello\n");
    let log = bench.kubectl.run(&["logs", "server"]).unwrap();
    assert!(log.contains("token"), "{log}");
    // kube-proxy leads from the Service to the pod. A connection that began before its rules
    // were there never follows them, so each attempt is short (wget -T crashes in Debian's static
    // busybox).
    let said = wait_until("the Service to answer", SOON, || {
        let fetch = "timeout 2 wget -q -O - http://$SERVER_SERVICE_HOST/";
        let fetch = fetch.replace("$SERVER_SERVICE_HOST", &service(bench.kubectl));
        bench
            .kubectl
            .run(&["exec", "server", "--", "sh", "-c", &fetch])
            .map(Some)
    });
    assert_eq!(said.unwrap(), "hello\n");
}

/// Returns the address of the Service `server`.
fn service(kubectl: &Kubectl) -> String {
    let service = kubectl.get(&["service", "server"]).unwrap();
    service["spec"]["clusterIP"].as_str().unwrap().to_owned()
}
