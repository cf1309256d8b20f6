//! Domains, and what is free in them.

use std::fmt;

use nvlink_topology::{NodeTopology, NodeTopologyStatus};
use prometheus_client::encoding::DescriptorEncoder;

use super::{families, family::Value};

pub(super) fn write(
    encoder: &mut DescriptorEncoder<'_>,
    node: &NodeTopology,
    status: Option<&NodeTopologyStatus>,
) -> fmt::Result {
    let name = || node.metadata.name.clone();
    let domains = &node.spec.domains;
    families::DOMAIN_GPUS.write(
        encoder,
        domains.iter().map(|domain| {
            (
                vec![domain.id.clone(), name()],
                Value::Whole(domain.gpus.len() as u64),
            )
        }),
    )?;
    // Without a status nobody knows what is free.
    let Some(status) = status else {
        return Ok(());
    };
    let free = node.spec.free_gpus(Some(status));
    let free_in = |gpus: &[u32]| gpus.iter().filter(|gpu| free.contains(gpu)).count() as u64;
    families::DOMAIN_FREE_GPUS.write(
        encoder,
        domains.iter().map(|domain| {
            (
                vec![domain.id.clone(), name()],
                Value::Whole(free_in(&domain.gpus)),
            )
        }),
    )?;
    let largest = domains
        .iter()
        .map(|domain| free_in(&domain.gpus))
        .max()
        .unwrap_or(0);
    let largest = largest.max(u64::from(!free.is_empty()));
    families::LARGEST_FREE_SET.write(encoder, [(vec![name()], Value::Whole(largest))])
}
