//! What people see of a long queue, and what it costs the API server to show it: the page,
//! `kubectl nvlink status`, and the writes of the leader in a minute in which nothing happens.

use std::{
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use nvlink_tests::{
    http,
    programs::{self, PLUGIN},
};

use crate::cluster::Cluster;

const MINUTE: Duration = Duration::from_secs(60);
/// The time between two looks at the memory of a process.
const LOOK: Duration = Duration::from_millis(20);

/// Prints what it costs to show `count` more pods that wait.
pub(crate) fn measure(cluster: &Cluster, count: usize) -> Result<()> {
    let written = || cluster.metric("nvlink_webhook_queue_writes_total");
    let before = written()?;
    thread::sleep(MINUTE);
    let writes = written()? - before;
    println!("{count} more jobs wait: the leader writes {writes} pods in a minute (at most 6000)");
    let start = Instant::now();
    let page = http::text(&format!("http://{}/", cluster.page))?;
    let took = start.elapsed();
    println!(
        "{count} more jobs wait: the page of the cluster takes {took:.1?}, {} KiB",
        page.len() / 1024
    );
    for output in ["table", "json"] {
        status(cluster, count, output)?;
    }
    Ok(())
}

/// Runs `kubectl nvlink status` for all namespaces.
fn status(cluster: &Cluster, count: usize, output: &str) -> Result<()> {
    let start = Instant::now();
    let mut status = Command::new(programs::path(PLUGIN)?);
    status.args(["status", "-A", "--output", output]);
    status.env("KUBECONFIG", cluster.plane.kubeconfig());
    let mut status = status.stdout(Stdio::piped()).spawn()?;
    let process = status.id();
    let mut out = status.stdout.take().context("no output")?;
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut out, &mut bytes).map(|_| bytes)
    });
    let mut most = 0.0;
    let ended = loop {
        if let Some(ended) = status.try_wait()? {
            break ended;
        }
        most = crate::cluster::memory(process).map_or(most, |[_, peak]| peak.max(most));
        thread::sleep(LOOK);
    };
    let took = start.elapsed();
    ensure!(ended.success(), "kubectl nvlink status: {ended}");
    let bytes = reader.join().map_err(|_| anyhow::anyhow!("no output"))??;
    println!(
        "{count} more jobs wait: kubectl nvlink status -A --output {output} takes {took:.1?} and {most:.0} MiB, and prints {} KiB",
        bytes.len() / 1024
    );
    Ok(())
}
