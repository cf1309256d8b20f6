//! Which containers hold which GPUs, and how good the placements are.

use std::fmt;

use nvlink_topology::{NodeTopologySpec, PathClass};

use super::{
    families,
    family::{Label, Value},
    gpu::{by_index, ids},
    writer::Writer,
};
use crate::placement::Judged;

pub(super) fn write(
    out: &mut Writer<'_>,
    spec: &NodeTopologySpec,
    judged: &[Judged],
    whole: bool,
) -> fmt::Result {
    let held = judged.iter().flat_map(|one| {
        let present = one.allocation.gpus.iter().filter_map(move |&index| {
            let [gpu, uuid] = ids(by_index(&spec.gpus, index)?);
            let domain = spec.domain_of(index);
            let [namespace, pod, container] = holder(one);
            let domain = domain.map(|domain| &*domain.id).into();
            let labels = [gpu, uuid, namespace, pod, container, domain];
            Some((labels, Value::Whole(1)))
        });
        let lost = one.lost.iter().map(move |gpu| {
            let [namespace, pod, container] = holder(one);
            let (index, uuid) = (gpu.index.into(), gpu.uuid.as_deref().into());
            let labels = [index, uuid, namespace, pod, container, Label::Unknown];
            (labels, Value::Whole(1))
        });
        present.chain(lost)
    });
    out.write(&families::ALLOCATION_INFO, held)?;
    // Which pod holds a GPU does not depend on the graph; the judgements do.
    let judged = if whole { judged } else { &[] };
    let whole = |value: fn(&Judged) -> Option<u64>| {
        judged
            .iter()
            .filter_map(move |one| Some((holder(one), Value::Whole(value(one)?))))
    };
    let gpus = whole(|one| Some(number(one)));
    out.write(&families::PLACEMENT_GPUS, gpus)?;
    let domains = whole(|one| Some(one.domains? as u64));
    out.write(&families::PLACEMENT_DOMAINS, domains)?;
    let bottlenecks = whole(|one| one.bottleneck_bytes_per_second);
    out.write(&families::PLACEMENT_BOTTLENECK, bottlenecks)?;
    judgements(out, judged)
}

fn judgements(out: &mut Writer<'_>, judged: &[Judged]) -> fmt::Result {
    let quality = judged.iter().flat_map(|one| {
        let both = [("node", one.quality_node), ("free", one.quality_free)];
        both.into_iter().filter_map(move |(reference, quality)| {
            let [namespace, pod, container] = holder(one);
            let labels = [namespace, pod, container, reference.into()];
            Some((labels, Value::Real(quality?)))
        })
    });
    out.write(&families::PLACEMENT_QUALITY, quality)?;
    let patterns: Vec<_> = judged.iter().map(|one| one.pattern.to_string()).collect();
    let patterns = judged.iter().zip(&patterns).map(|(one, pattern)| {
        let [namespace, pod, container] = holder(one);
        let (pattern, source) = (Label::Text(pattern), one.pattern_from.as_str().into());
        let labels = [namespace, pod, container, pattern, source];
        (labels, Value::Whole(1))
    });
    out.write(&families::PLACEMENT_PATTERN, patterns)?;
    let classes = judged.iter().map(|one| {
        let [namespace, pod, container] = holder(one);
        // A path to a GPU that does not answer is unknown.
        let path = one.path.filter(|_| one.lost.is_empty());
        let labels = [
            namespace,
            pod,
            container,
            one.model.as_deref().into(),
            number(one).into(),
            path.map(PathClass::as_str).into(),
            one.class.as_deref().into(),
            one.project.as_deref().into(),
            one.gang.as_deref().into(),
        ];
        (labels, Value::Whole(1))
    });
    out.write(&families::PLACEMENT_INFO, classes)
}

/// Returns the number of GPUs that the container holds.
fn number(one: &Judged) -> u64 {
    (one.allocation.gpus.len() + one.lost.len()) as u64
}

fn holder(one: &Judged) -> [Label<'_>; 3] {
    let held = &one.allocation;
    [&held.namespace, &held.pod, &held.container].map(|text| Label::Text(text))
}
