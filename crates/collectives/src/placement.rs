//! Where a run took place.

use nvlink_topology::{Gpu, NodeTopologySpec, PathClass};

use super::{
    Collective,
    model::{Expected, Site, expected},
    run::{Known, Origin, Run},
};

/// The placement class of a run, and where each part of it comes from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Place {
    /// The GPUs' model; absent if they differ.
    pub model: Option<Known<String>>,
    pub gpus: Option<Known<u32>>,
    pub nodes: Option<Known<u32>>,
    /// Class of the slowest path between two of the GPUs of one node.
    pub path: Option<Known<PathClass>>,
}

/// What the flags say about the place of all runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    pub collective: Option<Collective>,
    pub model: Option<String>,
    pub gpus: Option<u32>,
    pub nodes: Option<u32>,
    pub path: Option<PathClass>,
    /// Whether switches should add up the data.
    pub nvls: Option<bool>,
}

/// A run at its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    pub run: Run,
    pub place: Place,
    /// What the model expects of large messages.
    pub expected: Option<Expected>,
}

/// The warning for a log without NVLS, where nothing turns it off.
const NVLS_LOST: &str = "NCCL's log says that it has no NVLS, although the switches of these GPUs can add up data and no setting in the log turns it off: the model expects rings; where NVLS should work, use --nvls on, and look at the fabric manager and the driver";

/// Returns the run at its place. What the flags give comes first, then what the output
/// says, then NCCL's log, then `node`, the topology of a node on which the run took place.
/// For the path, the topology comes before the log: a ring may avoid the slowest path.
#[must_use]
pub fn place(mut run: Run, given: &Given, node: Option<&NodeTopologySpec>) -> Placed {
    if let Some(collective) = given.collective {
        run.collective = Some(Known::new(collective, Origin::Flag));
    }
    let refused = run.nvls_refused && given.nvls.is_none();
    if let Some(nvls) = given.nvls {
        run.nvls = Some(Known::new(nvls, Origin::Flag));
    }
    let flag = |number: u32| Known::new(number, Origin::Flag);
    let gpus = given.gpus.map(flag).or(run.ranks.clone());
    let count = gpus.as_ref().map(|gpus| gpus.value);
    let nodes = given.nodes.map(flag).or(run.nodes.clone());
    let nodes = nodes.or_else(|| {
        let fits = node?.gpus.len() >= count? as usize;
        fits.then_some(Known::new(1, Origin::Topology))
    });
    let number = nodes.as_ref().map_or(1, |nodes| nodes.value);
    let used = node.and_then(|node| used(&run, node, count?, number));
    let path = given.path.map(|path| Known::new(path, Origin::Flag));
    let path = path.or_else(|| {
        let slowest = node?.slowest_path(used.as_deref()?)?;
        Some(Known::new(slowest, Origin::Topology))
    });
    let model_says = || {
        let collective = run.collective.as_ref()?.value;
        let site = Site {
            node: node?,
            used: used.as_deref(),
            gpus: count?,
            nodes: number,
        };
        expected(collective, site, run.nvls.as_ref())
    };
    let expected = model_says();
    if refused && expected.as_ref().is_some_and(|one| one.nvls.is_some()) {
        run.warn(NVLS_LOST.to_owned());
    }
    Placed {
        expected,
        place: Place {
            model: model(&run, given, node),
            path: path.or(run.path.clone()),
            gpus,
            nodes,
        },
        run,
    }
}

fn model(run: &Run, given: &Given, node: Option<&NodeTopologySpec>) -> Option<Known<String>> {
    let flag = given.model.clone().map(|model| (model, Origin::Flag));
    let listed = || {
        let models = run.devices.iter().map(|one| &*one.model);
        Some((common(models)?, Origin::Output))
    };
    let of_node = || {
        let gpus = node?.gpus.iter();
        let models = gpus.map(|gpu| gpu.model.as_deref().unwrap_or_default());
        Some((common(models)?, Origin::Topology))
    };
    let known = flag.or_else(listed).or_else(of_node);
    known.map(|(model, from)| Known::new(model, from))
}

/// Returns the text that all have in common; `None` if one differs or is empty.
fn common<'a>(mut texts: impl Iterator<Item = &'a str>) -> Option<String> {
    let first = texts.next().filter(|first| !first.is_empty())?;
    texts.all(|text| text == first).then(|| first.to_owned())
}

/// Returns the indices of the GPUs of `node` on which the run took place: those with the
/// listed PCI addresses, or all if it used as many.
fn used(run: &Run, node: &NodeTopologySpec, gpus: u32, nodes: u32) -> Option<Vec<u32>> {
    let here = gpus as usize / nodes.max(1) as usize;
    // On several nodes, the first one stands for all.
    let host = run.devices.first().map(|one| &*one.host);
    let on_host = run.devices.iter().filter(|one| Some(&*one.host) == host);
    let by_address = on_host.map(|one| gpu_at(&one.pci, &node.gpus).map(|gpu| gpu.index));
    let by_address: Option<Vec<u32>> = by_address.collect();
    let found = by_address.filter(|found| !found.is_empty() && found.len() == here);
    let all = || node.gpus.iter().map(|gpu| gpu.index).collect();
    let mut found = found.or_else(|| (here == node.gpus.len()).then(all))?;
    found.sort_unstable();
    found.dedup();
    (found.len() == here).then_some(found)
}

/// Returns the GPU at a PCI address as nccl-tests prints it: `0000:1b:00`, or the bus alone
/// as `0x1b`, which several GPUs may share in different PCI domains.
fn gpu_at<'a>(pci: &str, gpus: &'a [Gpu]) -> Option<&'a Gpu> {
    let hexadecimal = |text: &str| u32::from_str_radix(text, 16).ok();
    let address = |gpu: &Gpu| {
        let mut parts = gpu.pci_bus_id.as_deref()?.split(':');
        Some((hexadecimal(parts.next()?)?, hexadecimal(parts.next()?)?))
    };
    let (domain, bus) = match pci.strip_prefix("0x") {
        Some(bus) => (None, hexadecimal(bus)?),
        None => {
            let mut parts = pci.split(':');
            (
                Some(hexadecimal(parts.next()?)?),
                hexadecimal(parts.next()?)?,
            )
        }
    };
    let mut found = gpus.iter().filter(|gpu| {
        address(gpu).is_some_and(|at| at.1 == bus && domain.is_none_or(|domain| domain == at.0))
    });
    let first = found.next()?;
    found.next().is_none().then_some(first)
}
