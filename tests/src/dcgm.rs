//! What NVIDIA's dcgm-exporter says of the GPUs of a node, of the metrics that the rules read.

use std::fmt::Write;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::programs;

/// Returns the UUIDs of the simulated GPUs of a node, by index.
///
/// # Errors
/// When the exporter does not print them.
pub fn uuids(profile: &str, node: &str) -> Result<Vec<String>> {
    let source = format!("sim:{profile}");
    let arguments = ["topology", "--source", &source, "--node-name", node];
    let arguments = [&arguments[..], &["--output", "json"]].concat();
    let document = programs::run(programs::EXPORTER, &arguments, "")?;
    let document: Value = serde_json::from_str(&document)?;
    let gpus = document["spec"]["gpus"].as_array();
    let gpus = gpus.context("the document has no GPUs")?;
    let uuid = |gpu: &Value| Some(gpu["uuid"].as_str()?.to_owned());
    gpus.iter()
        .map(|gpu| uuid(gpu).context("a GPU has no UUID"))
        .collect()
}

/// Returns a page of GPUs that are `active` for this share of the time, and send these bytes per second
/// over PCIe.
///
/// The labels are those of dcgm-exporter 4.4 (`internal/pkg/rendermetrics`, `gpuMetricsFormat`) with its
/// defaults and without Kubernetes; the metrics are in its `etc/dcp-metrics-included.csv`.
#[must_use]
pub fn dcgm(host: &str, uuids: &[String], active: f64, pcie: f64) -> String {
    let mut page = String::new();
    for (name, value) in [
        ("DCGM_FI_DEV_GPU_UTIL", 100.0 * active),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", active),
        ("DCGM_FI_PROF_PCIE_TX_BYTES", pcie),
    ] {
        // Writing to a string never fails.
        let _ = writeln!(page, "# TYPE {name} gauge");
        for (gpu, uuid) in uuids.iter().enumerate() {
            let _ = writeln!(
                page,
                r#"{name}{{gpu="{gpu}",UUID="{uuid}",pci_bus_id="00000000:{gpu:02X}:00.0",device="nvidia{gpu}",modelName="NVIDIA H100 80GB HBM3",Hostname="{host}",DCGM_FI_DRIVER_VERSION="580.95.05"}} {value}"#
            );
        }
    }
    page
}
