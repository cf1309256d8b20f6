//! A node: its GPUs, its domains, and who holds which GPUs.

use std::{collections::HashSet, sync::Arc};

use nvlink_runtime::words::count;
use nvlink_topology::{
    Allocation, Domain, Interconnect, NodeTopologySpec, Tray, descriptor::Capacity, missing_gpus,
    missing_links, own_missing_links,
};

use super::{
    hardware::{Hardware, Hardwares},
    nearest::position,
    nic_slice::is_device,
};

/// What a node published. Memory: about 2 KiB for 8 GPUs.
#[derive(Debug)]
pub struct Node {
    pub gpus: Vec<Gpu>,
    /// GPUs that do not answer; they are not among `gpus`.
    pub lost: Vec<Lost>,
    /// Number of GPUs that its board has and that are neither among `gpus` nor among `lost`; 0 if
    /// it is not known.
    pub missing: usize,
    /// What its benchmarks reach of what its siblings reach, if that is less; a ratio.
    pub slow: Option<f64>,
    /// Its place in the rack, if its driver reports it.
    pub tray: Option<Tray>,
    /// The domains, with the indices of their GPUs on this node.
    pub domains: Vec<Domain>,
    /// How the GPUs are connected; `None` if the source cannot determine it.
    pub interconnect: Option<Interconnect>,
    /// The share of one GPU in the RDMA devices, bytes per second in one direction; `None` if it
    /// is not known.
    pub network: Option<u64>,
    /// The RDMA devices that its exporter sees, with the positions of their PCI addresses.
    pub(super) nics: Vec<(u64, Box<str>)>,
    /// Whether MIG splits a GPU.
    pub mig: bool,
    /// Who holds which GPUs by its exporter's report; `None` if it reports nothing. Others may know
    /// more: see [`super::OfNode::holders`].
    pub allocations: Option<Vec<Allocation>>,
    /// The graph, and what is known about placements on it; shared by nodes with the same
    /// graph.
    pub hardware: Arc<Hardware>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    pub index: u32,
    pub uuid: Option<String>,
    /// The position of its PCI address.
    pub(super) at: Option<u64>,
    pub model: Option<String>,
    /// The NVLinks that are up, and those that should be up; `None` if they are not known.
    pub links: Option<Links>,
    /// The number of links that it lacks and other GPUs of its domain have; 0 if it is not known.
    pub own_missing: u64,
    /// Why its exporter marks it as broken, such as `xid-74`.
    pub faults: Vec<String>,
}

/// The marks of broken GPUs in a document: the keys `faults` of GPUs, and `lost`. They are
/// parsed apart from the rest, because a document of another version may not have them.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default)]
pub struct Marks {
    pub gpus: Vec<Marked>,
    pub lost: Vec<Lost>,
}

#[derive(Clone, Debug, serde::Deserialize)]
pub struct Marked {
    pub index: u32,
    #[serde(default)]
    pub faults: Vec<String>,
}

/// A GPU that answered earlier and does not answer now.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Lost {
    /// Its last known index.
    pub index: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Links {
    pub up: u64,
    pub expected: u64,
}

impl Gpu {
    /// Returns the number of links that should be up and are not; 0 if it is not known.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.links
            .map_or(0, |links| links.expected.saturating_sub(links.up))
    }

    /// Returns in words what is broken; empty if nothing is known to be.
    #[must_use]
    pub fn broken(&self) -> Vec<String> {
        let missing = usize::try_from(self.own_missing).unwrap_or(usize::MAX);
        let links = (missing > 0).then(|| format!("{} missing", count(missing, "link")));
        // The count of the links says more than the mark.
        let told = |fault: &&String| missing == 0 || *fault != "missing-links";
        let faults = self.faults.iter().filter(told).cloned();
        links.into_iter().chain(faults).collect()
    }
}

impl Node {
    /// Reduces a document to what is needed.
    pub(super) fn new(
        spec: &NodeTopologySpec,
        marks: Marks,
        allocations: Option<Vec<Allocation>>,
        hardwares: &mut Hardwares,
    ) -> Self {
        let gpus = spec.gpus.iter().zip(own_missing_links(spec));
        let gpus = gpus.map(|(gpu, own_missing)| Gpu {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            at: gpu.pci_bus_id.as_deref().map(position),
            model: gpu.model.clone(),
            links: links(gpu, spec),
            own_missing: own_missing.unwrap_or(0),
            faults: marks
                .gpus
                .iter()
                .filter(|mark| mark.index == gpu.index)
                .flat_map(|mark| mark.faults.clone())
                .collect(),
        });
        let allocations = allocations.map(|mut held| {
            for one in &mut held {
                // Nobody needs it.
                one.free_when_placed = None;
            }
            held
        });
        let missing = usize::try_from(missing_gpus(spec).unwrap_or(0)).unwrap_or(usize::MAX);
        Self {
            gpus: gpus.collect(),
            missing: missing.saturating_sub(marks.lost.len()),
            lost: marks.lost,
            slow: spec.slow().map(|one| one.ratio),
            tray: spec.tray.clone(),
            domains: spec.domains.clone(),
            interconnect: spec.interconnect(),
            network: Capacity::of(spec).inter_node,
            nics: nics(spec),
            mig: spec.gpus.iter().any(|gpu| gpu.mig_enabled),
            allocations,
            hardware: hardwares.of(spec),
        }
    }

    /// Returns those of `gpus` that are not marked as broken.
    #[must_use]
    pub fn healthy(&self, gpus: &[u32]) -> Vec<u32> {
        let works = self.gpus.iter().filter(|gpu| gpu.faults.is_empty());
        let works: HashSet<u32> = works.map(|gpu| gpu.index).collect();
        gpus.iter()
            .copied()
            .filter(|gpu| works.contains(gpu))
            .collect()
    }

    /// Returns the highest number of `gpus` in one domain; a GPU outside all domains is a set of one.
    #[must_use]
    pub fn largest_set(&self, gpus: &[u32]) -> usize {
        let inside = |domain: &Domain| gpus.iter().filter(|gpu| domain.gpus.contains(gpu)).count();
        let most = self.domains.iter().map(inside).max().unwrap_or(0);
        most.max(usize::from(!gpus.is_empty()))
    }

    /// Returns the domain of a GPU.
    #[must_use]
    pub fn domain_of(&self, gpu: u32) -> Option<&Domain> {
        self.domains.iter().find(|one| one.gpus.contains(&gpu))
    }

    /// Returns the number of GPUs of the largest domain on this node; 1 without NVLink.
    #[must_use]
    pub fn largest_domain(&self) -> usize {
        let sizes = self.domains.iter().map(|one| one.gpus.len());
        sizes.max().unwrap_or(usize::from(!self.gpus.is_empty()))
    }

    /// Returns the models of the GPUs, each once, in the order of the GPUs.
    #[must_use]
    pub fn models(&self) -> Vec<&str> {
        let mut models: Vec<&str> = Vec::new();
        for model in self.gpus.iter().filter_map(|gpu| gpu.model.as_deref()) {
            if !models.contains(&model) {
                models.push(model);
            }
        }
        models
    }
}

fn nics(spec: &NodeTopologySpec) -> Vec<(u64, Box<str>)> {
    let named = spec.nics.iter().filter(|nic| is_device(&nic.name));
    let known = named.filter_map(|nic| Some((position(nic.pci_bus_id.as_deref()?), &*nic.name)));
    known.map(|(at, name)| (at, name.into())).collect()
}

fn links(gpu: &nvlink_topology::Gpu, spec: &NodeTopologySpec) -> Option<Links> {
    let all = gpu.links.as_ref()?;
    let up = all.iter().filter(|link| link.up).count() as u64;
    let missing = missing_links(gpu, &spec.gpus).unwrap_or(0);
    Some(Links {
        up,
        expected: up + missing,
    })
}
