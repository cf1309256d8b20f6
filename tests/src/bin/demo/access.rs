//! A restricted class: a job is refused, the refusal names the commands that grant the right,
//! and with the grant the same job is placed.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nvlink_tests::{Kubectl, programs, wait_until};
use serde_json::json;

use crate::{
    alone::Files,
    job::{node, show_log, show_node, wait_for_pod},
    nodes::{Cluster, SOON},
    terminal::Terminal,
};

/// The job controller retries after 1, 2, 4 … seconds.
const RETRIES: Duration = Duration::from_secs(90);
/// The words before the commands in a refusal.
const REMEDY: &str = "To grant this right";

pub(crate) fn show(terminal: &Terminal, cluster: &Cluster, files: &Files) -> Result<()> {
    terminal.step("A restricted class")?;
    terminal.say("It has the nodes with NVSwitch, and requires the verb `use` on the class:")?;
    terminal.file(Files::RESTRICTED)?;
    let control_plane = &cluster.control_plane;
    let team = control_plane.namespace("team", &json!({}), &json!({}))?;
    control_plane.kubectl().apply(Files::RESTRICTED)?;
    terminal.command("kubectl apply -f high-throughput.yaml\n")?;

    terminal.say("The same job, which now names that class in an annotation on its pods:")?;
    let job = Files::job_of_class();
    terminal.file(&format!("spec:\n{}    spec: …", Files::NAMES_CLASS))?;
    lint(terminal, files, &job)?;

    terminal.say("The cluster decides the same. It creates the Job and refuses its pods:")?;
    terminal.command("kubectl create -f job.yaml --namespace team")?;
    terminal.output(&team.run_with(&["create", "-f", "-"], &job)?)?;
    let event = refusal(&team)?;
    let (why, _) = event.split_once('\n').unwrap_or((&event, ""));
    terminal
        .command("kubectl describe job train --namespace team        (its event FailedCreate)")?;
    terminal.output(&fold(why))?;
    grant(terminal, &team, &event)?;
    passes(terminal, &team)
}

/// Shows the refusal before the job is created, as a CI pipeline would get it.
fn lint(terminal: &Terminal, files: &Files, job: &str) -> Result<()> {
    terminal.say("A pipeline can check before it creates anything; a refusal is exit status 1:")?;
    let class = files.path("high-throughput.yaml");
    let arguments = ["--namespace", "team", "--output", "text", "-f", "-"];
    let arguments = [&["preview", "--cluster", &class], &arguments[..]].concat();
    terminal.command(
        "kubectl-nvlink preview -f job.yaml --cluster high-throughput.yaml --namespace team -o text",
    )?;
    let output = programs::output(programs::PLUGIN, &arguments, job)?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.code() == Some(1),
        "preview admitted the job: {said}"
    );
    let first = said.split(REMEDY).next().unwrap_or(&said);
    terminal.output(&format!("{} …", fold(first.trim_end())))
}

/// Waits for the event in which the job controller reports that its pods are refused.
fn refusal(team: &Kubectl) -> Result<String> {
    wait_until("the refusal", SOON, || {
        let events = team.get(&["events", "--field-selector", "reason=FailedCreate"])?;
        let items = events["items"].as_array().into_iter().flatten();
        let mut messages = items.filter_map(|event| event["message"].as_str());
        // Until the webhook has seen the class, it reports that the class does not exist.
        let remedy = messages.find(|message| message.contains(REMEDY));
        Ok(remedy.map(str::to_owned))
    })
}

/// Runs the commands of the refusal unchanged.
fn grant(terminal: &Terminal, team: &Kubectl, event: &str) -> Result<()> {
    let (_, remedy) = event
        .split_once(REMEDY)
        .context("the refusal names no commands")?;
    let commands = remedy.lines().skip(1);
    terminal
        .say("The refusal names the commands that grant the right. An administrator runs them:")?;
    for line in commands.filter(|line| !line.trim().is_empty()) {
        terminal.run(team, line)?;
    }
    Ok(())
}

fn passes(terminal: &Terminal, team: &Kubectl) -> Result<()> {
    terminal.say("That is all: the job controller retries by itself, and the pod is admitted.")?;
    wait_until("the job to pass", RETRIES, || {
        let pods = team.get(&["pods", "-l", "job-name=train"])?;
        Ok(Some(()).filter(|()| !node(&pods["items"][0]).is_empty()))
    })?;
    let pod = wait_for_pod(team, "train")?;
    terminal.command("kubectl get pods --namespace team -L nvlink-domains.io/class")?;
    let get = ["get", "pods", "-L", "nvlink-domains.io/class"];
    terminal.output(&team.run(&get)?)?;
    show_node(terminal, &pod)?;
    show_log(terminal, team)
}

/// Wraps long lines at spaces.
pub(crate) fn fold(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let mut current = String::new();
        for word in line.split(' ') {
            if current.chars().count() + word.chars().count() > 96 {
                lines.push(std::mem::take(&mut current));
            }
            if !current.is_empty() {
                current.push(' ');
            }
            current.push_str(word);
        }
        lines.push(current);
    }
    lines.join("\n")
}
