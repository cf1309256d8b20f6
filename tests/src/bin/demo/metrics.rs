//! The nodes as Prometheus sees them.

use std::time::Duration;

use anyhow::Result;
use nvlink_tests::Prometheus;

use crate::{
    nodes::{Cluster, NODES},
    terminal::Terminal,
};

const SOON: Duration = Duration::from_secs(60);

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
        "sum by (instance) (rate(nvlink_transmit_bytes_total[5s]))",
        1e9,
    ),
];

pub(crate) fn show(terminal: &Terminal, cluster: &Cluster) -> Result<Prometheus> {
    terminal.step("The nodes as Prometheus sees them")?;
    let targets: Vec<(&str, &str)> = cluster
        .exporters
        .iter()
        .map(|(name, exporter)| (exporter.address.as_str(), *name))
        .collect();
    terminal.say("Waiting for two scrapes of each node, a few seconds.")?;
    let prometheus = Prometheus::start(&targets)?;
    let all = |samples: &[nvlink_tests::Sample]| samples.len() == NODES.len();
    prometheus.wait_for("up == 1", SOON, all)?;
    // A rate needs two scrapes of each node that has NVLink.
    let moving = "sum by (instance) (rate(nvlink_transmit_bytes_total[5s])) > 0";
    prometheus.wait_for(moving, SOON, |samples| samples.len() == JOINED)?;

    let mut rows = vec![vec!["NODE".to_owned()]];
    rows.extend(NODES.map(|(name, ..)| vec![name.to_owned()]));
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
    Ok(prometheus)
}
