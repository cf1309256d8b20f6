//! What follows from the spec of a node, and how it is written.

use std::collections::HashSet;

use serde::{Deserialize, Serialize, Serializer, ser::SerializeStruct};
use strum::IntoStaticStr;

use super::{
    Domain, Edge, Gpu, NodeTopologySpec, NodeTopologyStatus, Path, PathClass, Source, SourceKind,
    Via,
};

impl Serialize for NodeTopologySpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut spec = serializer.serialize_struct("NodeTopologySpec", 10)?;
        spec.serialize_field("source", &self.source)?;
        match &self.tray {
            None => spec.skip_field("tray")?,
            Some(tray) => spec.serialize_field("tray", tray)?,
        }
        spec.serialize_field("gpus", &self.gpus)?;
        match self.lost.is_empty() {
            false => spec.serialize_field("lost", &self.lost)?,
            true => spec.skip_field("lost")?,
        }
        let known = self.knows_nvlink();
        // An empty list would mean that there are none.
        match known {
            true => spec.serialize_field("edges", &self.edges)?,
            false => spec.skip_field("edges")?,
        }
        spec.serialize_field("paths", &self.paths)?;
        match known {
            true => spec.serialize_field("domains", &self.domains)?,
            false => spec.skip_field("domains")?,
        }
        spec.serialize_field("nics", &self.nics)?;
        match self.calibration.is_empty() {
            true => spec.skip_field("calibration")?,
            false => spec.serialize_field("calibration", &self.calibration)?,
        }
        match self.comparisons.is_empty() {
            true => spec.skip_field("comparisons")?,
            false => spec.serialize_field("comparisons", &self.comparisons)?,
        }
        spec.end()
    }
}

impl NodeTopologySpec {
    /// Returns the spec of a node with these GPUs, of which nothing else is known.
    #[must_use]
    pub fn of(source: Source, gpus: Vec<Gpu>) -> Self {
        Self {
            source,
            tray: None,
            gpus,
            lost: Vec::new(),
            edges: Vec::new(),
            paths: Vec::new(),
            domains: Vec::new(),
            nics: Vec::new(),
            calibration: Vec::new(),
            comparisons: Vec::new(),
        }
    }

    /// Returns the GPU with this index.
    #[must_use]
    pub fn gpu(&self, index: u32) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.index == index)
    }

    /// Returns the domain of a GPU.
    #[must_use]
    pub fn domain_of(&self, gpu: u32) -> Option<&Domain> {
        self.domains.iter().find(|one| one.gpus.contains(&gpu))
    }

    /// Returns the edge between two GPUs, in whatever order.
    #[must_use]
    pub fn edge(&self, a: u32, b: u32) -> Option<&Edge> {
        let pair = (a.min(b), a.max(b));
        self.edges.iter().find(|edge| (edge.a, edge.b) == pair)
    }

    /// Returns the path between two GPUs, in whatever order.
    #[must_use]
    pub fn path(&self, a: u32, b: u32) -> Option<&Path> {
        let pair = (a.min(b), a.max(b));
        self.paths.iter().find(|path| (path.a, path.b) == pair)
    }

    /// Returns the model of `gpus`; `None` if they differ or one does not report it.
    #[must_use]
    pub fn model_of(&self, gpus: &[u32]) -> Option<&str> {
        let mut models = gpus.iter().map(|&gpu| self.gpu(gpu)?.model.as_deref());
        let first = models.next()??;
        models.all(|model| model == Some(first)).then_some(first)
    }

    /// Reports whether the source can determine how NVLink connects the GPUs. If not,
    /// empty edges and domains mean nothing.
    #[must_use]
    pub fn knows_nvlink(&self) -> bool {
        let seen = |gpu: &Gpu| gpu.links.is_some() || gpu.mig_enabled;
        !self.edges.is_empty() || self.gpus.iter().all(seen)
    }

    /// Reports whether the source can determine if MIG splits `gpu`. The driver and the
    /// simulator can, as can files that contain data that only those two know.
    #[must_use]
    pub fn knows_mig(&self, gpu: &Gpu) -> bool {
        gpu.mig_enabled
            || match self.source.kind {
                SourceKind::Nvml | SourceKind::Sim => true,
                SourceKind::File => gpu.uuid.is_some() && gpu.links.is_some(),
                SourceKind::Sysfs => false,
            }
    }

    /// Returns the GPUs that no allocation of `status` names, by ascending index.
    #[must_use]
    pub fn free_gpus(&self, status: Option<&NodeTopologyStatus>) -> Vec<u32> {
        let allocations = || status.into_iter().flat_map(|status| &status.allocations);
        let taken = |gpu: &u32| allocations().any(|one| one.gpus.contains(gpu));
        let indices = self.gpus.iter().map(|gpu| gpu.index);
        indices.filter(|gpu| !taken(gpu)).collect()
    }

    /// Returns how the GPUs are connected, as in the label `interconnect`; `None` if the
    /// source cannot determine it.
    #[must_use]
    pub fn interconnect(&self) -> Option<Interconnect> {
        let via = |wanted: fn(Via) -> bool| self.edges.iter().any(|edge| wanted(edge.via));
        if via(|via| matches!(via, Via::Switch | Via::Fabric)) {
            Some(Interconnect::Nvswitch)
        } else if via(|via| via == Via::Direct) {
            Some(Interconnect::Nvlink)
        } else {
            self.knows_nvlink().then_some(Interconnect::Pcie)
        }
    }

    /// Returns the number of GPUs in the largest domain on this node; 1 without NVLink,
    /// `None` if the source cannot determine it.
    #[must_use]
    pub fn largest_domain(&self) -> Option<usize> {
        let sizes = self.domains.iter().map(|domain| domain.gpus.len());
        sizes.max().or(self.knows_nvlink().then_some(1))
    }

    /// Returns the largest number of GPUs in one domain on this node that are not marked
    /// as broken; 1 if such GPUs are in no domain, 0 if there are none, `None` if the
    /// source cannot determine it.
    #[must_use]
    pub fn largest_healthy_domain(&self) -> Option<usize> {
        let broken: HashSet<u32> = self.broken_gpus().collect();
        let healthy = |gpu: &&u32| !broken.contains(gpu);
        let sizes = self.domains.iter();
        let sizes = sizes.map(|domain| domain.gpus.iter().filter(healthy).count());
        let alone = usize::from(broken.len() < self.gpus.len());
        let known = !self.domains.is_empty() || self.knows_nvlink();
        known.then(|| sizes.max().unwrap_or(0).max(alone))
    }

    /// Returns the class of the slowest path between two of `gpus`; `None` for fewer than two, and
    /// if a path is unknown. Where NVLinks are unknown, each path is: one may be better than PCIe.
    #[must_use]
    pub fn slowest_path(&self, gpus: &[u32]) -> Option<PathClass> {
        let held = |gpu: u32| gpus.contains(&gpu);
        let paths = self.paths.iter();
        let paths = paths.filter(|path| held(path.a) && held(path.b));
        let classes: Vec<_> = paths.map(|path| path.class).collect();
        let pairs = gpus.len() * gpus.len().saturating_sub(1) / 2;
        let known = classes.len() == pairs && self.knows_nvlink();
        classes.into_iter().max().filter(|_| known)
    }

    /// Returns the indices of the GPUs that are marked as broken, in the order of `gpus`.
    pub fn broken_gpus(&self) -> impl Iterator<Item = u32> {
        let broken = self.gpus.iter().filter(|gpu| !gpu.faults.is_empty());
        broken.map(|gpu| gpu.index)
    }
}

/// How the GPUs of a node are connected.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, IntoStaticStr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Interconnect {
    /// No NVLink.
    Pcie,
    /// NVLink from GPU to GPU.
    Nvlink,
    /// NVLink through switches.
    Nvswitch,
}

impl Gpu {
    /// Returns the line rate of all links that are up, in bytes per second; `None` if none is, or if the rate
    /// of one is unknown.
    #[must_use]
    pub fn line_rate(&self) -> Option<u64> {
        let links = self.links.iter().flatten();
        let mut up = links.filter(|link| link.up).peekable();
        up.peek()?;
        up.try_fold(0_u64, |sum, link| sum.checked_add(link.bytes_per_second?))
    }
}

impl Interconnect {
    /// Returns the word used in the label value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
