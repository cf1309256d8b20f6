//! The demo: from the graph of a GPU node to a job that runs inside an NVLink domain, on a real
//! control plane and real nodes with simulated GPUs.
//!
//! `demo observe` is another one: from a fault to the alert that somebody on call reads.
//! `KEEP=1` leaves everything running until Ctrl-C.

use std::{env, process::ExitCode};

use anyhow::{Context, Result};

mod access;
mod alone;
mod channels;
mod claims;
mod devices;
mod fault;
mod gitlab;
mod job;
mod metrics;
mod nics;
mod nodes;
mod observe;
mod queue;
mod terminal;

use nodes::Cluster;
use nvlink_tests::{Exporter, Lab, Prometheus, assets};
use terminal::Terminal;

fn main() -> ExitCode {
    let observe = env::args()
        .nth(1)
        .is_some_and(|argument| argument == "observe");
    let run = if observe { run_observe } else { run };
    match run(&Terminal::new()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nThe demo failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Reports whether everything shall keep running at the end.
fn keep() -> bool {
    env::var("KEEP").is_ok_and(|value| !["", "0"].contains(&&*value))
}

fn prepare() -> Result<()> {
    assets::build()?;
    assets::build_node()?;
    Lab::check()
}

fn run_observe(terminal: &Terminal) -> Result<()> {
    prepare()?;
    let site = observe::show(terminal)?;
    if keep() {
        terminal.step("Everything keeps running")?;
        site.show_addresses(terminal)?;
        terminal.say("Ctrl-C ends the demo and cleans up.")?;
        wait_for_interrupt()?;
    }
    drop(site);
    end(terminal)
}

fn end(terminal: &Terminal) -> Result<()> {
    terminal.step("Done")?;
    terminal.say("All programs have ended. What was built and downloaded is kept for the next time, in\ntarget and ~/.cache/nvlink-domains.")
}

fn run(terminal: &Terminal) -> Result<()> {
    let keep = keep();
    prepare()?;
    let files = alone::write_files()?;
    let page = alone::show_graph(terminal, keep)?;
    fault::show(terminal, &page)?;
    devices::show(terminal)?;
    alone::show_preview(terminal, &files)?;
    let cluster = nodes::start(terminal)?;
    let jobs = job::show(terminal, &cluster)?;
    let prometheus = metrics::show(terminal, &cluster, &jobs[1])?;
    job::end(terminal, &cluster, &jobs)?;
    queue::show(terminal, &cluster)?;
    if !assets::lacks("resource.k8s.io/v1", 34) {
        claims::show(terminal, &cluster)?;
        nics::show(terminal, &cluster)?;
        channels::show(terminal, &cluster)?;
    }
    access::show(terminal, &cluster, &files)?;
    gitlab::show(terminal, &cluster)?;
    if keep {
        show_addresses(terminal, &page, &cluster, &prometheus)?;
        wait_for_interrupt()?;
    }
    drop((page, prometheus, cluster));
    end(terminal)
}

fn show_addresses(
    terminal: &Terminal,
    page: &Exporter,
    cluster: &Cluster,
    prometheus: &Prometheus,
) -> Result<()> {
    terminal.step("Everything keeps running")?;
    let row = |what: &str, value: String| vec![what.to_owned(), value];
    let mut rows = vec![
        row("WHAT", "WHERE".to_owned()),
        row("page of the exporter of step 1", page.url("/")),
    ];
    let nodes = cluster.exporters.iter();
    rows.extend(
        nodes.map(|(name, exporter)| row(&format!("page of node {name}"), exporter.url("/"))),
    );
    rows.push(row("page of the cluster", cluster.page.clone()));
    rows.push(row("Prometheus", prometheus.url.clone()));
    rows.push(row(
        "metrics of the webhook",
        format!("http://{}/metrics", cluster.webhook.replica.admin),
    ));
    rows.push(row(
        "webhook, for the API server",
        cluster.webhook.url.clone(),
    ));
    let kubeconfig = cluster.control_plane.kubeconfig().display();
    let plugin = cluster.plugin.display();
    terminal.table(&rows)?;
    terminal.say("The page of node dgx shows the last job, which holds its GPUs until a file exists. To use the\ncluster, as root in another terminal:")?;
    let kubectl = assets::path("kubectl")?;
    terminal.output(&format!(
        "export KUBECONFIG={kubeconfig} PATH={plugin}:$PATH\nalias kubectl={}\n\
         kubectl get nodes,nodetopologies,domainclasses\nkubectl nvlink status\n\
         kubectl exec job/train --namespace team -- touch /tmp/trained # the job ends",
        kubectl.display()
    ))?;
    show_processes(terminal, cluster)?;
    terminal.say("Ctrl-C ends the demo and cleans up.")
}

/// Says how to stop one part, to see what the others do without it.
fn show_processes(terminal: &Terminal, cluster: &Cluster) -> Result<()> {
    terminal.say("To stop one part, and see what the others do without it:")?;
    let nodes = cluster.exporters.iter();
    let exporters = nodes.map(|(name, exporter)| {
        let id = exporter.process.id();
        format!("kill {id} # the exporter of node {name}")
    });
    let webhook = cluster.webhook.replica.process.id();
    let webhook = format!("kill {webhook} # the webhook");
    let commands: Vec<_> = exporters.chain([webhook]).collect();
    terminal.output(&commands.join("\n"))
}

fn wait_for_interrupt() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime
        .block_on(tokio::signal::ctrl_c())
        .context("cannot wait for Ctrl-C")
}
