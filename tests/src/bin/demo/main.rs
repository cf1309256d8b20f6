//! The demo: the whole path from a GPU node's graph to a job that runs inside
//! an NVLink domain, on simulated nodes and a real control plane.
//!
//! `KEEP=1` leaves everything running until Ctrl-C.

use std::{env, process::ExitCode};

use anyhow::{Context, Result};

mod alone;
mod cluster;
mod job;
mod metrics;
mod terminal;

use terminal::Terminal;

fn main() -> ExitCode {
    match run(&Terminal::new()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nThe demo failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(terminal: &Terminal) -> Result<()> {
    let keep = env::var("KEEP").is_ok_and(|value| !["", "0"].contains(&&*value));
    let files = alone::write_files()?;
    let page = alone::show_graph(terminal, keep)?;
    alone::show_preview(terminal, &files)?;
    let cluster = cluster::start(terminal)?;
    job::show(terminal, &cluster)?;
    let prometheus = metrics::show(terminal, &cluster)?;
    if keep {
        terminal.step("Everything keeps running")?;
        terminal.say(&format!(
            "Page with the graph   {}\nPrometheus            {}\nkubectl               export KUBECONFIG={}\n                      {}",
            page.url("/"),
            prometheus.url,
            cluster.control_plane.kubeconfig().display(),
            nvlink_tests::assets::path("kubectl")?.display(),
        ))?;
        terminal.say("Ctrl-C ends it and cleans up.")?;
        wait_for_interrupt()?;
    }
    drop((page, prometheus, cluster));
    terminal.step("Done")?;
    terminal.say("Everything that was started has ended, and nothing is left behind.")
}

fn wait_for_interrupt() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime
        .block_on(tokio::signal::ctrl_c())
        .context("cannot wait for Ctrl-C")
}
