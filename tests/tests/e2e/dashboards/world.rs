//! The programs whose metrics the dashboards show, and what happens to them: faults, jobs, benchmarks, and pods
//! that the webhook admits and refuses.

use std::{fs, net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use nvlink_tests::{
    Allocator, ControlPlane, Exporter, Kubectl, Kubelet, LabNode, MetricsPage, Node, Replica, dcgm,
    http, kubelet::Container, node, port, programs, wait_until, webhook::install_crds, workdir,
};
use serde_json::{Map, Value, json};

use super::{queue, scrape::Way};
use crate::pods::{decision, gpu_pod};

pub(super) const CLUSTER: &str = "lab";
/// The node with all faults.
pub(super) const BROKEN: &str = "broken";
/// The namespace of the pods that the webhook sees.
pub(super) const PROJECT: &str = "project";
/// A class that is restricted, and queues.
pub(super) const RESTRICTED: &str = "restricted";

const SOON: Duration = Duration::from_secs(120);
const FAULTS: [(&str, &str); 2] = [
    (
        BROKEN,
        r#"[{"link-down": {"gpu": 3, "link": 7}}, {"xid": {"gpu": 2, "xid": 74}}, {"gpu-lost": {"gpu": 1}},
            {"errors": {"gpu": 3, "link": 2, "kind": "effective", "perHour": 1000000000000}},
            {"fabric-condition": {"gpu": 0, "condition": "degraded_bandwidth"}}]"#,
    ),
    (
        "mesh",
        // No link joins the GPUs of its job, which sends through other GPUs.
        r#"[{"link-down": {"gpu": 0, "link": 1}}, {"xid": {"gpu": 0, "xid": 74}},
            {"traffic": {"gpu": 0, "percent": 50}}, {"traffic": {"gpu": 5, "percent": 50}},
            {"errors": {"gpu": 0, "link": 2, "kind": "replay", "perHour": 36000000}}]"#,
    ),
];
/// Which pod of which namespace gets which GPUs of a node.
const JOBS: [(&str, &str, &str, &[usize]); 4] = [
    (BROKEN, "ci", "victim", &[2, 3]),
    // No link joins these, and all were free.
    ("mesh", "ci", "trainer", &[0, 5]),
    // One GPU of each pair: the free ones are in four pieces.
    ("pairs", PROJECT, "careless", &[0, 2]),
    ("pairs", PROJECT, "careless-too", &[4, 6]),
];

/// A program to be scraped.
pub(super) struct Target {
    pub(super) program: &'static str,
    /// Of the node, or of the pod.
    pub(super) name: &'static str,
    pub(super) address: String,
    /// Whether the program is not this project's.
    pub(super) is_foreign: bool,
    /// Further fields of the scrape configuration.
    pub(super) access: Map<String, Value>,
}

/// An exporter and the kubelet of its node.
struct Machine {
    name: &'static str,
    exporter: Exporter,
    kubelet: Kubelet,
}

pub(super) struct World {
    machines: Vec<Machine>,
    /// The device plugin of a machine.
    devices: Allocator,
    webhook: Replica,
    /// node_exporter and dcgm-exporter on a node of this name, and where its host has another.
    node_exporters: [MetricsPage; 2],
    kube_state_metrics: MetricsPage,
    // Dropped last.
    cluster: ControlPlane,
}

impl World {
    pub(super) fn start() -> Result<Self> {
        let cluster = ControlPlane::start()?;
        prepare(cluster.kubectl())?;
        let webhook = start_webhook(&cluster)?;
        let kubeconfig = cluster.kubeconfig();
        let state = benchmarks()?;
        let broken = workdir::fresh("collectives")?;
        fs::write(broken.join("collectives.json"), "no JSON")?;
        let broken = broken.to_string_lossy();
        let machines = vec![
            Machine::start(BROKEN, "hgx-b200", |own| {
                Exporter::start(&[own, &["--collectives", &broken]].concat())
            })?,
            Machine::start("mesh", "dgx1-v100", Exporter::start)?,
            Machine::start("pairs", "a100-pcie-pairs", |own| {
                // It reads the labels of pods.
                let environment = [("KUBECONFIG", kubeconfig.into())];
                Exporter::with_environment(&environment, &[own, &["--kubernetes"]].concat())
            })?,
            Machine::start("measured", "dgx-h100", |own| {
                Exporter::start(&[own, &["--collectives", &state]].concat())
            })?,
        ];
        let devices = Allocator::start(&LabNode::new("mesh", "dgx1-v100").preferring())?;
        hand_out(&devices)?;
        Ok(Self {
            machines,
            devices,
            webhook,
            node_exporters: [host("mesh")?, host("ip-10-0-0-1")?],
            kube_state_metrics: MetricsPage::start(|_| {
                let labels = r#"namespace="monitoring",pod="node-exporter-mesh",node="mesh""#;
                format!("kube_pod_info{{{labels}}} 1\n")
            })?,
            cluster,
        })
    }

    /// Returns what a Prometheus scrapes.
    pub(super) fn targets(&self, way: Way) -> Result<Vec<Target>> {
        let exporters = self.machines.iter().map(|machine| Target {
            program: "nvlink-exporter",
            name: machine.name,
            address: machine.exporter.address.clone(),
            is_foreign: false,
            access: Map::new(),
        });
        let mut targets: Vec<_> = exporters.collect();
        targets.push(Target {
            program: "nvlink-webhook",
            name: "0",
            address: self.webhook.admin.clone(),
            is_foreign: false,
            access: Map::new(),
        });
        let devices = self.devices.between().context("nothing between")?;
        targets.push(Target {
            program: "nvlink-device-plugin",
            name: "devices",
            address: devices.address.clone(),
            is_foreign: false,
            access: Map::new(),
        });
        let foreign = |program, name, page: &MetricsPage| Target {
            program,
            name,
            address: page.address.clone(),
            is_foreign: true,
            access: Map::new(),
        };
        let [plain, renamed] = &self.node_exporters;
        targets.extend(match way {
            Way::Plain => vec![foreign("node-exporter", "mesh", plain)],
            // By the name of the host alone, nobody knows the node.
            Way::Operator | Way::HonorLabelsIgnored => vec![
                foreign("node-exporter", "mesh", renamed),
                foreign("kube-state-metrics", "0", &self.kube_state_metrics),
            ],
        });
        targets.push(api_server(self.cluster.kubectl())?);
        Ok(targets)
    }

    /// Lets everything happen that the dashboards show.
    pub(super) fn happen(&self) -> Result<()> {
        let project = self.cluster.kubectl().in_namespace(PROJECT);
        for (_, _, pod, gpus) in JOBS.iter().filter(|job| job.1 == PROJECT) {
            admit(&project, pod, gpus.len())?;
        }
        refuse(&self.cluster)?;
        hand_out(&self.devices)?;
        queue::happen(self.cluster.kubectl())?;
        for (node, namespace, pod, gpus) in JOBS {
            self.machine(node)?.run(namespace, pod, gpus)?;
        }
        for (node, faults) in FAULTS {
            let url = self.machine(node)?.exporter.url("/sim/faults");
            let answer = http::send("PUT", &url, faults)?;
            ensure!(answer.status == 200, "{faults}: {}", answer.body);
        }
        Ok(())
    }

    fn machine(&self, name: &str) -> Result<&Machine> {
        let mut machines = self.machines.iter();
        machines
            .find(|one| one.name == name)
            .context("no such node")
    }
}

impl Machine {
    fn start(
        name: &'static str,
        profile: &str,
        start: impl FnOnce(&[&str]) -> Result<Exporter>,
    ) -> Result<Self> {
        let kubelet = Kubelet::start()?;
        let (source, socket) = (format!("sim:{profile}"), kubelet.socket().to_string_lossy());
        let own = ["--source", &source, "--kubelet-socket", &socket];
        let named = ["--collection-interval", "1s", "--node-name", name];
        let exporter = match start(&[&own[..], &named].concat()) {
            Ok(exporter) => exporter,
            Err(error) => return Err(error.context(name)),
        };
        let this = Self {
            name,
            exporter,
            kubelet,
        };
        // From then on it knows which GPUs were free when a pod started.
        this.wait_for(r#"nvlink_exporter_collector_success{collector="allocations"} 1"#)?;
        Ok(this)
    }

    fn wait_for(&self, part: &str) -> Result<()> {
        wait_until(&format!("{part} of {}", self.name), SOON, || {
            Ok(self.exporter.metrics()?.contains(part).then_some(()))
        })
    }

    /// Gives GPUs to a pod.
    fn run(&self, namespace: &str, pod: &str, gpus: &[usize]) -> Result<()> {
        let text = http::text(&self.exporter.url("/api/v1/topology"))?;
        let topology: Value = serde_json::from_str(&text)?;
        let uuids: Option<Vec<&str>> = gpus
            .iter()
            .map(|&gpu| topology["spec"]["gpus"][gpu]["uuid"].as_str())
            .collect();
        let main = Container::named("main").holding("nvidia.com/gpu", &uuids.context("no UUID")?);
        self.kubelet.run_pod(namespace, pod, [main]);
        self.wait_for(&format!("pod=\"{pod}\""))
    }
}

/// Gives GPUs to containers: to one those that are preferred, to one others.
fn hand_out(devices: &Allocator) -> Result<()> {
    let all = devices.devices()?;
    for takes in [true, false] {
        let mut preferred = devices.prefer(&all, 4)?;
        if !takes {
            let others = all.iter().filter(|id| !preferred.contains(id));
            preferred = others.cloned().collect();
        }
        devices.allocate(&preferred)?;
    }
    Ok(())
}

/// Creates classes, nodes, a project, and the right of ada to create pods in it.
fn prepare(kubectl: &Kubectl) -> Result<()> {
    install_crds(kubectl)?;
    let restricted = json!({"access": {"mode": "Restricted"}, "nodeSelector": {"matchLabels": {"pool": "restricted"}}});
    for (name, spec) in [
        ("open", json!({"placement": {"scope": "nvlink-domain"}})),
        (RESTRICTED, restricted),
    ] {
        kubectl.create(&json!({
            "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
            "metadata": {"name": name}, "spec": spec,
        }))?;
    }
    let untainted = Node::new("untainted", 8).label("pool", "restricted");
    node::create(kubectl, &[Node::new("pairs", 8), untainted])?;
    Ok(())
}

/// Registers a webhook that does not answer, has the API server call it, and starts it then.
fn start_webhook(cluster: &ControlPlane) -> Result<Replica> {
    let kubectl = cluster.namespace(PROJECT, &json!({}), &json!({}))?;
    let address = SocketAddr::from(([127, 0, 0, 1], port::free()?));
    let url = format!("https://{address}");
    let registration = programs::run(
        programs::WEBHOOK,
        &["registration", "--url", &url, "--ca-file", &authority()?],
        "",
    )?;
    kubectl.apply(&registration)?;
    wait_until("a call to fail", SOON, || {
        let answer = kubectl.output(&["create", "-f", "-"], &named("early", "open").to_string())?;
        let said = String::from_utf8_lossy(&answer.stderr).into_owned();
        ensure!(said.contains("failed calling webhook"), "{said}");
        Ok(Some(()))
    })?;
    // It names no class, so it is created all the same. The queue's jobs need all GPUs of the other
    // node.
    let mut early = gpu_pod("early", 1);
    early["spec"]["nodeName"] = json!("pairs");
    kubectl.create(&early)?;
    kubectl.run(&["create", "secret", "generic", "webhook-ca"])?;
    let secret = format!("{PROJECT}/webhook-ca");
    let arguments = ["--ca-secret", &secret, "--url", &url];
    let webhook = Replica::start_on(address, cluster.kubeconfig(), &arguments)?;
    wait_until("the API server to reach the webhook", SOON, || {
        let arguments = ["create", "--dry-run=server", "-f", "-", "-o", "json"];
        let pod = kubectl.run_with(&arguments, &named("probe", "open").to_string())?;
        Ok(decision(&serde_json::from_str(&pod)?).map(drop))
    })?;
    Ok(webhook)
}

/// Returns the file of an authority that signed nothing.
fn authority() -> Result<String> {
    let file = workdir::fresh("authority")?.join("ca.pem");
    fs::write(
        &file,
        nvlink_tests::certificates::Authority::new("nobody")?.certificate,
    )?;
    Ok(file.to_string_lossy().into_owned())
}

/// Returns a pod that names a class.
pub(super) fn named(name: &str, class: &str) -> Value {
    let mut pod = gpu_pod(name, 2);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": class});
    pod
}

/// Creates a pod with a class, which the webhook labels, on the node of the pairs.
fn admit(kubectl: &Kubectl, name: &str, gpus: usize) -> Result<()> {
    let mut pod = named(name, "open");
    pod["spec"]["schedulerName"] = json!("nobody");
    pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = json!(gpus.to_string());
    ensure!(
        decision(&kubectl.create(&pod)?).is_some(),
        "the webhook did not see {name}"
    );
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "pairs"}});
    let path = format!("/api/v1/namespaces/{PROJECT}/pods/{name}/binding");
    let arguments = ["create", "--raw", &path, "-f", "-"];
    kubectl.run_with(&arguments, &binding.to_string()).map(drop)
}

/// Has a user refused who may not use the restricted class.
fn refuse(cluster: &ControlPlane) -> Result<()> {
    let project = cluster.kubectl().in_namespace(PROJECT);
    for arguments in [
        ["role", "pods", "--verb=create", "--resource=pods"],
        ["rolebinding", "ada", "--role=pods", "--user=ada"],
    ] {
        project.run(&[&["create"], &arguments[..]].concat())?;
    }
    let ada = cluster.kubectl_as("ada")?.in_namespace(PROJECT);
    let pod = named("refused", RESTRICTED).to_string();
    wait_until("the refusal", SOON, || {
        let said = ada.refused(&["create", "-f", "-"], &pod)?;
        ensure!(said.contains("To grant this right"), "{said}");
        Ok(Some(()))
    })
}

/// Returns how to scrape the API server, whose other metrics are thousands.
fn api_server(kubectl: &Kubectl) -> Result<Target> {
    let view = kubectl.run(&["config", "view", "--raw", "--flatten", "-o", "json"])?;
    let view: Value = serde_json::from_str(&view)?;
    let server = view["clusters"][0]["cluster"]["server"]
        .as_str()
        .unwrap_or_default();
    let address = server
        .strip_prefix("https://")
        .context("no address")?
        .to_owned();
    let keep = json!({"source_labels": ["__name__"], "regex": "apiserver_admission_webhook_.*", "action": "keep"});
    let access = json!({
        "scheme": "https",
        "authorization": {"credentials": view["users"][0]["user"]["token"]},
        "tls_config": {"insecure_skip_verify": true},
        "metric_relabel_configs": [keep],
    });
    Ok(Target {
        program: "kube-apiserver",
        name: "0",
        address,
        is_foreign: true,
        access: access.as_object().cloned().unwrap_or_default(),
    })
}

/// Starts what node_exporter and dcgm-exporter would serve on a host of this name, which is node `mesh`.
fn host(host: &'static str) -> Result<MetricsPage> {
    let gpus = dcgm::uuids("dgx1-v100", "mesh")?;
    let gpus = dcgm::dcgm(host, &gpus, 0.9, 1e8);
    MetricsPage::start(move |since| {
        let bytes = 1e9 * since.as_secs_f64();
        let mut page = format!(
            "node_uname_info{{nodename=\"{host}\"}} 1\n\
             node_network_transmit_bytes_total{{device=\"eth0\"}} {bytes}\n\
             node_network_transmit_bytes_total{{device=\"lo\"}} 1\n\
             node_infiniband_port_data_transmitted_bytes_total{{device=\"mlx5_0\",port=\"1\"}} {bytes}\n"
        );
        page.push_str(&gpus);
        page
    })
}

/// Keeps results of nccl-tests on a DGX H100, four good runs and, on half of it, one with wrong values, and
/// returns the directory.
fn benchmarks() -> Result<String> {
    let state = workdir::fresh("benchmarks")?.to_string_lossy().into_owned();
    let place = [
        "--collective",
        "all_reduce",
        "--nodes",
        "1",
        "--path",
        "NVLINK",
    ];
    let model = [
        "--model",
        "NVIDIA H100 80GB HBM3",
        "--source",
        "sim:dgx-h100",
    ];
    for (run, gpus, wrong) in [
        (0, "8", 0),
        (1, "8", 0),
        (2, "8", 0),
        (3, "8", 0),
        (4, "4", 7),
    ] {
        let own = ["ingest", "--state", &state, "--gpus", gpus];
        let arguments = [&own[..], &place, &model, &["-"]].concat();
        let output = programs::output(programs::EXPORTER, &arguments, &nccl_tests(run, wrong))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success() == (wrong == 0),
            "{arguments:?}: {said}"
        );
    }
    Ok(state)
}

/// Returns the output of nccl-tests with NCCL's log: a row for each size class.
fn nccl_tests(run: u32, wrong: u32) -> String {
    let mut text = "\
gpu-0:4000:4010 [0] NCCL INFO comm 0x55 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0
gpu-0:4000:4010 [0] NCCL INFO ncclCommInitRank comm 0x55 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x1 - Init COMPLETE
gpu-0:4000:4010 [0] NCCL INFO Init timings - ncclCommInitRank: rank 0 nranks 8 total 1.16 (kernels 0.18, alloc 0.04, bootstrap 0.93, allgathers 0.00, topo 0.00, graphs 0.00, connections 0.01, rest 0.00)
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
".to_owned();
    for (size, algorithm) in [(1_u64 << 10, 0.05), (1 << 25, 100.0), (1 << 33, 200.0)] {
        let algorithm = algorithm * (1.0 + 0.01 * f64::from(run));
        let (time, bus) = (size as f64 / algorithm / 1e3, algorithm * 1.75);
        let count = size / 4;
        let half = format!("{time:9.1} {algorithm:7.2} {bus:7.2} {wrong:6}");
        text += &format!("{size:12} {count:12} float sum -1 {half} {half}\n");
    }
    let word = if wrong == 0 { "OK" } else { "FAILED" };
    text + &format!(
        "# Out of bounds values : {wrong} {word}\n# Avg bus bandwidth    : 123.456\n#\n"
    )
}
