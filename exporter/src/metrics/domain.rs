//! Domains, and their free GPUs.

use std::{collections::BTreeSet, fmt};

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
    uncertain: &BTreeSet<u32>,
) -> fmt::Result {
    let name = Label::Text(&node.metadata.name);
    let domains = &node.spec.domains;
    let sizes = domains
        .iter()
        .map(|domain| (labels(domain, name), Value::Whole(domain.gpus.len() as u64)));
    out.write(&families::DOMAIN_GPUS, sizes)?;
    let faults = domains.iter().flat_map(|domain| {
        let faults = domain.faults.iter().map(ToString::to_string);
        faults.map(move |fault| (domain, fault))
    });
    let faults: Vec<_> = faults.collect();
    let faults = faults.iter().map(|(domain, fault)| {
        let [id, node] = labels(domain, name);
        ([id, node, Label::Text(fault)], Value::Whole(1))
    });
    out.write(&families::DOMAIN_FAULT, faults)?;
    // Without a status it is not known which GPUs are free.
    let Some(status) = status else {
        return Ok(());
    };
    let free = node.spec.free_gpus(Some(status));
    // Including and excluding the GPUs that may be held.
    let most = |domain: &Domain| count(domain, |gpu| free.contains(gpu));
    let least =
        |domain: &Domain| count(domain, |gpu| free.contains(gpu) && !uncertain.contains(gpu));
    let known = domains
        .iter()
        .filter(|domain| most(domain) == least(domain));
    let left = known.map(|domain| (labels(domain, name), Value::Whole(most(domain))));
    out.write(&families::DOMAIN_FREE_GPUS, left)?;
    if !node.spec.knows_nvlink() {
        return Ok(());
    }
    let alone = |any: bool| u64::from(any);
    let largest = domains.iter().map(most).max().unwrap_or(0);
    let largest = largest.max(alone(!free.is_empty()));
    let at_least = domains.iter().map(least).max().unwrap_or(0);
    let at_least = at_least.max(alone(free.iter().any(|gpu| !uncertain.contains(gpu))));
    let largest = (largest == at_least).then_some(([name], Value::Whole(largest)));
    out.write(&families::LARGEST_FREE_SET, largest)
}

fn count(domain: &Domain, wanted: impl Fn(&u32) -> bool) -> u64 {
    domain.gpus.iter().filter(|gpu| wanted(gpu)).count() as u64
}

fn labels<'a>(domain: &'a Domain, node: Label<'a>) -> [Label<'a>; 2] {
    [Label::Text(&domain.id), node]
}
