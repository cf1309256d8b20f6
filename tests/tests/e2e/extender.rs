//! The real scheduler with the extender, configured by the file that users get.

use std::{fs, time::Duration};

use nvlink_tests::{
    ControlPlane, Kubectl, Node, Webhook, node, port,
    programs::{self, EXPORTER},
    wait_until,
    webhook::install_crds,
};
use serde_json::{Value, json};

use crate::{
    pods::{decision, gpu_pod, is_bound, is_unschedulable, wait_for_pods},
    shared::dry_run,
};

const SOON: Duration = Duration::from_secs(60);
const CONFIGURATION: &str = "../deploy/scheduler/kube-scheduler.yaml";

/// A control plane whose scheduler asks the extender, and a namespace whose pods have a class.
struct Cluster {
    plane: ControlPlane,
    webhook: Option<Webhook>,
    ci: Kubectl,
    /// Its pods have no class.
    others: Kubectl,
}

impl Cluster {
    fn start() -> Self {
        let mut plane = ControlPlane::start().unwrap();
        install_crds(plane.kubectl()).unwrap();
        let address = port::address().unwrap().to_string();
        let listen = ["--extender-listen", &address];
        let webhook = Webhook::start_with(plane.kubeconfig(), &listen).unwrap();
        webhook.register(plane.kubectl()).unwrap();
        let class = json!({
            "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
            "metadata": {"name": "open"}, "spec": {},
        });
        plane.kubectl().create(&class).unwrap();
        let default = json!({"nvlink-domains.io/default-class": "open"});
        let ci = plane.namespace("ci", &json!({}), &default).unwrap();
        let off = json!({"nvlink-domains.io/webhook": "ignore"});
        let others = plane.namespace("others", &off, &json!({})).unwrap();
        wait_until("the webhook to place pods", SOON, || {
            let stored = dry_run(&ci, &gpu_pod("probe", 1))?;
            Ok(decision(&stored).map(drop))
        })
        .unwrap();
        let authority = webhook.authority.to_string_lossy();
        let configuration = configuration(&address, &authority);
        plane.configure_scheduler(&configuration).unwrap();
        Self {
            plane,
            webhook: Some(webhook),
            ci,
            others,
        }
    }

    /// Creates a node of eight GPUs in four bridged pairs, of which pods hold some.
    fn node(&self, name: &str, cpus: u32, held: &[u32]) {
        let kubectl = self.plane.kubectl();
        let size = "nvlink-domains.io/domain-size";
        let node = Node::new(name, 8).cpus(cpus).label(size, "2");
        node::create(kubectl, &[node]).unwrap();
        let source = ["--source", "sim:a100-pcie-pairs", "--node-name", name];
        let topology = [&["topology"], &source[..], &["--output", "json"]].concat();
        let document = programs::run(EXPORTER, &topology, "").unwrap();
        kubectl.apply(&document).unwrap();
        let allocation = |gpu: &u32| {
            let pod = format!("{name}-{gpu}");
            let mut holder = gpu_pod(&pod, 1);
            holder["spec"]["nodeName"] = json!(name);
            self.others.create(&holder).unwrap();
            json!({"namespace": "others", "pod": pod, "container": "main", "gpus": [gpu]})
        };
        let allocations: Value = held.iter().map(allocation).collect();
        let status = json!({"status": {"allocations": allocations}}).to_string();
        let patch = ["patch", "nodetopology", name, "--subresource=status"];
        let merge = ["--type=merge", "-p", &status];
        kubectl.run(&[&patch[..], &merge].concat()).unwrap();
    }

    /// Creates a job of two GPUs.
    fn create(&self, namespace: &Kubectl, name: &str) {
        let mut pod = gpu_pod(name, 2);
        pod["metadata"]["labels"] = json!({"job": name});
        pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] = json!("4");
        namespace.create(&pod).unwrap();
    }

    /// Waits until a job is bound, and returns its node.
    fn bound(&self, namespace: &Kubectl, name: &str) -> String {
        self.plane.check_scheduler().unwrap();
        let pods = wait_for_pods(namespace, &format!("job={name}"), 1, is_bound);
        pods[0]["spec"]["nodeName"].as_str().unwrap().to_owned()
    }

    fn place(&self, name: &str) -> String {
        self.create(&self.ci, name);
        self.bound(&self.ci, name)
    }

    fn metric(&self, verb: &str) -> f64 {
        let page = self.webhook.as_ref().unwrap().replica.metrics().unwrap();
        let series = format!(
            "nvlink_webhook_extender_requests_total{{verb=\"{verb}\",outcome=\"answered\"}} "
        );
        let mut lines = page.lines();
        let value = lines.find_map(|line| line.strip_prefix(&series)).unwrap();
        value.parse().unwrap()
    }
}

/// Returns the configuration of `deploy/scheduler` for an extender at `address`.
fn configuration(address: &str, authority: &str) -> String {
    let mut text = fs::read_to_string(CONFIGURATION).unwrap();
    for (placeholder, value) in [
        (
            "https://nvlink-webhook.nvlink-system.svc:8444",
            &*format!("https://{address}"),
        ),
        (
            "serverName: nvlink-webhook.nvlink-system.svc",
            "serverName: localhost",
        ),
        ("/etc/kubernetes/nvlink-webhook-ca.crt", authority),
        // On a busy machine, an answer may take longer, and the scheduler would place the pod by itself.
        ("httpTimeout: 3s", "httpTimeout: 30s"),
    ] {
        assert!(text.contains(placeholder), "{placeholder}");
        text = text.replace(placeholder, value);
    }
    text
}

#[test]
fn the_scheduler_asks_the_extender_and_does_without_it() {
    let mut cluster = Cluster::start();
    // The scheduler alone prefers the nodes with more CPUs.
    cluster.node("split", 256, &[0, 2, 4, 6]);
    cluster.node("whole", 128, &[]);
    cluster.node("nearly-full", 64, &[2, 3, 4, 5, 6, 7]);

    // The fragment before the whole node; the split one has four GPUs, but no pair.
    assert_eq!(cluster.place("first"), "nearly-full");
    // Nobody reports yet that the pair is taken.
    for job in ["second", "third", "fourth", "fifth"] {
        assert_eq!(cluster.place(job), "whole");
    }
    cluster.create(&cluster.ci, "waits");
    let pods = wait_for_pods(&cluster.ci, "job=waits", 1, is_unschedulable);
    let conditions = pods[0]["status"]["conditions"].to_string();
    let reason = "1 no NVLink domain has 2 free GPUs (at most 1)";
    assert!(conditions.contains(reason), "{conditions}");

    // A pod ends: the job starts, although the exporter still reports the GPU as held.
    let end = ["delete", "pod", "split-4", "--force", "--grace-period=0"];
    cluster.others.run(&end).unwrap();
    assert_eq!(cluster.bound(&cluster.ci, "waits"), "split");
    assert!(cluster.metric("filter") >= 6.0 && cluster.metric("prioritize") >= 1.0);

    // Without the webhook, the scheduler places pods by itself.
    cluster.webhook = None;
    cluster.create(&cluster.others, "alone");
    assert_eq!(cluster.bound(&cluster.others, "alone"), "split");
}
