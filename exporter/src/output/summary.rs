//! Short descriptions of a node, with which all outputs for people begin.

use nvlink_topology::{
    Comparison, Domain, Edge, Gpu, Interconnect, NodeTopologySpec, Via, bandwidth,
    calibration::Measured, generation::Generation,
};

use super::rate;

/// Lists the models: `8 × NVIDIA H100 80GB HBM3`.
#[must_use]
pub fn models(gpus: &[Gpu]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for gpu in gpus {
        let model = gpu.model.as_deref().unwrap_or("GPU of unknown model");
        match counts.iter_mut().find(|(name, _)| *name == model) {
            Some((_, count)) => *count += 1,
            None => counts.push((model, 1)),
        }
    }
    let count = |(model, count): &(&str, usize)| format!("{count} × {model}");
    match counts.is_empty() {
        true => "no GPUs".to_owned(),
        false => counts.iter().map(count).collect::<Vec<_>>().join(", "),
    }
}

/// Lists the models of a node that lost GPUs: `7 of 8 × NVIDIA H100 80GB HBM3`. The model of
/// a lost GPU is not known, and is that of the others if they all have the same.
#[must_use]
pub fn models_left(gpus: &[Gpu], lost: usize) -> String {
    let left = models(gpus);
    let same = gpus.windows(2).all(|two| two[0].model == two[1].model);
    match left.split_once(" × ") {
        _ if lost == 0 => left,
        Some((count, model)) if same => format!("{count} of {} × {model}", gpus.len() + lost),
        _ => format!("{left}, {lost} lost"),
    }
}

/// Describes how the GPUs of the node are joined: `nvswitch`, or `NVLink unknown`.
#[must_use]
pub fn interconnect(spec: &NodeTopologySpec) -> &'static str {
    let known = spec.interconnect();
    known.map_or("NVLink unknown", Interconnect::as_str)
}

/// Says which bandwidths were measured, if any: `NVLINK × 0.98 (12 runs)`. The factor is that of
/// the constants that the measurement replaces.
#[must_use]
pub fn measured(spec: &NodeTopologySpec) -> Option<String> {
    let one = |entry: &Measured| {
        let Measured { factor, runs, .. } = entry;
        format!("{} × {factor:.2} ({runs} runs)", entry.path.as_str())
    };
    let all: Vec<_> = spec.calibration.iter().map(one).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// Says that benchmarks of the node are slower than those of its siblings: `benchmarks reach 78 %
/// of what sibling nodes reach (8 GPUs, NVLINK, 5 runs)`.
#[must_use]
pub fn slower(comparison: &Comparison) -> String {
    let Comparison { gpus, runs, .. } = comparison;
    let (percent, path) = (comparison.ratio * 100.0, comparison.path.as_str());
    format!(
        "benchmarks reach {percent:.0} % of what sibling nodes reach ({gpus} GPUs, {path}, {runs} runs)"
    )
}

/// Says that all GPUs of a domain lack so many links.
#[must_use]
pub fn each_lacks(missing: u64) -> String {
    let plural = if missing == 1 { "" } else { "s" };
    format!("each GPU lacks {missing} link{plural}, so a switch or its cables are broken")
}

/// Describes how the GPUs of a domain are joined: `18 links, 371 GB/s per pair, over NVSwitch`.
#[must_use]
pub fn joined(spec: &NodeTopologySpec, domain: &Domain) -> String {
    let inside = |a, b| domain.gpus.contains(&a) && domain.gpus.contains(&b);
    let edges: Vec<_> = spec
        .edges
        .iter()
        .filter(|edge| inside(edge.a, edge.b))
        .collect();
    let over = match edges.first().map(|edge| edge.via) {
        None => return String::new(),
        Some(Via::Direct) => "direct",
        Some(Via::Switch) => "over NVSwitch",
        Some(Via::Fabric) => "over the fabric",
    };
    let links = edges.iter().map(|edge| edge.links);
    let rates = edges.iter().map(|edge| edge.bytes_per_second);
    let span = |least: String, most: String| match least == most {
        true => most,
        false => format!("{least} to {most}"),
    };
    let least_most = |values: &mut dyn Iterator<Item = u64>| {
        values.fold((u64::MAX, 0), |(least, most), value| {
            (least.min(value), most.max(value))
        })
    };
    let (least, most) = least_most(&mut links.map(u64::from));
    let (slow, fast) = least_most(&mut rates.into_iter());
    let links = span(least.to_string(), most.to_string());
    let s = if most == 1 { "" } else { "s" };
    let rates = span(rate(slow), rate(fast));
    let assumed = assumed(spec, domain);
    format!("{links} link{s}, {rates} per pair{assumed}, {over}")
}

/// Returns a remark if the rates are assumed.
fn assumed(spec: &NodeTopologySpec, domain: &Domain) -> String {
    match is_assumed(spec, domain) {
        true => format!(
            " (model unknown: assumed {} per link)",
            rate(bandwidth::ASSUMED_NVLINK)
        ),
        false => String::new(),
    }
}

/// Reports whether the rates are assumed: for some GPU, neither product nor line rate is known.
pub(super) fn is_assumed(spec: &NodeTopologySpec, domain: &Domain) -> bool {
    let unknown = |gpu: &Gpu| {
        let product = gpu.model.as_deref().and_then(Generation::of_model);
        let mut links = gpu.links.iter().flatten();
        product.is_none() && links.all(|link| link.bytes_per_second.is_none())
    };
    let unknown = |index: u32| spec.gpu(index).is_some_and(unknown);
    let inside = |gpu: u32| domain.gpus.contains(&gpu);
    let is_assumed = |edge: &&Edge| {
        inside(edge.a)
            && inside(edge.b)
            && (unknown(edge.a) || unknown(edge.b))
            && edge.bytes_per_second == bandwidth::assumed_nvlink(edge.links)
    };
    spec.edges.iter().any(|edge| is_assumed(&edge))
}

/// Returns the number of links that are up, of all links: `16/18`; `None` if links are not known.
#[must_use]
pub fn links_up(gpu: &Gpu) -> Option<String> {
    let links = gpu.links.as_ref()?;
    Some(format!(
        "{}/{}",
        links.iter().filter(|link| link.up).count(),
        links.len()
    ))
}

/// Returns the NICs that the GPU is nearest to, sorted by the number of GPUs that share them.
#[must_use]
pub fn nics(spec: &NodeTopologySpec, gpu: u32) -> Vec<&str> {
    let mut near: Vec<_> = spec
        .nics
        .iter()
        .filter(|nic| nic.gpus.contains(&gpu))
        .collect();
    near.sort_by_key(|nic| nic.gpus.len());
    near.into_iter().map(|nic| nic.name.as_str()).collect()
}
