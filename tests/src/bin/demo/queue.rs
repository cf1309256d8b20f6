//! The queue: all GPUs are held, a job waits with a position and an expected start, and starts in
//! the domain where GPUs come free.

use std::{os::unix::fs::symlink, path::PathBuf};

use anyhow::{Context, Result, ensure};
use nvlink_tests::{Kubectl, http, programs, wait_until, workdir};
use serde_json::{Value, json};

use crate::{
    alone::Files,
    job::{node, wait_for_pod},
    nodes::{Cluster, SOON},
    terminal::Terminal,
};

const QUEUES: &str = r#"kubectl patch domainclass one-domain --type=merge \
     -p '{"spec": {"placement": {"whenUnavailable": "Queue", "queueTimeout": "2h"}}}'"#;
const CONDITION: &str = "nvlink-domains.io/Queued";

/// A job of one pod, and how long its author expects it to take.
struct Job {
    name: &'static str,
    gpus: u32,
    scope: &'static str,
    takes: &'static str,
}

const fn job(name: &'static str, gpus: u32, scope: &'static str, takes: &'static str) -> Job {
    Job {
        name,
        gpus,
        scope,
        takes,
    }
}

/// They take all GPUs that the notebooks leave: in this order, each fits on one node only.
const NIGHT: [Job; 4] = [
    job("large", 7, "nvlink-domain", "20m"),
    job("render", 8, "node", "2h"),
    job("sweep", 7, "node", "2h"),
    job("small", 3, "nvlink-domain", "1h"),
];
/// Pods of the same second are of the same age, and then wait in the order of their names.
const WAITING: [Job; 2] = [
    job("evaluate", 4, "nvlink-domain", "10m"),
    job("probe", 2, "nvlink-domain", "5m"),
];

/// Returns a directory with kubectl's plugin and nothing else.
pub(crate) fn plugin() -> Result<PathBuf> {
    let directory = workdir::fresh("plugin")?;
    symlink(
        programs::path(programs::PLUGIN)?,
        directory.join("kubectl-nvlink"),
    )?;
    Ok(directory)
}

pub(crate) fn show(terminal: &Terminal, cluster: &Cluster) -> Result<()> {
    let control_plane = &cluster.control_plane;
    terminal.step("A full cluster, and a job that waits")?;
    terminal.say("So far, a job starts on any node of its class with enough free GPUs, or it is Pending. From\nnow on, jobs of the class wait in a queue until a domain is free:")?;
    terminal.run(control_plane.kubectl(), QUEUES)?;
    let night = control_plane.namespace("night", &json!({}), &json!({}))?;
    wait_for_class(&night, &json!({}))?;
    fill(terminal, &night)?;
    let ci = control_plane.namespace("ci", &json!({}), &json!({}))?;
    let ci = ci.with_plugins(&cluster.plugin);
    let pod = wait_in_line(terminal, &ci)?;
    show_page(terminal, &cluster.page, &pod)?;

    terminal.step("The job starts where GPUs come free")?;
    release(terminal, &night, &ci, &pod)?;
    for namespace in [&night, &ci] {
        end_all(namespace)?;
    }
    terminal.say("All these jobs end now.")
}

impl Job {
    /// Returns the manifest: that of the job of the earlier steps, changed.
    fn manifest(&self) -> String {
        let annotations = format!("  template:\n{}", self.annotations());
        Files::JOB
            .replace(
                "metadata:\n  name: train",
                &format!("metadata:\n  name: {}", self.name),
            )
            .replace("  template:\n", &annotations)
            .replace(
                "--nproc-per-node=4",
                &format!("--nproc-per-node={}", self.gpus),
            )
            .replace("gpu: \"4\"", &format!("gpu: \"{}\"", self.gpus))
    }

    fn annotations(&self) -> String {
        let scope = match self.scope {
            // That of the class.
            "nvlink-domain" => String::new(),
            scope => format!("        nvlink-domains.io/scope: {scope}\n"),
        };
        format!(
            "    metadata:\n      annotations:\n        nvlink-domains.io/expected-duration: {}\n{scope}",
            self.takes
        )
    }
}

/// Waits until the webhook knows that the class of pods with these annotations queues. A dry run
/// shows it and creates nothing.
pub(crate) fn wait_for_class(kubectl: &Kubectl, annotations: &Value) -> Result<()> {
    let limits = json!({"nvidia.com/gpu": "2"});
    let container = json!({"name": "probe", "image": "probe", "resources": {"limits": limits}});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "probe", "annotations": annotations},
        "spec": {"containers": [container]},
    });
    wait_until("the class to queue", SOON, || {
        let arguments = ["create", "--dry-run=server", "-f", "-", "-o", "json"];
        let shown: Value = serde_json::from_str(&kubectl.run_with(&arguments, &pod.to_string())?)?;
        Ok(shown["spec"]["schedulingGates"].is_array().then_some(()))
    })
}

/// Fills the cluster.
fn fill(terminal: &Terminal, night: &Kubectl) -> Result<()> {
    terminal.say("Jobs of the night take all GPUs that the notebooks leave. They say in an annotation how long\nthey expect to run:")?;
    for job in &NIGHT {
        night.run_with(&["create", "-f", "-"], &job.manifest())?;
        wait_until("a job to be placed", SOON, || {
            let pod = pod_of(night, job.name)?;
            ensure!(!node(&pod).is_empty(), "its pod: {pod:#}");
            Ok(Some(()))
        })?;
    }
    let wait = ["wait", "pods", "--all", "--for=condition=Ready"];
    night.run(&[&wait[..], &["--timeout=60s"]].concat())?;
    let columns = "JOB:.metadata.labels.job-name,\
        GPUS:.spec.containers[0].resources.limits.nvidia\\.com/gpu,\
        TAKES:.metadata.annotations.nvlink-domains\\.io/expected-duration,\
        STATUS:.status.phase,NODE:.spec.nodeName";
    show_pods(terminal, night, columns)
}

/// Creates the jobs that wait, shows what their authors see, and returns the first one's pod.
fn wait_in_line(terminal: &Terminal, ci: &Kubectl) -> Result<String> {
    let [first, second] = &WAITING;
    terminal.say("Somebody creates the same job of four GPUs as before, which takes ten minutes, and then one of\ntwo GPUs:")?;
    terminal.file(&format!("spec:\n{}", first_lines(first)))?;
    for (job, position) in [(first, "1"), (second, "2")] {
        terminal.command(&format!(
            "kubectl create -f {}.yaml --namespace ci",
            job.name
        ))?;
        terminal.output(&ci.run_with(&["create", "-f", "-"], &job.manifest())?)?;
        wait_until("the pod to show when it starts", SOON, || {
            let pod = pod_of(ci, job.name)?;
            let shown = |name: &str| {
                pod["metadata"]["annotations"][format!("nvlink-domains.io/queue-{name}")].as_str()
            };
            ensure!(shown("eta").is_some(), "its pod: {pod:#}");
            Ok((shown("position") == Some(position)).then_some(()))
        })?;
    }
    terminal.run(ci, "kubectl get pods --namespace ci")?;
    terminal.say("Both wait. The program kubectl-nvlink is a plugin of kubectl, which says why, and until when:")?;
    let pod = pod_of(ci, first.name)?;
    let pod = pod["metadata"]["name"].as_str().context("no pod")?;
    terminal.run(ci, &format!("kubectl nvlink explain {pod} --namespace ci"))?;
    terminal.run(ci, "kubectl nvlink status --namespace ci")?;
    Ok(pod.to_owned())
}

/// Says where the page of the cluster is, once it shows the job that waits.
fn show_page(terminal: &Terminal, page: &str, pod: &str) -> Result<()> {
    let job = format!("<b>ci/{pod}</b>");
    wait_until("the page of the cluster to show the job", SOON, || {
        Ok(http::text(page)?.contains(&job).then_some(()))
    })?;
    terminal.say(&format!(
        "The page of the cluster shows all nodes, what holds their GPUs, and both jobs with position,\n\
         expected start and reason: {page}"
    ))
}

/// Returns the lines of the manifest that say how long the job takes.
fn first_lines(job: &Job) -> String {
    format!("  template:\n{}    spec: …", job.annotations())
}

/// Ends the job that holds the large domain, and shows where the waiting jobs start.
fn release(terminal: &Terminal, night: &Kubectl, ci: &Kubectl, pod: &str) -> Result<()> {
    let large = NIGHT[0].name;
    terminal.say("The job on node dgx ends earlier than expected:")?;
    terminal.run(
        night,
        &format!("kubectl exec job/{large} --namespace night -- touch /tmp/trained"),
    )?;
    for job in &WAITING {
        let placed = wait_for_pod(ci, job.name)?;
        ensure!(
            node(&placed) == "dgx",
            "{} is on node {}",
            job.name,
            node(&placed)
        );
        wait_until("the pod to show where it was released to", SOON, || {
            let pod = pod_of(ci, job.name)?;
            let conditions = pod["status"]["conditions"].as_array();
            let mut ours = conditions
                .into_iter()
                .flatten()
                .filter(|one| one["type"] == CONDITION);
            Ok(ours.any(|one| one["status"] == "False").then_some(()))
        })?;
    }
    let columns = format!(
        "NAME:.metadata.name,STATUS:.status.phase,NODE:.spec.nodeName,\
         QUEUED:.status.conditions[?(@.type==\"{CONDITION}\")].message"
    );
    show_pods(terminal, ci, &columns)?;
    terminal.run(ci, &format!("kubectl nvlink explain {pod} --namespace ci"))?;
    terminal.say("Neither job was placed across a slow path. The queue chose the node; which of its GPUs a container\ngets is up to the device plugin here.")
}

fn show_pods(terminal: &Terminal, kubectl: &Kubectl, columns: &str) -> Result<()> {
    let namespace = kubectl.namespace();
    terminal.command(&format!(
        "kubectl get pods --namespace {namespace} -o custom-columns=…"
    ))?;
    let columns = format!("custom-columns={columns}");
    terminal.output(&kubectl.run(&["get", "pods", "-o", &columns])?)
}

/// Returns the pod of a job; `null` while there is none.
fn pod_of(kubectl: &Kubectl, job: &str) -> Result<Value> {
    let label = format!("job-name={job}");
    let mut pods = kubectl.get(&["pods", "-l", &label])?;
    let first = pods.pointer_mut("/items/0");
    Ok(first.map(Value::take).unwrap_or_default())
}

/// Lets all jobs of a namespace end.
pub(crate) fn end_all(kubectl: &Kubectl) -> Result<()> {
    let pods = kubectl.get(&["pods", "--field-selector", "status.phase=Running"])?;
    for pod in pods["items"].as_array().into_iter().flatten() {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        kubectl.run(&["exec", name, "--", "touch", "/tmp/trained"])?;
    }
    let wait = ["wait", "jobs", "--all", "--for=condition=Complete"];
    kubectl
        .run(&[&wait[..], &["--timeout=60s"]].concat())
        .map(drop)
}
