//! Who holds which GPUs, and how well they were placed.

use std::fmt;

use nvlink_topology::NodeTopologySpec;
use prometheus_client::encoding::DescriptorEncoder;

use super::{families, family::Value, gpu::ids};
use crate::placement::Judged;

pub(super) fn write(
    encoder: &mut DescriptorEncoder<'_>,
    spec: &NodeTopologySpec,
    judged: &[Judged],
) -> fmt::Result {
    let held = judged.iter().flat_map(|one| {
        one.allocation.gpus.iter().filter_map(move |&index| {
            let gpu = spec.gpus.iter().find(|gpu| gpu.index == index)?;
            let domain = spec.domains.iter().find(|one| one.gpus.contains(&index));
            let mut labels = ids(gpu);
            labels.extend(pod(one));
            labels.push(domain.map(|domain| domain.id.clone()).unwrap_or_default());
            Some((labels, Value::Whole(1)))
        })
    });
    families::ALLOCATION_INFO.write(encoder, held)?;
    let whole = |value: fn(&Judged) -> Option<u64>| {
        judged
            .iter()
            .filter_map(move |one| Some((pod(one), Value::Whole(value(one)?))))
    };
    families::PLACEMENT_GPUS.write(encoder, whole(|one| Some(one.allocation.gpus.len() as u64)))?;
    families::PLACEMENT_DOMAINS.write(encoder, whole(|one| Some(one.domains as u64)))?;
    families::PLACEMENT_BOTTLENECK.write(encoder, whole(|one| one.bottleneck_bytes_per_second))?;
    let quality = judged.iter().flat_map(|one| {
        let both = [("node", one.quality_node), ("free", one.quality_free)];
        both.into_iter().filter_map(move |(reference, quality)| {
            let mut labels = pod(one);
            labels.push(reference.to_owned());
            Some((labels, Value::Real(quality?)))
        })
    });
    families::PLACEMENT_QUALITY.write(encoder, quality)?;
    let pattern = judged.iter().map(|one| {
        let mut labels = pod(one);
        labels.extend([
            one.pattern.to_string(),
            one.pattern_from.as_str().to_owned(),
        ]);
        (labels, Value::Whole(1))
    });
    families::PLACEMENT_PATTERN.write(encoder, pattern)
}

fn pod(one: &Judged) -> Vec<String> {
    let held = &one.allocation;
    vec![
        held.namespace.clone(),
        held.pod.clone(),
        held.container.clone(),
    ]
}
