//! Explains a placement.

use nvlink_topology::{
    BrokenGpus, Fault, NextBest, NodeTopologySpec, PathClass, Pattern, Placement, Via,
    calibration::Measured,
};
use serde::Serialize;

use super::{rate, summary};

/// A placement, what it was preferred to, and what it does with broken GPUs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explained<'a> {
    #[serde(flatten)]
    pub placement: &'a Placement,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_best: Option<&'a NextBest>,
    #[serde(skip_serializing_if = "Broken::is_none")]
    pub broken_gpus: Broken<'a>,
    /// The measurements that replaced constants.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub calibration: &'a [Measured],
}

/// The free GPUs that are marked as broken.
#[derive(Debug, Default, Serialize)]
pub struct Broken<'a> {
    /// Those that the placement was to avoid, and does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub avoided: Vec<BrokenGpu<'a>>,
    /// Those of the placement.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub used: Vec<BrokenGpu<'a>>,
}

/// A GPU that is marked as broken.
#[derive(Debug, Serialize)]
pub struct BrokenGpu<'a> {
    /// Its index.
    gpu: u32,
    faults: &'a [Fault],
}

impl<'a> Broken<'a> {
    /// Divides the broken GPUs among `free` by what `placement` does with them.
    #[must_use]
    pub fn of(
        spec: &'a NodeTopologySpec,
        free: &[u32],
        placement: &Placement,
        how: BrokenGpus,
    ) -> Self {
        let is_used = |one: &BrokenGpu<'_>| placement.gpus.contains(&one.gpu);
        let (used, others) = broken(spec, free).into_iter().partition(is_used);
        let avoided = match how {
            BrokenGpus::Ignore => Vec::new(),
            BrokenGpus::Avoid | BrokenGpus::Last => others,
        };
        Self { avoided, used }
    }

    /// Returns the rows of the table.
    fn rows(&self) -> impl Iterator<Item = (&'static str, String)> {
        let rows = [
            ("broken GPUs avoided", &self.avoided),
            ("broken GPUs used", &self.used),
        ];
        let some = rows.into_iter().filter(|(_, gpus)| !gpus.is_empty());
        some.map(|(title, gpus)| (title, faults(gpus)))
    }

    fn is_none(&self) -> bool {
        self.avoided.is_empty() && self.used.is_empty()
    }
}

/// Returns the GPUs among `free` that are marked as broken.
#[must_use]
pub fn broken<'a>(spec: &'a NodeTopologySpec, free: &[u32]) -> Vec<BrokenGpu<'a>> {
    let marked = spec.gpus.iter().filter(|gpu| !gpu.faults.is_empty());
    let marked = marked.filter(|gpu| free.contains(&gpu.index));
    let broken = marked.map(|gpu| BrokenGpu {
        gpu: gpu.index,
        faults: &gpu.faults,
    });
    broken.collect()
}

/// Lists broken GPUs with their faults: `3 (missing-links), 5 (fabric, xid-74)`.
#[must_use]
pub fn faults(gpus: &[BrokenGpu<'_>]) -> String {
    let one = |gpu: &BrokenGpu<'_>| {
        let faults: Vec<_> = gpu.faults.iter().map(ToString::to_string).collect();
        // A file may have any words.
        let faults = faults.join(", ").replace(char::is_control, " ");
        format!("{} ({faults})", gpu.gpu)
    };
    gpus.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Renders the placement as a table.
#[must_use]
pub fn table(explained: &Explained<'_>, spec: &NodeTopologySpec) -> String {
    let Explained {
        placement,
        next_best,
        broken_gpus,
        ..
    } = explained;
    let quality = |value: f64| format!("{:.0} %", value * 100.0);
    let mut rows = vec![
        ("GPUs, in rank order", list(&placement.gpus)),
        (
            "NVLink domain",
            placement.domain.clone().unwrap_or("none".into()),
        ),
        ("pattern", placement.pattern.to_string()),
        ("path", way(placement, spec)),
    ];
    if let Some(bottleneck) = placement.bottleneck_bytes_per_second {
        rows.push(("busiest resource", rate(bottleneck)));
        rows.push(("time for 1 GiB per GPU", time(placement.cost)));
    }
    if let Some(next) = next_best {
        rows.push(("next best set", compared(next, placement)));
    }
    rows.extend(broken_gpus.rows());
    rows.push(("quality on this node", quality(placement.quality.node)));
    rows.push(("quality among free GPUs", quality(placement.quality.free)));
    let search = if placement.exact {
        "exact"
    } else {
        "heuristic"
    };
    rows.push(("search", search.to_owned()));
    if let Some(measured) = summary::measured(spec) {
        rows.push(("bandwidths", format!("measured: {measured}")));
    }
    if assumed(&placement.gpus, spec) {
        rows.push((
            "note",
            "bandwidths are assumed: the source does not report them".to_owned(),
        ));
    }
    let width = rows.iter().map(|(title, _)| title.len()).max().unwrap_or(0);
    rows.iter()
        .map(|(title, text)| format!("{title:width$}  {text}\n"))
        .collect()
}

fn list(gpus: &[u32]) -> String {
    let gpus: Vec<_> = gpus.iter().map(ToString::to_string).collect();
    gpus.join(" ")
}

/// Formats a cost as the time for 1 GiB.
fn time(cost: f64) -> String {
    format!("{:.2} ms", cost * f64::from(1 << 30) * 1000.0)
}

/// Compares the next best set with the placement: `0 1 2 5, 53.69 ms for 1 GiB per GPU (1.3 times as long)`.
fn compared(next: &NextBest, placement: &Placement) -> String {
    let gpus = list(&next.gpus);
    let times = next.cost / placement.cost;
    // Without traffic, both costs are zero.
    if next.cost == placement.cost || (times - 1.0).abs() < 0.005 {
        return format!("{gpus}, as fast");
    }
    let decimals = if times < 1.1 { 2 } else { 1 };
    let time = time(next.cost);
    format!("{gpus}, {time} for 1 GiB per GPU ({times:.decimals$} times as long)")
}

/// Returns the path through the GPUs in rank order, `0 -NV2- 3 -PCIe (PIX)- 5`; a ring ends at its start.
fn way(placement: &Placement, spec: &NodeTopologySpec) -> String {
    let [first, rest @ ..] = &placement.gpus[..] else {
        return String::new();
    };
    let ring = placement.pattern == Pattern::AllReduce && rest.len() > 1;
    let mut way = first.to_string();
    let mut from = *first;
    for &to in rest.iter().chain(ring.then_some(first)) {
        let path = spec.path(from, to);
        let word = match (
            spec.edge(from, to),
            through((from, to), &placement.gpus, spec),
        ) {
            (Some(edge), _) => format!("NV{}", edge.links),
            (None, Some((links, gpu))) => format!("NV{links} through {gpu}"),
            (None, None) => {
                let class = path.map_or(PathClass::Sys, |path| path.class);
                format!("PCIe ({})", class.as_str())
            }
        };
        way += &format!(" -{word}- {to}");
        from = to;
    }
    way
}

/// Finds the widest path between two GPUs that no edge joins, through one of
/// `gpus`: the number of its direct links, and the GPU between. Of equally wide
/// paths, it returns the one through the GPU with the lowest index.
fn through(ends: (u32, u32), gpus: &[u32], spec: &NodeTopologySpec) -> Option<(u32, u32)> {
    let links = |a: u32, b: u32| {
        let direct = spec.edge(a, b).filter(|edge| edge.via == Via::Direct);
        direct.map(|edge| edge.links)
    };
    let way = |&gpu: &u32| Some((links(ends.0, gpu)?.min(links(gpu, ends.1)?), gpu));
    let widest = |&(links, gpu): &(u32, u32)| (links, std::cmp::Reverse(gpu));
    gpus.iter().filter_map(way).max_by_key(widest)
}

fn assumed(gpus: &[u32], spec: &NodeTopologySpec) -> bool {
    let inside = |a, b| gpus.contains(&a) && gpus.contains(&b);
    spec.paths
        .iter()
        .any(|path| path.assumed && inside(path.a, path.b))
}
