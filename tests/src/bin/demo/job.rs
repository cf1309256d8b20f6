//! The same job twice: without the webhook, and with it.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};
use nvlink_tests::{Kubectl, wait_until, workdir};
use serde_json::{Value, json};

use crate::{
    alone::Files,
    nodes::{Cluster, SOON},
    terminal::Terminal,
};

const DECISION: &str = "nvlink-domains.io/decision";
const GPUS: usize = 4;

/// A job that holds its GPUs.
#[derive(Debug)]
pub(crate) struct Running {
    kubectl: Kubectl,
    pod: Value,
    /// What the exporter of its node reports about its pod.
    metrics: Vec<String>,
}

/// Runs both jobs, and returns them: first the one without the webhook.
pub(crate) fn show(terminal: &Terminal, cluster: &Cluster) -> Result<[Running; 2]> {
    let control_plane = &cluster.control_plane;
    terminal.step("The job without the webhook")?;
    let before = control_plane.namespace("without", &json!({}), &json!({}))?;
    let without = Running::start(terminal, cluster, before)?;
    show_node(terminal, &without.pod)?;
    terminal.say("It prefers the emptiest node and knows nothing about NVLink.")?;
    show_log(terminal, &without.kubectl)?;

    terminal.step("The same job with the webhook")?;
    cluster.webhook.register(control_plane.kubectl())?;
    terminal
        .command("nvlink-webhook registration --url … --ca-file ca.pem | kubectl apply -f -")?;
    control_plane.kubectl().apply(Files::CLASS)?;
    terminal.command("kubectl apply -f class.yaml\n")?;
    let after = control_plane.namespace("with", &json!({}), &json!({}))?;
    wait_for_webhook(&after)?;
    let with = Running::start(terminal, cluster, after)?;
    terminal.say("What changed in the pod of the job:")?;
    let kubectl = control_plane.kubectl();
    terminal.diff(&difference(kubectl, &without.pod, &with.pod)?)?;
    terminal.say(&format!("The reasons, in the pod's annotation {DECISION}:"))?;
    show_decision(terminal, &with.pod)?;
    show_node(terminal, &with.pod)?;
    show_log(terminal, &with.kubectl)?;
    terminal.say("The device plugin of the node chose the GPUs. The webhook wrote the CUDA variables, which count\nthe GPUs of the container.")?;
    terminal.say("The exporter of the node reads from the kubelet who holds its GPUs, and reports how good they are:")?;
    terminal.command(&format!(
        "curl -s ADDRESS/metrics | grep '{}'",
        with.label()
    ))?;
    terminal.output(&with.metrics.join("\n"))?;

    terminal.step("How much faster that is")?;
    let jobs = [without, with];
    compare(terminal, &jobs)?;
    Ok(jobs)
}

impl Running {
    /// Creates the job, and waits until its pod runs and the exporter of its node knows.
    fn start(terminal: &Terminal, cluster: &Cluster, kubectl: Kubectl) -> Result<Self> {
        terminal.command(&format!(
            "kubectl create -f job.yaml --namespace {}",
            kubectl.namespace()
        ))?;
        terminal.output(&kubectl.run_with(&["create", "-f", "-"], Files::JOB)?)?;
        let mut this = Self {
            pod: wait_for_pod(&kubectl, "train")?,
            kubectl,
            metrics: Vec::new(),
        };
        let exporter = cluster.exporter(node(&this.pod))?;
        let label = this.label();
        this.metrics = wait_until("the exporter to report the GPUs of the job", SOON, || {
            let text = exporter.metrics()?;
            let lines = text.lines().filter(|line| line.contains(&label));
            let lines: Vec<String> = lines.map(str::to_owned).collect();
            let gpus = of(&lines, "nvlink_allocation_info").count();
            ensure!(gpus == GPUS, "it reports {gpus} GPUs");
            Ok(Some(lines))
        })?;
        Ok(this)
    }

    pub(crate) fn name(&self) -> &str {
        self.pod["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Returns the label of its pod in metrics.
    fn label(&self) -> String {
        format!("pod=\"{}\"", self.name())
    }

    /// Returns the indices of its GPUs.
    fn gpus(&self) -> String {
        let label = |line| str::split(line, '"').nth(1);
        let gpus = of(&self.metrics, "nvlink_allocation_info{gpu=").filter_map(label);
        gpus.collect::<Vec<_>>().join(",")
    }

    /// Returns the capacity of the busiest resource between its GPUs, in bytes per second.
    fn slowest(&self) -> Result<f64> {
        let name = "nvlink_placement_bottleneck_bytes_per_second";
        let line = of(&self.metrics, name)
            .next()
            .with_context(|| format!("no {name}"))?;
        Ok(line.rsplit(' ').next().unwrap_or_default().parse()?)
    }
}

/// Returns the lines of a metric.
fn of<'a>(lines: &'a [String], name: &str) -> impl Iterator<Item = &'a str> {
    lines
        .iter()
        .map(String::as_str)
        .filter(move |line| line.starts_with(name))
}

/// Waits until the pod of a job runs.
pub(crate) fn wait_for_pod(kubectl: &Kubectl, job: &str) -> Result<Value> {
    let label = format!("job-name={job}");
    wait_until("the pod of the job to run", SOON, || {
        let pods = kubectl.get(&["pods", "-l", &label])?;
        let pod = &pods["items"][0];
        ensure!(
            pod["status"]["phase"] == "Running",
            "its status: {}",
            pod["status"]
        );
        Ok(Some(pod.clone()))
    })
}

/// Shows the GPUs and the variables that the container got.
pub(crate) fn show_log(terminal: &Terminal, kubectl: &Kubectl) -> Result<()> {
    let log = wait_until("the log of the job", SOON, || {
        let log = kubectl.run(&["logs", "job/train"])?;
        Ok(log.contains("NVIDIA_").then_some(log))
    })?;
    terminal.command(&format!(
        "kubectl logs job/train --namespace {}",
        kubectl.namespace()
    ))?;
    terminal.output(&log)
}

/// Lets both jobs end, and waits until their GPUs are free.
pub(crate) fn end(terminal: &Terminal, cluster: &Cluster, jobs: &[Running; 2]) -> Result<()> {
    terminal.step("Both jobs end")?;
    terminal.say("Their training ends when a file exists:")?;
    for Running { kubectl, .. } in jobs {
        let namespace = kubectl.namespace();
        for command in [
            format!("kubectl exec job/train --namespace {namespace} -- touch /tmp/trained"),
            format!(
                "kubectl wait job/train --namespace {namespace} --for=condition=Complete --timeout=60s"
            ),
        ] {
            terminal.run(kubectl, &command)?;
        }
    }
    for job in jobs {
        let exporter = cluster.exporter(node(&job.pod))?;
        wait_until("the GPUs of the job to be free", SOON, || {
            Ok((!exporter.metrics()?.contains(&job.label())).then_some(()))
        })?;
    }
    let kubectl = cluster.control_plane.kubectl();
    terminal.command("kubectl get jobs --all-namespaces")?;
    terminal.output(&kubectl.run(&["get", "jobs", "--all-namespaces"])?)?;
    terminal.say("Their GPUs are free again, and the exporters report no series of them any more.")
}

/// Waits until the webhook has seen the class. A dry run shows it and creates nothing.
fn wait_for_webhook(kubectl: &Kubectl) -> Result<()> {
    let limits = json!({"nvidia.com/gpu": "2"});
    let container = json!({"name": "probe", "image": "probe", "resources": {"limits": limits}});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": {"containers": [container]},
    });
    wait_until("the webhook to see the class", SOON, || {
        let arguments = ["create", "--dry-run=server", "-f", "-", "-o", "yaml"];
        let shown = kubectl.run_with(&arguments, &pod.to_string())?;
        Ok(shown.contains(DECISION).then_some(()))
    })
}

pub(crate) fn node(pod: &Value) -> &str {
    pod["spec"]["nodeName"].as_str().unwrap_or_default()
}

pub(crate) fn show_node(terminal: &Terminal, pod: &Value) -> Result<()> {
    terminal.say(&format!("The scheduler chose node {}.", node(pod)))
}

fn show_decision(terminal: &Terminal, pod: &Value) -> Result<()> {
    let text = pod["metadata"]["annotations"][DECISION]
        .as_str()
        .context("the pod has no decision")?;
    let decision: Value = serde_json::from_str(text)?;
    let plain = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    let fields = decision.as_object().into_iter().flatten();
    let rows: Vec<String> = fields
        .map(|(key, value)| format!("{key:12} {}", plain(value)))
        .collect();
    terminal.output(&rows.join("\n"))
}

/// Returns the unified diff of two pods, without what differs between any two pods.
fn difference(kubectl: &Kubectl, without: &Value, with: &Value) -> Result<String> {
    let directory = workdir::fresh("diff")?;
    for (name, pod) in [("without", without), ("with", with)] {
        let arguments = ["create", "--dry-run=client", "-f", "-", "-o", "yaml"];
        let yaml = kubectl.run_with(&arguments, &essence(pod).to_string())?;
        // kubectl writes its own namespace, in which the pods never were.
        let own = |line: &&str| !line.starts_with("  namespace: ");
        let lines: Vec<&str> = yaml.lines().filter(own).collect();
        fs::write(directory.join(name), lines.join("\n") + "\n")?;
    }
    let mut diff = Command::new("diff");
    let output = diff
        .current_dir(&directory)
        .args(["--unified=2", "without", "with"])
        .output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn essence(pod: &Value) -> Value {
    let mut metadata = json!({"name": "train"});
    for map in ["labels", "annotations"] {
        let entries = pod["metadata"][map].as_object().into_iter().flatten();
        // The decision is shown later, in a more readable form.
        let ours =
            entries.filter(|(key, _)| key.starts_with("nvlink-domains.io/") && *key != DECISION);
        let ours: serde_json::Map<_, _> = ours
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if !ours.is_empty() {
            metadata[map] = Value::Object(ours);
        }
    }
    let mut spec = pod["spec"].clone();
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("nodeName");
        spec.remove("volumes"); // the token, under a name of its own in each pod
    }
    if let Some(container) = spec["containers"][0].as_object_mut() {
        container.remove("volumeMounts");
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

/// Compares the GPUs of the two jobs, as the exporters of their nodes judge them.
fn compare(terminal: &Terminal, jobs: &[Running; 2]) -> Result<()> {
    let title = ["", "NODE", "GPUS", "SLOWEST PATH"].map(str::to_owned);
    let mut rows = vec![title.to_vec()];
    for (title, job) in ["without the webhook", "with the webhook"].iter().zip(jobs) {
        rows.push(vec![
            (*title).to_owned(),
            node(&job.pod).to_owned(),
            job.gpus(),
            format!("{:.0} GB/s", job.slowest()? / 1e9),
        ]);
    }
    terminal.say("What the four GPUs of each job reach in an all-reduce, by nvlink_placement_bottleneck_bytes_per_second:")?;
    terminal.table(&rows)
}
