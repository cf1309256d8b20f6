//! Domains, and what is free in them.

use std::fmt;

use nvlink_topology::{Domain, NodeTopology, NodeTopologyStatus};

use super::{
    families,
    family::{Label, Value},
    writer::Writer,
};

pub(super) fn write(
    out: &mut Writer<'_>,
    node: &NodeTopology,
    status: Option<&NodeTopologyStatus>,
) -> fmt::Result {
    let name = Label::Text(&node.metadata.name);
    let domains = &node.spec.domains;
    let sizes = domains
        .iter()
        .map(|domain| (labels(domain, name), Value::Whole(domain.gpus.len() as u64)));
    out.write(&families::DOMAIN_GPUS, sizes)?;
    // Without a status nobody knows what is free.
    let Some(status) = status else {
        return Ok(());
    };
    let free = node.spec.free_gpus(Some(status));
    let free_in = |domain: &Domain| {
        let gpus = domain.gpus.iter();
        gpus.filter(|gpu| free.contains(gpu)).count() as u64
    };
    let left = domains
        .iter()
        .map(|domain| (labels(domain, name), Value::Whole(free_in(domain))));
    out.write(&families::DOMAIN_FREE_GPUS, left)?;
    if !node.spec.knows_nvlink() {
        return Ok(());
    }
    let largest = domains.iter().map(free_in).max().unwrap_or(0);
    let largest = largest.max(u64::from(!free.is_empty()));
    out.write(
        &families::LARGEST_FREE_SET,
        [([name], Value::Whole(largest))],
    )
}

fn labels<'a>(domain: &'a Domain, node: Label<'a>) -> [Label<'a>; 2] {
    [Label::Text(&domain.id), node]
}
