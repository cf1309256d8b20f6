//! The same job twice: without the webhook, and with it.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context, Result};
use nvlink_tests::{Kubectl, programs, wait_until, workdir};
use serde_json::{Value, json};

use crate::{
    alone::Files,
    nodes::{Cluster, NODES},
    terminal::Terminal,
};

pub(crate) const SOON: Duration = Duration::from_secs(60);
const DECISION: &str = "nvlink-domains.io/decision";

pub(crate) fn show(terminal: &Terminal, cluster: &Cluster) -> Result<()> {
    let control_plane = &cluster.control_plane;
    terminal.step("The job without the webhook")?;
    let before = control_plane.namespace("without", &json!({}), &json!({}))?;
    let without = create(terminal, &before)?;
    show_node(terminal, &without)?;
    terminal.say(
        "It prefers the emptiest node and knows nothing about NVLink: this node has the most CPUs.",
    )?;
    // Release its GPUs for the second run.
    before.run(&[
        "delete",
        "job",
        "train",
        "--cascade=foreground",
        "--wait=false",
    ])?;
    before.run(&["delete", "pods", "--all", "--force", "--grace-period=0"])?;

    terminal.step("The same job with the webhook")?;
    cluster.webhook.register(control_plane.kubectl())?;
    terminal
        .command("nvlink-webhook registration --url … --ca-file ca.pem | kubectl apply -f -")?;
    control_plane.kubectl().apply(Files::CLASS)?;
    terminal.command("kubectl apply -f class.yaml\n")?;
    let after = control_plane.namespace("with", &json!({}), &json!({}))?;
    wait_for_webhook(&after)?;
    let with = create(terminal, &after)?;
    cluster.allocate(&with, 4)?;
    terminal.say("What changed in the pod of the job:")?;
    terminal.diff(&difference(control_plane.kubectl(), &without, &with)?)?;
    terminal.say(&format!("The reasons, in the pod's annotation {DECISION}:"))?;
    show_decision(terminal, &with)?;
    show_node(terminal, &with)?;
    terminal.step("How much faster that is")?;
    compare(terminal, &without, &with)
}

/// Creates the job and waits until its pod has a node.
fn create(terminal: &Terminal, kubectl: &Kubectl) -> Result<Value> {
    terminal.command(&format!(
        "kubectl create -f job.yaml --namespace {}",
        kubectl.namespace()
    ))?;
    terminal.output(&kubectl.run_with(&["create", "-f", "-"], Files::JOB)?)?;
    wait_until("the scheduler to choose a node", SOON, || {
        let pods = kubectl.get(&["pods", "-l", "job-name=train"])?;
        Ok(Some(pods["items"][0].clone()).filter(|pod| pod["spec"]["nodeName"].is_string()))
    })
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

fn profile(node: &str) -> &'static str {
    NODES
        .iter()
        .find(|(name, ..)| *name == node)
        .map_or("unknown", |(_, profile, ..)| profile)
}

pub(crate) fn show_node(terminal: &Terminal, pod: &Value) -> Result<()> {
    terminal.say(&format!(
        "The scheduler chose node {} ({}).",
        node(pod),
        profile(node(pod))
    ))
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
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

/// Compares the best four GPUs of the two nodes, according to `nvlink-exporter place`.
fn compare(terminal: &Terminal, without: &Value, with: &Value) -> Result<()> {
    let mut rows = vec![
        ["", "NODE", "BEST FOUR GPUS", "SLOWEST PATH"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for (title, pod) in [("without the webhook", without), ("with the webhook", with)] {
        let source = format!("sim:{}", profile(node(pod)));
        let arguments = [
            "place", "--gpus", "4", "--source", &source, "--output", "json",
        ];
        let placement: Value =
            serde_json::from_str(&programs::run(programs::EXPORTER, &arguments, "")?)?;
        let bottleneck = placement["bottleneckBytesPerSecond"]
            .as_f64()
            .unwrap_or_default()
            / 1e9;
        rows.push(vec![
            title.to_owned(),
            node(pod).to_owned(),
            placement["gpus"].to_string(),
            format!("{bottleneck:.0} GB/s"),
        ]);
    }
    terminal.say("The best that four GPUs of each node can reach in an all-reduce:")?;
    terminal.command("nvlink-exporter place --gpus 4 --source …")?;
    terminal.table(&rows)
}
