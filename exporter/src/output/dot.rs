//! The graph for Graphviz: `… --output dot | dot -Tsvg`.

use nvlink_topology::{NodeTopology, NodeTopologySpec, Via};

use super::{rate, summary};

/// Renders `node`: GPUs in their NUMA nodes, switched domains as a star, NICs next to their GPUs.
#[must_use]
pub fn render(node: &NodeTopology) -> String {
    let spec = &node.spec;
    let mut out = format!("graph {} {{\n", quoted(&node.metadata.name));
    let title = format!("{}: {}", node.metadata.name, summary::models(&spec.gpus));
    out += &format!("  label={}; labelloc=t;\n", quoted(&title));
    out += "  node [shape=box, style=rounded, fontname=\"sans-serif\"];\n";
    out += "  edge [fontname=\"sans-serif\", fontsize=10];\n";
    out += &gpus(spec);
    out += &edges(spec);
    for nic in &spec.nics {
        out += &format!("  {} [shape=ellipse];\n", quoted(&nic.name));
        for gpu in &nic.gpus {
            out += &format!("  {} -- gpu{gpu} [style=dashed];\n", quoted(&nic.name));
        }
    }
    out + "}\n"
}

fn gpus(spec: &NodeTopologySpec) -> String {
    let mut nodes: Vec<_> = spec.gpus.iter().map(|gpu| gpu.numa_node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let mut out = String::new();
    for numa in nodes {
        let indent = if numa.is_some() { "    " } else { "  " };
        if let Some(numa) = numa {
            out += &format!("  subgraph cluster_numa{numa} {{\n    label=\"NUMA {numa}\";\n");
        }
        for gpu in spec.gpus.iter().filter(|gpu| gpu.numa_node == numa) {
            let links = summary::links_up(gpu).map(|up| format!("\n{up} links"));
            let label = format!("GPU {}{}", gpu.index, links.unwrap_or_default());
            out += &format!("{indent}gpu{} [label={}];\n", gpu.index, quoted(&label));
        }
        if numa.is_some() {
            out += "  }\n";
        }
    }
    out
}

/// Draws the edges. A switched domain is drawn as links from each GPU to the switches.
fn edges(spec: &NodeTopologySpec) -> String {
    let mut out = String::new();
    for (n, domain) in spec.domains.iter().enumerate() {
        let ports: Vec<_> = domain
            .gpus
            .iter()
            .map(|&gpu| (gpu, switch_links(spec, gpu)))
            .collect();
        if ports.iter().any(|(_, links)| *links > 0) {
            out += &format!("  switch{n} [label=\"NVSwitch\", shape=box3d];\n");
        }
        for (gpu, links) in ports.into_iter().filter(|(_, links)| *links > 0) {
            let width = width(links);
            out += &format!("  gpu{gpu} -- switch{n} [label=\"NV{links}\", penwidth={width}];\n");
        }
    }
    for edge in spec.edges.iter().filter(|edge| edge.via == Via::Direct) {
        let label = format!("NV{}\n{}", edge.links, rate(edge.bytes_per_second));
        let (label, width) = (quoted(&label), width(edge.links));
        out += &format!(
            "  gpu{} -- gpu{} [label={label}, penwidth={width}];\n",
            edge.a, edge.b
        );
    }
    out
}

/// Returns the number of links from a GPU to the switches: the maximum over its edges.
fn switch_links(spec: &NodeTopologySpec, gpu: u32) -> u32 {
    let edges = spec.edges.iter().filter(|edge| edge.via != Via::Direct);
    edges
        .filter(|edge| edge.a == gpu || edge.b == gpu)
        .map(|edge| edge.links)
        .max()
        .unwrap_or(0)
}

fn width(links: u32) -> u32 {
    1 + links / 4
}

/// Returns a string of the DOT language. Text from a file must not send control
/// sequences to the terminal, so line breaks are escaped and all other control
/// characters are replaced.
fn quoted(text: &str) -> String {
    let escaped = text
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
        .replace(char::is_control, "\u{fffd}");
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_send_no_control_sequences_to_the_terminal() {
        let source: nvlink_source::SourceSpec = "sim:rtx-a6000-pairs".parse().unwrap();
        let reading = source.open(Some("n")).unwrap().read(Default::default());
        let mut node = reading.unwrap().topology;
        node.metadata.name = "a\u{1b}]0;x\u{7}".into();
        node.spec.gpus[0].model = Some("b\u{9b}31m\r\0\"".into());
        node.spec.nics.push(nvlink_topology::Nic {
            name: "mlx5\u{1b}[2J\nx".into(),
            ..Default::default()
        });
        let dot = render(&node);
        assert!(
            !dot.contains(|c: char| c.is_control() && c != '\n'),
            "{dot:?}"
        );
        assert!(dot.contains("\"mlx5\u{fffd}[2J\\nx\""), "{dot}");
        assert!(dot.contains("31m\u{fffd}\u{fffd}\\\""), "{dot}");
    }
}
