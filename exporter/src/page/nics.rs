//! The NICs, in a collapsed table.

use nvlink_topology::{Nic, NodeTopologySpec};

use super::html::{count, escape};
use crate::output;

/// Renders the table; it is empty if there are no NICs.
pub(super) fn render(spec: &NodeTopologySpec) -> String {
    if spec.nics.is_empty() {
        return String::new();
    }
    let mut html = format!(
        "<details class=\"nics\" id=\"nics\"><summary><b>{}</b></summary>\n\
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"NICs\"><table>\n\
         <thead><tr><th scope=\"col\">NIC<th scope=\"col\">NUMA<th scope=\"col\">Nearest GPUs\
         <th scope=\"col\">Rate<th scope=\"col\">PCI address</thead>\n<tbody>\n",
        count(spec.nics.len(), "NIC")
    );
    for nic in &spec.nics {
        html += &row(nic);
    }
    html + "</tbody></table></div></details>\n"
}

fn row(nic: &Nic) -> String {
    let numa = nic.numa_node.map(|numa| numa.to_string());
    format!(
        "<tr><th scope=\"row\">{}<td>{}<td>{}<td>{}<td>{}\n",
        escape(&nic.name),
        numa.unwrap_or_default(),
        output::ranges(&nic.gpus),
        output::nic_rate(nic).unwrap_or_default(),
        escape(nic.pci_bus_id.as_deref().unwrap_or_default())
    )
}
