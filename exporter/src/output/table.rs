//! The topology as tables for a terminal.

use nvlink_runtime::columns::{clean, columns};
use nvlink_source::topo_matrix;
use nvlink_topology::{
    Fault, Gpu, NodeTopology, NodeTopologySpec, SourceKind, labels, own_missing_links,
    shared_missing_links,
};

use super::{nic_rate, ranges, summary};

/// Maximum number of columns: a wider matrix does not fit a terminal.
const MOST_COLUMNS: usize = 16;

/// Renders `node`; headings are bold where `color` is set.
#[must_use]
pub fn render(node: &NodeTopology, color: bool) -> String {
    let spec = &node.spec;
    let bold = |text: &str| match color {
        true => format!("\x1b[1m{text}\x1b[0m"),
        false => text.to_owned(),
    };
    let source = format!("{}:{}", spec.source.kind.as_str(), spec.source.from);
    let mut out = format!(
        "{}  {}, {}, from {}\n",
        bold(&clean(&node.metadata.name)),
        clean(&summary::models(&spec.gpus)),
        summary::interconnect(spec),
        clean(source.trim_end_matches(':'))
    );
    if let Some(measured) = summary::measured(spec) {
        out += &format!("bandwidths measured: {measured}\n");
    }
    out += &format!("\n{}\n", bold("GPUs"));
    out += &columns(&gpus(node));
    out += &format!("\n{}\n", bold("NVLink domains"));
    out += &domains(node);
    let labels = node_labels(node);
    if !labels.is_empty() {
        out += &format!("\n{}\n", bold("Node labels"));
        out += &columns(&labels);
    }
    if !spec.nics.is_empty() {
        out += &format!("\n{}\n", bold("NICs"));
        out += &columns(&nics(spec));
    }
    if spec.gpus.len() > 1 {
        out += &format!("\n{}\n", bold("Between GPUs"));
        out += &matrix(spec);
    }
    out
}

/// Returns the labels that `--publish` writes, for the author of a class.
fn node_labels(node: &NodeTopology) -> Vec<Vec<String>> {
    let spec = &node.spec;
    let assumed = spec
        .domains
        .iter()
        .any(|one| summary::is_assumed(spec, one));
    let row = |(name, value): (&str, String)| {
        let remark = match name {
            labels::BANDWIDTH if assumed => {
                "GB/s per GPU if a link has 25 GB/s; the model is unknown, and real nodes may publish another value"
            }
            labels::BANDWIDTH => "GB/s per GPU; the minBandwidth of a class must not exceed it",
            _ => "",
        };
        vec![format!("{name}={value}"), remark.to_owned()]
    };
    labels::node_labels(node).into_iter().map(row).collect()
}

fn gpus(node: &NodeTopology) -> Vec<Vec<String>> {
    let spec = &node.spec;
    let titles = [
        "GPU",
        "NUMA",
        "DOMAIN",
        "LINKS",
        "NICS",
        "PCI ADDRESS",
        "MODEL",
        "",
    ];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    let dash = |value: Option<String>| {
        value
            .filter(|value| !value.is_empty())
            .unwrap_or("-".into())
    };
    for (gpu, missing) in spec.gpus.iter().zip(own_missing_links(spec)) {
        let domain = spec.domain_of(gpu.index);
        rows.push(vec![
            gpu.index.to_string(),
            dash(gpu.numa_node.map(|numa| numa.to_string())),
            dash(domain.map(|domain| domain.id.clone())),
            dash(summary::links_up(gpu)),
            dash(Some(summary::nics(spec, gpu.index).join(","))),
            dash(gpu.pci_bus_id.clone()),
            dash(gpu.model.clone()),
            remarks(gpu, missing, node),
        ]);
    }
    rows
}

/// Returns what is unusual about the GPU, which lacks so many links of its own, and which pods hold it.
fn remarks(gpu: &Gpu, missing: Option<u64>, node: &NodeTopology) -> String {
    let mut remarks = Vec::new();
    if gpu.mig_enabled {
        remarks.push("MIG".to_owned());
    }
    if missing > Some(0) {
        remarks.push("links missing".to_owned());
    }
    let others = gpu.faults.iter().filter(|one| **one != Fault::MissingLinks);
    let others: Vec<_> = others.map(ToString::to_string).collect();
    if !others.is_empty() {
        remarks.push(format!("broken: {}", clean(&others.join(", "))));
    }
    let allocations = node.status.iter().flat_map(|status| &status.allocations);
    for held in allocations.filter(|one| one.gpus.contains(&gpu.index)) {
        remarks.push(format!("held by {}/{}", held.namespace, held.pod));
    }
    remarks.join(", ")
}

fn domains(node: &NodeTopology) -> String {
    let spec = &node.spec;
    if spec.domains.is_empty() {
        let none = match (spec.knows_nvlink(), spec.source.kind) {
            (true, _) => "none: these GPUs have no NVLink between them\n",
            (false, SourceKind::Sysfs) => "unknown: sysfs does not show NVLink\n",
            (false, SourceKind::Nvml) => "unknown: the driver does not show the links\n",
            (false, _) => "unknown: the file does not show the links\n",
        };
        return none.to_owned();
    }
    let line = |domain: &nvlink_topology::Domain| {
        let fabric = domain.fabric.as_ref().map_or("", |_| "; spans nodes");
        let joined = summary::joined(spec, domain);
        let gpus = ranges(&domain.gpus);
        let missing = shared_missing_links(domain, spec);
        let missing = (missing > 0).then(|| summary::each_lacks(missing));
        let missing = missing.map_or(String::new(), |words| format!("; {words}"));
        vec![
            domain.id.clone(),
            format!("GPUs {gpus}"),
            format!("{joined}{fabric}{missing}"),
        ]
    };
    let mut rows: Vec<_> = spec.domains.iter().map(line).collect();
    let alone: Vec<u32> = spec
        .gpus
        .iter()
        .map(|gpu| gpu.index)
        .filter(|&gpu| spec.domain_of(gpu).is_none())
        .collect();
    if !alone.is_empty() {
        rows.push(vec![
            "-".into(),
            format!("GPUs {}", ranges(&alone)),
            "no NVLink".into(),
        ]);
    }
    columns(&rows)
}

fn nics(spec: &NodeTopologySpec) -> Vec<Vec<String>> {
    let titles = ["NIC", "NUMA", "NEAREST GPUS", "RATE", "PCI ADDRESS"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    for nic in &spec.nics {
        let near = ranges(&nic.gpus);
        rows.push(vec![
            nic.name.clone(),
            nic.numa_node.map_or("-".into(), |numa| numa.to_string()),
            if near.is_empty() { "-".into() } else { near },
            nic_rate(nic).unwrap_or("-".into()),
            nic.pci_bus_id.clone().unwrap_or("-".into()),
        ]);
    }
    rows
}

fn matrix(spec: &NodeTopologySpec) -> String {
    if spec.gpus.len() > MOST_COLUMNS {
        let count = spec.gpus.len();
        return format!("{count} GPUs are too many for a terminal: use --output matrix\n");
    }
    let matrix = topo_matrix::of_document(spec);
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(matrix.gpus.iter().map(|gpu| gpu.index.to_string()));
    for gpu in &matrix.gpus {
        let mut row = vec![gpu.index.to_string()];
        row.extend(gpu.to_gpus.iter().map(ToString::to_string));
        rows.push(row);
    }
    columns(&rows)
}
