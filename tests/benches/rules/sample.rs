//! A small cluster of real programs: one simulated node of each kind, the webhook, and a
//! Prometheus with the rules. What it holds is the template of the large one.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use nvlink_tests::{
    ControlPlane, Exporter, Kubectl, Kubelet, Node, Prometheus, Rules, Webhook, dcgm, http,
    kubelet::Container, node, webhook::install_crds,
};
use serde_json::{Value, json};

use crate::{
    foreign::{Foreign, Machine},
    series::{Density, JOB, Series, sample_node},
};

/// A minute of the rules is a second here, so that a baseline exists after minutes.
const FACTOR: u32 = 60;
const WARM_UP: Duration = Duration::from_secs(60);
const BETWEEN: Duration = Duration::from_secs(15);
const RESOURCE: &str = "nvidia.com/gpu";
const NAMESPACE: &str = "training";

/// How the GPUs of a node are used.
pub(crate) struct Kind {
    /// GPUs of each pod.
    pods: &'static [usize],
    faults: &'static str,
    /// Of 100 nodes.
    pub(crate) share: usize,
}

pub(crate) const KINDS: [Kind; 6] = [
    Kind {
        pods: &[4, 2, 1],
        faults: r#"[{"link-down": {"gpu": 3, "link": 7}}, {"xid": {"gpu": 0, "xid": 74}},
            {"errors": {"gpu": 5, "link": 2, "kind": "crc_flit", "perHour": 36000}}]"#,
        share: 1,
    },
    Kind {
        pods: &[8],
        faults: "[]",
        share: 30,
    },
    Kind {
        pods: &[4, 4],
        faults: "[]",
        share: 20,
    },
    Kind {
        pods: &[4, 2],
        faults: "[]",
        share: 20,
    },
    Kind {
        pods: &[2, 2, 2, 2],
        faults: "[]",
        share: 19,
    },
    Kind {
        pods: &[3, 1, 1, 1, 1],
        faults: "[]",
        share: 10,
    },
];

/// The series of each kind of node, and those of the cluster.
pub(crate) struct Template {
    pub(crate) kinds: Vec<Vec<Series>>,
    pub(crate) cluster: Vec<Series>,
}

/// Runs the small cluster.
pub(crate) fn take(readers: &Readers) -> Result<Template> {
    let plane = ControlPlane::start()?;
    install_crds(plane.kubectl())?;
    let kubectl = plane.namespace(NAMESPACE, &json!({}), &json!({}))?;
    let nodes: Vec<SampleNode> = (0..KINDS.len())
        .map(|kind| SampleNode::start(&plane, &kubectl, kind))
        .collect::<Result<_>>()?;
    let machines = nodes.iter().map(|one| Machine {
        node: one.name.clone(),
        pods: one.pods.clone(),
        gpus: one.gpus.clone(),
    });
    let foreign = Foreign::start(machines.collect())?;
    let webhooks = [
        Webhook::start(plane.kubeconfig())?,
        Webhook::start(plane.kubeconfig())?,
    ];
    webhooks[0].register(plane.kubectl())?;
    let rules = Rules::read()?.faster(FACTOR);
    let prometheus = Prometheus::recording(jobs(&nodes, &webhooks, &foreign), &rules)?;
    submit_pods(&kubectl, WARM_UP)?;
    let before = snapshot(&prometheus)?;
    submit_pods(&kubectl, BETWEEN)?;
    let after = snapshot(&prometheus)?;
    template(&before, &after, readers)
}

/// What reads series over time.
pub(crate) struct Readers {
    /// Expressions of panels.
    pub(crate) panels: Vec<String>,
    /// Expressions of rules.
    pub(crate) rules: Vec<String>,
}

fn density(name: &str, labels: &BTreeMap<String, String>, readers: &Readers) -> Density {
    let of_links = ["link", "peer"]
        .iter()
        .any(|label| labels.contains_key(*label));
    let days = ["[1d", "[1w"].map(|range| format!("{name}{range}"));
    let over_days = |expr: &String| days.iter().any(|read| expr.contains(read));
    if of_links {
        Density::Links
    } else if readers.rules.iter().any(over_days) {
        Density::Day
    } else if name.contains(':') || readers.panels.iter().any(|expr| expr.contains(name)) {
        Density::Kept
    } else {
        Density::Raw
    }
}

struct SampleNode {
    name: String,
    /// Namespace and name.
    pods: Vec<(String, String)>,
    gpus: Vec<String>,
    exporter: Exporter,
    _kubelet: Kubelet,
}

impl SampleNode {
    fn start(plane: &ControlPlane, kubectl: &Kubectl, kind: usize) -> Result<Self> {
        let name = sample_node(kind);
        node::create(plane.kubectl(), &[Node::new(&*name, 8)])?;
        let kubelet = Kubelet::start()?;
        let socket = kubelet.socket().to_string_lossy().into_owned();
        let arguments = [
            "--source",
            "sim:dgx-h100",
            "--kubelet-socket",
            &socket,
            "--collection-interval",
            "1s",
        ];
        let exporter = Exporter::publishing(plane.kubeconfig(), &name, &arguments)?;
        // After the exporter has started, so that it knows what was free for them.
        let uuids = dcgm::uuids("dgx-h100", &name)?;
        let mut free = uuids.clone();
        let mut pods = Vec::new();
        for (index, &gpus) in KINDS[kind].pods.iter().enumerate() {
            let pod = format!("{JOB}{index}-{name}");
            kubectl.create(&bound_pod(&pod, &name, gpus, kind, index))?;
            let held: Vec<String> = free.drain(..gpus).collect();
            kubelet.run_pod(
                NAMESPACE,
                &pod,
                [Container::named("main").holding(RESOURCE, &held)],
            );
            pods.push((NAMESPACE.to_owned(), pod));
        }
        let set = http::send("PUT", &exporter.url("/sim/faults"), KINDS[kind].faults)?;
        ensure!(
            set.status < 300,
            "the exporter refuses the faults: {}",
            set.body
        );
        Ok(Self {
            name,
            pods,
            gpus: uuids,
            exporter,
            _kubelet: kubelet,
        })
    }
}

/// A pod that is on its node already, as the webhook would have left it.
fn bound_pod(name: &str, node: &str, gpus: usize, kind: usize, index: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {
            "nvlink-domains.io/class": format!("class-{kind}"),
            "nvlink-domains.io/project": format!("project-{kind}-{index}"),
        }},
        "spec": {"nodeName": node, "containers": [container(gpus)]},
    })
}

fn container(gpus: usize) -> Value {
    let limits = json!({RESOURCE: gpus.to_string()});
    json!({"name": "main", "image": "train", "resources": {"limits": limits}})
}

/// Submits pods for some time, so that the webhook has numbers.
fn submit_pods(kubectl: &Kubectl, time: Duration) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < time {
        kubectl.create(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "submitted-"},
            "spec": {"containers": [container(2)]},
        }))?;
        thread::sleep(Duration::from_secs(1));
    }
    Ok(())
}

fn jobs(nodes: &[SampleNode], webhooks: &[Webhook], foreign: &Foreign) -> Vec<Value> {
    // The labels that the Prometheus Operator gives to the exporter's pods.
    let exporter = |one: &SampleNode| {
        let labels = json!({
            "instance": format!("{}:9836", one.name), "namespace": "nvlink-exporter",
            "pod": format!("nvlink-exporter-{}", one.name), "container": "exporter",
        });
        json!({"targets": [one.exporter.address], "labels": labels})
    };
    let machine = |one: &SampleNode| {
        let labels = json!({
            "instance": format!("{}:9100", one.name), "__metrics_path__": format!("/node/{}", one.name),
        });
        json!({"targets": [foreign.address], "labels": labels})
    };
    let webhook = |(index, one): (usize, &Webhook)| json!({"targets": [one.replica.admin], "labels": {"instance": format!("webhook-{index}:8080")}});
    let job = |name: &str, path: &str, targets: Vec<Value>| json!({"job_name": name, "honor_labels": true, "metrics_path": path, "static_configs": targets});
    let others = || vec![json!({"targets": [foreign.address]})];
    vec![
        job(
            "nvlink-exporter",
            "/metrics",
            nodes.iter().map(exporter).collect(),
        ),
        job(
            "node-exporter",
            "/metrics",
            nodes.iter().map(machine).collect(),
        ),
        job(
            "nvlink-webhook",
            "/metrics",
            webhooks.iter().enumerate().map(webhook).collect(),
        ),
        job("kube-state-metrics", "/state", others()),
        job("apiserver", "/api", others()),
        job("benchmarks", "/collectives", others()),
    ]
}

/// A series' labels, and the time and value of a sample.
type Snapshot = BTreeMap<BTreeMap<String, String>, (f64, f64)>;

/// Returns all series except those of alerts, which the large Prometheus makes itself.
fn snapshot(prometheus: &Prometheus) -> Result<Snapshot> {
    let all = r#"last_over_time({__name__=~".+", __name__!~"ALERTS.*"}[1m])"#;
    let samples = prometheus.query(all)?;
    let at = prometheus.query("time()")?[0].value;
    let series = samples
        .into_iter()
        .filter(|sample| sample.value.is_finite());
    Ok(series
        .map(|sample| (sample.labels, (at, sample.value)))
        .collect())
}

fn template(before: &Snapshot, after: &Snapshot, readers: &Readers) -> Result<Template> {
    let mut template = Template {
        kinds: KINDS.iter().map(|_| Vec::new()).collect(),
        cluster: Vec::new(),
    };
    for (labels, &(at, value)) in after {
        let name = labels.get("__name__").map_or("", String::as_str);
        let counts = ["_total", "_count", "_sum", "_bucket"]
            .iter()
            .any(|end| name.ends_with(end));
        let growth = before.get(labels).filter(|_| counts && !name.contains(':'));
        let growth = growth.map_or(0.0, |(since, old)| (value - old) / (at - since));
        let density = density(name, labels, readers);
        let kind = (0..KINDS.len()).find(|kind| {
            let node = sample_node(*kind);
            labels.values().any(|value| value.contains(&node))
        });
        let node = kind.map(sample_node);
        let series = Series::new(labels, node.as_deref(), density, value, growth.max(0.0));
        match kind {
            Some(kind) => template.kinds[kind].push(series),
            None => template.cluster.push(series),
        }
    }
    ensure!(
        template.kinds.iter().all(|series| !series.is_empty()),
        "a kind of node has no series: the small Prometheus did not scrape it"
    );
    Ok(template)
}
