//! NCCL topology XML: the files that NCCL writes to `NCCL_TOPO_DUMP_FILE`, and
//! those that cloud providers ship for `NCCL_TOPO_FILE`.
//!
//! A dump has the NVLinks that were up, but neither their indices (they are
//! numbered here, in the order of the file) nor their speed, and no UUIDs or
//! product names: the bandwidth follows from the compute capability. Most
//! providers' files have no NVLinks, so the links are unknown. The format does
//! not distinguish host bridges: devices of one NUMA node that share no switch
//! are assumed to be `NODE`.

mod bounds;
mod device;
mod links;

use nvlink_topology::{
    MAX_GPUS, NodeTopologySpec, Source as ReadFrom, SourceKind, bandwidth, generation::Generation,
};
use roxmltree::{Document, Error, Node, ParsingOptions};

use self::device::{GpuDevice, NicDevice};
use super::{
    pci::{Place, Tree},
    text::LineError,
    topo_matrix::Matrix,
};

/// The maximum number of XML nodes. NCCL writes about ten for each GPU.
const MAX_NODES: u32 = 100_000;

/// Returns the error of a node.
fn wrong(node: Node<'_, '_>, reason: impl Into<String>) -> LineError {
    let position = node.document().text_pos_at(node.range().start);
    LineError::new(position.row as usize, reason)
}

#[derive(Clone, Debug)]
pub(crate) struct Topology {
    /// The document's spec, complete.
    pub spec: NodeTopologySpec,
    /// The relations, including those of the NICs.
    pub matrix: Matrix,
    /// Problems that leave the topology usable, a sentence each.
    pub warnings: Vec<String>,
}

/// Parses `text`, which was read from `from`, as the node `node`.
///
/// # Errors
/// Anything but the topology of one node with at least one GPU, with the line.
pub(crate) fn parse(text: &str, from: &str, node: &str) -> Result<Topology, LineError> {
    bounds::check(text)?;
    let options = ParsingOptions {
        allow_dtd: false,
        nodes_limit: MAX_NODES,
        ..ParsingOptions::default()
    };
    let document =
        Document::parse_with_options(text, options).map_err(|error| syntax(text, &error))?;
    check_root(document.root_element())?;
    check_hosts(&document)?;
    let gpus = device::gpus(&document)?;
    let nics = device::nics(&document)?;
    complete(from, node, gpus, nics).map_err(|reason| LineError::new(1, reason))
}

/// Converts the parser's error, and adds a line if the parser does not have one.
fn syntax(text: &str, error: &Error) -> LineError {
    let line_of = |at: usize| 1 + text[..at].matches('\n').count();
    match error {
        Error::DtdDetected => {
            let line = line_of(text.find("<!DOCTYPE").unwrap_or_default());
            LineError::new(
                line,
                "a document type definition; NCCL writes none, and it is not accepted",
            )
        }
        Error::UnclosedRootNode => {
            let line = line_of(text.trim_end().len());
            LineError::new(line, "the text ends inside an element: it is truncated")
        }
        Error::NodesLimitReached => LineError::new(
            1,
            format!("more than {MAX_NODES} elements: not the topology of one node"),
        ),
        error => {
            let words = error.to_string().replace(char::is_control, " ");
            let words = words.chars().take(200).collect::<String>();
            LineError::new(error.pos().row as usize, format!("not valid XML: {words}"))
        }
    }
}

fn check_root(root: Node<'_, '_>) -> Result<(), LineError> {
    let name: String = root.tag_name().name().chars().take(40).collect();
    match (name.as_str(), root.attribute("version")) {
        ("system", None | Some("1")) => Ok(()),
        ("system", Some(_)) => Err(wrong(root, "<system> has a version other than 1")),
        ("graphs", _) => Err(wrong(
            root,
            "this is an NCCL_GRAPH_DUMP_FILE; use the file of NCCL_TOPO_DUMP_FILE",
        )),
        _ => Err(wrong(root, format!("<{name}>, expected NCCL's <system>"))),
    }
}

/// Checks that all CPUs are of one host. The dump of a job on a multi-node
/// fabric has the GPUs of all its nodes.
fn check_hosts(document: &Document<'_>) -> Result<(), LineError> {
    let mut first = None;
    for cpu in document
        .descendants()
        .filter(|node| node.has_tag_name("cpu"))
    {
        let Some(hash) = cpu.attribute("host_hash") else {
            continue;
        };
        if *first.get_or_insert(hash) != hash {
            let reason = "a second host (host_hash differs); use the dump of a job on one node";
            return Err(wrong(cpu, reason));
        }
    }
    Ok(())
}

fn complete(
    from: &str,
    node: &str,
    devices: Vec<GpuDevice>,
    nics: Vec<NicDevice>,
) -> Result<Topology, String> {
    let (mut warnings, mut gpus, mut places, mut generations) = (vec![], vec![], vec![], vec![]);
    for device in devices {
        warnings.extend(device.warning);
        places.push((device.gpu.index, device.place));
        generations.push((device.gpu.index, device.generation));
        gpus.push(device.gpu);
    }
    let tree = Tree::Switches;
    let near = |place: &Place| tree.nearest(place, &places);
    let (nics, nic_places): (Vec<_>, Vec<_>) = nics
        .into_iter()
        .map(|NicDevice { mut nic, place }| {
            nic.gpus = near(&place);
            (nic, place)
        })
        .unzip();
    let source = ReadFrom {
        kind: SourceKind::File,
        from: from.to_owned(),
    };
    let mut spec = NodeTopologySpec {
        paths: tree.paths(&places),
        nics,
        ..NodeTopologySpec::of(source, gpus)
    };
    warnings.extend(spec.complete(node).map_err(|error| error.to_string())?);
    rate_edges(&mut spec, &generations);
    if spec.gpus.iter().all(|gpu| gpu.links.is_none()) {
        warnings.push("this file has no NVLinks: links are unknown, not absent".to_owned());
    }
    let matrix = tree.matrix(&spec, &places, &nic_places);
    Ok(Topology {
        spec,
        matrix,
        warnings,
    })
}

/// Sets the bandwidths of the edges by generation: `complete` knows products only
/// by name, and a dump has no product names.
fn rate_edges(spec: &mut NodeTopologySpec, generations: &[(u32, Option<Generation>)]) {
    let rate = |gpu: u32| {
        let known = generations.iter().find(|(index, _)| *index == gpu);
        known.and_then(|(_, generation)| Some((*generation)?.bytes_per_second_per_link))
    };
    for edge in &mut spec.edges {
        let known = rate(edge.a).zip(rate(edge.b)).map(|(a, b)| a.min(b));
        edge.bytes_per_second = match known {
            Some(one) => one.saturating_mul(edge.links.into()),
            None => bandwidth::assumed_nvlink(edge.links),
        };
        let path = spec
            .paths
            .iter_mut()
            .find(|path| (path.a, path.b) == (edge.a, edge.b));
        if let Some(path) = path {
            path.bytes_per_second = edge.bytes_per_second;
            path.assumed = known.is_none();
        }
    }
}

/// Checks that there are not more GPUs than a document may have.
fn check_count(gpus: usize, last: Node<'_, '_>) -> Result<(), LineError> {
    match gpus <= MAX_GPUS {
        true => Ok(()),
        false => Err(wrong(last, format!("more than {MAX_GPUS} GPUs"))),
    }
}

#[cfg(test)]
mod tests;
