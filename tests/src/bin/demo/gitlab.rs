//! Jobs of GitLab: one is placed, one waits and says so in its log, one is refused.

use std::{collections::HashSet, path::PathBuf};

use anyhow::{Result, ensure};
use nvlink_tests::{GitlabJob, JobEnd, wait_until};
use serde_json::{Value, json};

use crate::{
    access::fold,
    nodes::{Cluster, SOON},
    terminal::Terminal,
};

const CLASS: &str = include_str!("ci-class.yaml");
const RUNNER: &str = "system:serviceaccount:gitlab:runner";
/// As many as the job of the step before leaves in the domain.
const GPUS: &str = "3";

pub(crate) fn show(terminal: &Terminal, cluster: &Cluster) -> Result<()> {
    terminal.step("Jobs of GitLab")?;
    terminal.say("A class for the jobs of project 42, which wait for their GPUs:")?;
    terminal.file(CLASS)?;
    let kubeconfig = install(cluster)?;
    terminal.command("kubectl apply -f ci-training.yaml")?;
    terminal.say("A double of GitLab Runner's executor runs three jobs. It does in the cluster what the runner does,\nand prints the log of the job. The first job takes the GPUs that are free in\nthe domain:")?;
    let start = |id: u64, project: u64, script: &str| {
        GitlabJob::start(&kubeconfig, &job(id, project, script))
    };
    let first = started(&start)?;
    terminal.output(&shown(&first.log()))?;
    terminal.say("The second one waits, and its log says why:")?;
    let second = start(2, 42, "echo trained, too")?;
    second.wait_for("position 1 of class ci-training", SOON)?;
    terminal.output(&shown(&second.log()))?;
    terminal.say("The third one is of project 43, which the class does not list. Its log says who can change that,\nand how:")?;
    let third = start(3, 43, "true")?;
    let end = third.end(SOON)?;
    ensure!(end == JobEnd::SystemFailure, "{}", third.log());
    terminal.output(&shown(&third.log()))?;
    terminal.say("When the first job has ended, the second one starts:")?;
    for job in [&first, &second] {
        ensure!(job.end(SOON)? == JobEnd::Succeeded, "{}", job.log());
    }
    let log = second.log();
    let ran = log.split_once("Executing").map_or("", |(_, rest)| rest);
    terminal.output(&shown(&format!("Executing{ran}")))
}

/// Creates the class, and the runner with its rights. Returns its access to the cluster.
fn install(cluster: &Cluster) -> Result<PathBuf> {
    let control_plane = &cluster.control_plane;
    let gitlab = control_plane.namespace("gitlab", &json!({}), &json!({}))?;
    let role =
        "kubectl create role runner --verb=create,delete,get,list --resource=pods,pods/exec,events";
    let bind = "kubectl create rolebinding runner --role=runner --serviceaccount=gitlab:runner";
    for command in ["kubectl create serviceaccount runner", role, bind] {
        let output = gitlab.shell(&format!("{command} --namespace gitlab"))?;
        ensure!(output.status.success(), "{command}: {output:?}");
    }
    control_plane.kubectl().apply(CLASS)?;
    control_plane.kubeconfig_for(RUNNER)
}

/// Starts the first job, and waits until its script runs: until the webhook knows the class, it refuses.
fn started(start: &impl Fn(u64, u64, &str) -> Result<GitlabJob>) -> Result<GitlabJob> {
    const SCRIPT: &str = "env | grep NVIDIA_VISIBLE_DEVICES; echo trained; sleep 15";
    wait_until("the first job to run", SOON, || {
        let job = start(1, 42, SCRIPT)?;
        job.wait_for("trained", SOON).map(|()| Some(job))
    })
}

fn job(id: u64, project: u64, script: &str) -> Value {
    let limits = json!({"containers": [{"name": "build", "resources": {"limits": {"nvidia.com/gpu": GPUS}}}]});
    json!({
        "id": id, "name": "train", "project_id": project, "project_name": "vision", "script": script,
        "runner": {
            "name": "gpu", "namespace": "gitlab", "poll_interval": 1,
            "pod_termination_grace_period_seconds": 0, "pod_spec": [limits],
            "pod_annotations": {"nvlink-domains.io/class": "ci-training"},
        },
    })
}

/// Returns a log without what it repeats, and with the rest of its long lines below them.
fn shown(log: &str) -> String {
    let mut seen = HashSet::new();
    let lines = log.lines().filter(|line| seen.insert(*line));
    fold(&lines.collect::<Vec<_>>().join("\n"))
}
