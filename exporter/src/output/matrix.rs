//! The layout of `nvidia-smi topo -m`, identical up to the tabs, without its escape sequences.

use nvlink_source::{
    Reading,
    topo_matrix::{self, GpuRow, Matrix, Relation},
};

/// The legend, as `nvidia-smi` prints it.
const LEGEND: &str = "
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
";

/// Renders a reading. NICs are shown where the source reports their relations.
/// A recording keeps only the GPUs nearest to each NIC, so its NICs are left out.
#[must_use]
pub fn render(reading: &Reading) -> String {
    match &reading.matrix {
        Some(matrix) => text(matrix),
        None => text(&topo_matrix::of_document(&reading.topology.spec)),
    }
}

/// Renders a matrix.
#[must_use]
pub fn text(matrix: &Matrix) -> String {
    let gpus = matrix.gpus.iter().map(|gpu| format!("GPU{}", gpu.index));
    let nics = matrix.nics.iter().map(|nic| nic.title.clone());
    let titles = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"].map(str::to_owned);
    let header: Vec<_> = gpus.chain(nics).chain(titles).collect();
    let mut out = format!("\t{}\n", header.join("\t"));
    for gpu in &matrix.gpus {
        out += &format!(
            "GPU{}\t{}\t{}\n",
            gpu.index,
            cells(gpu.to_gpus.iter().chain(&gpu.to_nics)),
            tail(gpu)
        );
    }
    for (n, nic) in matrix.nics.iter().enumerate() {
        if nic.to_nics.is_empty() {
            continue;
        }
        let to_gpus = matrix.gpus.iter().filter_map(|gpu| gpu.to_nics.get(n));
        out += &format!(
            "{}\t{}\t\t\t\t\n",
            nic.title,
            cells(to_gpus.chain(&nic.to_nics))
        );
    }
    out += LEGEND;
    if matrix.nics.iter().any(|nic| nic.name != nic.title) {
        out += "\nNIC Legend:\n\n";
        for nic in &matrix.nics {
            out += &format!("  {}: {}\n", nic.title, nic.name);
        }
    }
    out
}

fn cells<'a>(relations: impl Iterator<Item = &'a Relation>) -> String {
    let cell = |relation: &Relation| match relation {
        Relation::Own => " X ".to_owned(),
        relation => relation.to_string(),
    };
    relations.map(cell).collect::<Vec<_>>().join("\t")
}

/// Returns the last columns. `nvidia-smi` prints two tabs before the very last one.
fn tail(gpu: &GpuRow) -> String {
    let numa = if gpu.numa_affinity.is_empty() {
        "N/A"
    } else {
        &gpu.numa_affinity
    };
    format!("{}\t{numa}\t\tN/A", gpu.cpu_affinity)
}
