//! The nodes as Prometheus sees them.

use anyhow::Result;
use nvlink_tests::{Prometheus, Sample};

use crate::{
    job::Running,
    nodes::{Cluster, NODES, SOON},
    terminal::Terminal,
};

/// Nodes with NVLink: all but the L40S.
const JOINED: usize = NODES.len() - 1;

/// Column title, query with one sample per instance, unit.
const COLUMNS: [(&str, &str, f64); 4] = [
    (
        "NVLINK PAIRS",
        "count by (instance) (nvlink_peer_links) / 2",
        1.0,
    ),
    (
        "LARGEST DOMAIN",
        "max by (instance) (nvlink_domain_gpus)",
        1.0,
    ),
    (
        "GB/S PER PAIR",
        "min by (instance) (nvlink_peer_bandwidth_bytes_per_second)",
        1e9,
    ),
    (
        "SIMULATED GB/S",
        "sum by (instance) (rate(nvlink_gpu_transmit_bytes_total[5s]))",
        1e9,
    ),
];

/// Bytes per second that each pod sends over NVLink, as in docs/exporter.md.
const OF_A_POD: &str = "sum by (namespace, pod) (
    max by (instance, gpu, UUID, namespace, pod) (nvlink_allocation_info)
  * on (instance, gpu, UUID) group_left ()
    rate(nvlink_gpu_transmit_bytes_total[5s])
)";

pub(crate) fn show(terminal: &Terminal, cluster: &Cluster, job: &Running) -> Result<Prometheus> {
    terminal.step("The nodes as Prometheus sees them")?;
    let webhook = (cluster.webhook.replica.admin.as_str(), "webhook");
    let nodes = cluster.exporters.iter();
    let nodes = nodes.map(|(name, exporter)| (exporter.address.as_str(), *name));
    let targets: Vec<(&str, &str)> = nodes.chain([webhook]).collect();
    terminal.say("Waiting for two scrapes of each node, a few seconds.")?;
    let prometheus = Prometheus::start(&targets)?;
    let all = |samples: &[Sample]| samples.len() == NODES.len() + 1;
    prometheus.wait_for("up == 1", SOON, all)?;
    // A rate needs two scrapes of each node that has NVLink.
    let moving = "sum by (instance) (rate(nvlink_gpu_transmit_bytes_total[5s])) > 0";
    prometheus.wait_for(moving, SOON, |samples| samples.len() == JOINED)?;

    let mut rows = vec![vec!["NODE".to_owned()]];
    rows.extend(NODES.map(|(name, _)| vec![name.to_owned()]));
    for (title, query, unit) in COLUMNS {
        let samples = prometheus.query(query)?;
        rows[0].push(title.to_owned());
        for row in &mut rows[1..] {
            let here = samples
                .iter()
                .find(|sample| sample.labels.get("instance") == row.first());
            row.push(here.map_or_else(
                || "-".to_owned(),
                |sample| format!("{:.0}", sample.value / unit),
            ));
        }
    }
    terminal.table(&rows)?;
    terminal.say("A dash is an absent series, which is not the same as zero. The queries:")?;
    let queries: Vec<&str> = COLUMNS.iter().map(|(_, query, _)| *query).collect();
    terminal.output(&queries.join("\n"))?;
    show_jobs(terminal, &prometheus, job)?;
    Ok(prometheus)
}

/// Shows the bandwidth of all pods with GPUs, once that of the job that the webhook placed is known.
fn show_jobs(terminal: &Terminal, prometheus: &Prometheus, job: &Running) -> Result<()> {
    terminal.say("The bandwidth of each pod, from the counters of the GPUs that it holds:")?;
    let placed = |sample: &Sample| {
        sample
            .labels
            .get("pod")
            .is_some_and(|pod| pod == job.name())
    };
    let jobs = prometheus.wait_for(OF_A_POD, SOON, |samples| samples.iter().any(placed))?;
    let title = ["NAMESPACE", "POD", "GB/S OVER NVLINK"].map(str::to_owned);
    let mut rows = vec![title.to_vec()];
    for job in &jobs {
        let label = |name: &str| job.labels.get(name).cloned().unwrap_or_default();
        let rate = format!("{:.0}", job.value / 1e9);
        rows.push(vec![label("namespace"), label("pod"), rate]);
    }
    terminal.table(&rows)?;
    terminal.output(OF_A_POD)
}
