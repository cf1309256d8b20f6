//! Checks what a source reported and derives the rest of the document from it.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use crate::{
    Edge, Fabric, Gpu, Invalid, Link, MAX_GPUS, NodeTopologySpec, Path, PathClass, RemoteKind, Via,
    bandwidth, domains,
};

impl NodeTopologySpec {
    /// Checks what the source reported about the node `node` and derives the rest.
    ///
    /// If links are known and no edge is given, edges are derived from the GPUs' links.
    /// Each pair gets a path: its edge, else the given path, else [`bandwidth::assumed`]
    /// for `SYS`. Domains are recomputed and keep their given fabric. All lists are
    /// sorted in ascending order.
    ///
    /// Returns warnings about data that is odd but usable, one sentence each: for
    /// example, links that only one of their ends reports.
    ///
    /// # Errors
    /// A contradiction, with its place in the document: two GPUs with the same index, an
    /// edge to a GPU that does not exist, a bandwidth of zero.
    pub fn complete(&mut self, node: &str) -> Result<Vec<String>, Invalid> {
        self.cap_models();
        self.check_names()?;
        self.check_gpus()?;
        self.check_edges()?;
        self.check_paths()?;
        self.check_the_rest()?;
        self.gpus.sort_by_key(|gpu| gpu.index);
        let mut odd = Vec::new();
        if self.edges.is_empty() {
            self.edges = edges_of_links(&self.gpus, &mut odd);
        }
        self.edges.sort_by_key(|edge| (edge.a, edge.b));
        self.fill_paths();
        let fabrics: BTreeMap<u32, Fabric> = self
            .domains
            .iter()
            .filter_map(|one| {
                Fabric::new(
                    &one.fabric.as_ref()?.cluster_uuid,
                    one.fabric.as_ref()?.clique,
                )
                .map(|fabric| (one, fabric))
            })
            .flat_map(|(one, fabric)| one.gpus.iter().map(move |&gpu| (gpu, fabric.clone())))
            .collect();
        let mut found = domains(node, &self.gpus, &self.edges, |gpu| {
            fabrics.get(&gpu).cloned()
        });
        for domain in &mut found {
            let known = self.domains.iter_mut();
            let mut known = known.filter(|one| one.gpus == domain.gpus);
            domain.faults = known
                .next()
                .map_or_else(Vec::new, |one| mem::take(&mut one.faults));
        }
        self.domains = found;
        Ok(odd)
    }

    /// Shortens what only describes: NVML has at most 96 characters for a model
    /// (`NVML_DEVICE_NAME_V2_BUFFER_SIZE`).
    fn cap_models(&mut self) {
        let models = self.gpus.iter_mut().filter_map(|gpu| gpu.model.as_mut());
        for model in models {
            if let Some((end, _)) = model.char_indices().nth(MAX_MODEL) {
                model.truncate(end);
            }
        }
    }

    /// Checks the lengths of what names something: shortened, it would name something else.
    fn check_names(&self) -> Result<(), Invalid> {
        let check = |at: String, name: Option<&String>| match name {
            Some(name) if name.len() > MAX_NAME => {
                let reason = format!("{} bytes; a name has at most {MAX_NAME}", name.len());
                Err(Invalid::new(at, reason))
            }
            _ => Ok(()),
        };
        for (n, gpu) in self.gpus.iter().enumerate() {
            check(format!("spec.gpus[{n}].uuid"), gpu.uuid.as_ref())?;
            check(format!("spec.gpus[{n}].pciBusId"), gpu.pci_bus_id.as_ref())?;
            for (m, link) in gpu.links.iter().flatten().enumerate() {
                let remote = link.remote.as_ref();
                let address = remote.and_then(|remote| remote.pci_bus_id.as_ref());
                let at = format!("spec.gpus[{n}].links[{m}].remote.pciBusId");
                check(at, address)?;
            }
        }
        let chassis = self.tray.as_ref().map(|tray| &tray.chassis);
        check("spec.tray.chassis".to_owned(), chassis)?;
        for (n, nic) in self.nics.iter().enumerate() {
            check(format!("spec.nics[{n}].name"), Some(&nic.name))?;
            check(format!("spec.nics[{n}].pciBusId"), nic.pci_bus_id.as_ref())?;
            check(format!("spec.nics[{n}].guid"), nic.guid.as_ref())?;
        }
        for (n, domain) in self.domains.iter().enumerate() {
            let fabric = domain.fabric.as_ref().map(|fabric| &fabric.cluster_uuid);
            check(format!("spec.domains[{n}].fabric.clusterUuid"), fabric)?;
        }
        Ok(())
    }

    fn check_gpus(&self) -> Result<(), Invalid> {
        if self.gpus.len() > MAX_GPUS {
            let reason = format!(
                "{} GPUs; one node has at most {MAX_GPUS}: describe each node of a rack on its own",
                self.gpus.len()
            );
            return Err(Invalid::new("spec.gpus", reason));
        }
        let (mut indices, mut uuids, mut addresses) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for (n, gpu) in self.gpus.iter().enumerate() {
            let at = |key: &str| format!("spec.gpus[{n}].{key}");
            if !indices.insert(gpu.index) {
                return Err(Invalid::new(
                    at("index"),
                    format!("duplicate GPU {}", gpu.index),
                ));
            }
            if let Some(uuid) = &gpu.uuid
                && !uuids.insert(uuid)
            {
                return Err(Invalid::new(at("uuid"), format!("duplicate GPU {uuid}")));
            }
            if let Some(address) = &gpu.pci_bus_id
                && !addresses.insert(bus_id(address))
            {
                return Err(Invalid::new(
                    at("pciBusId"),
                    format!("duplicate GPU at {address}"),
                ));
            }
            check_links(gpu.links.as_deref().unwrap_or_default(), &at("links"))?;
        }
        Ok(())
    }

    fn check_edges(&self) -> Result<(), Invalid> {
        let mut seen = BTreeSet::new();
        for (n, edge) in self.edges.iter().enumerate() {
            let at = format!("spec.edges[{n}]");
            self.check_pair(edge.a, edge.b, &at)?;
            if !seen.insert((edge.a, edge.b)) {
                return Err(Invalid::new(
                    at,
                    format!("duplicate edge {}-{}", edge.a, edge.b),
                ));
            }
            check_rate(edge.bytes_per_second, &at)?;
            if edge.links == 0 {
                return Err(Invalid::new(
                    format!("{at}.links"),
                    "0 links; omit an edge without links",
                ));
            }
            if edge.bytes_per_second < u64::from(edge.links) {
                let reason = format!("{} links with under 1 byte per second each", edge.links);
                return Err(Invalid::new(format!("{at}.links"), reason));
            }
        }
        Ok(())
    }

    fn check_paths(&self) -> Result<(), Invalid> {
        let mut seen = BTreeSet::new();
        let edges: BTreeSet<_> = self.edges.iter().map(|edge| (edge.a, edge.b)).collect();
        let links = self
            .gpus
            .iter()
            .any(|gpu| gpu.links.as_ref().is_some_and(|l| !l.is_empty()));
        for (n, path) in self.paths.iter().enumerate() {
            let at = format!("spec.paths[{n}]");
            self.check_pair(path.a, path.b, &at)?;
            if !seen.insert((path.a, path.b)) {
                return Err(Invalid::new(
                    at,
                    format!("duplicate path {}-{}", path.a, path.b),
                ));
            }
            check_rate(path.bytes_per_second, &at)?;
            let derived = self.edges.is_empty() && links;
            if path.class == PathClass::Nvlink && !derived && !edges.contains(&(path.a, path.b)) {
                let reason = format!("NVLINK, but spec.edges has no edge {}-{}", path.a, path.b);
                return Err(Invalid::new(format!("{at}.class"), reason));
            }
        }
        Ok(())
    }

    fn check_the_rest(&self) -> Result<(), Invalid> {
        let lists = self.domains.iter().map(|one| &one.gpus).enumerate();
        let lists = lists.map(|(n, gpus)| (format!("spec.domains[{n}].gpus"), gpus));
        let nics = self.nics.iter().map(|one| &one.gpus).enumerate();
        let nics = nics.map(|(n, gpus)| (format!("spec.nics[{n}].gpus"), gpus));
        for (at, gpus) in lists.chain(nics) {
            for &gpu in gpus {
                self.check_exists(gpu, &at)?;
            }
        }
        Ok(())
    }

    fn check_pair(&self, a: u32, b: u32, at: &str) -> Result<(), Invalid> {
        if a >= b {
            let reason = format!("a = {a}, b = {b}: a must be less than b");
            return Err(Invalid::new(format!("{at}.a"), reason));
        }
        self.check_exists(a, &format!("{at}.a"))?;
        self.check_exists(b, &format!("{at}.b"))
    }

    fn check_exists(&self, gpu: u32, at: &str) -> Result<(), Invalid> {
        if self.gpus.iter().any(|one| one.index == gpu) {
            return Ok(());
        }
        Err(Invalid::new(at, format!("GPU {gpu} is not in spec.gpus")))
    }

    /// Sets one path for each pair: its NVLink edge if there is one.
    fn fill_paths(&mut self) {
        let given: BTreeMap<_, _> = self.paths.drain(..).map(|p| ((p.a, p.b), p)).collect();
        let edges: BTreeMap<_, _> = self.edges.iter().map(|e| ((e.a, e.b), e)).collect();
        for (n, a) in self.gpus.iter().enumerate() {
            for b in &self.gpus[n + 1..] {
                let pair = (a.index, b.index);
                let path = match (edges.get(&pair), given.get(&pair)) {
                    (Some(edge), given) => Path {
                        class: PathClass::Nvlink,
                        bytes_per_second: edge.bytes_per_second,
                        assumed: given.is_some_and(|path| path.assumed),
                        a: pair.0,
                        b: pair.1,
                    },
                    // A given NVLINK path without an edge means that its links are down now.
                    (None, Some(path)) if path.class != PathClass::Nvlink => path.clone(),
                    (None, _) => Path {
                        class: PathClass::Sys,
                        bytes_per_second: bandwidth::assumed(PathClass::Sys),
                        assumed: true,
                        a: pair.0,
                        b: pair.1,
                    },
                };
                self.paths.push(path);
            }
        }
    }
}

/// The most characters of a model that are kept.
const MAX_MODEL: usize = 128;
/// The most bytes of a name, such as a UUID, a PCI address or that of a NIC.
const MAX_NAME: usize = 256;

/// No path of a node reaches this rate: a petabyte per second.
const TOO_FAST: u64 = 1_000_000_000_000_000;

fn check_rate(bytes_per_second: u64, at: &str) -> Result<(), Invalid> {
    let reason = match bytes_per_second {
        0 => "0; omit an edge or path of unknown bandwidth",
        TOO_FAST.. => "a petabyte per second or more; the unit is bytes per second",
        _ => return Ok(()),
    };
    Err(Invalid::new(format!("{at}.bytesPerSecond"), reason))
}

fn check_links(links: &[Link], at: &str) -> Result<(), Invalid> {
    let mut seen = BTreeSet::new();
    match links.iter().position(|link| !seen.insert(link.index)) {
        Some(n) => {
            let reason = format!("duplicate link {}", links[n].index);
            Err(Invalid::new(format!("{at}[{n}].index"), reason))
        }
        None => Ok(()),
    }
}

/// Normalizes a PCI address: lower case, with the domain as wide as the kernel writes it
/// (NVML writes eight digits).
#[must_use]
pub fn bus_id(address: &str) -> String {
    let address = address.to_ascii_lowercase();
    match address.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 => {
            format!("{}:{rest}", domain.strip_prefix("0000").unwrap_or(domain))
        }
        _ => address,
    }
}

/// Returns the edges that the GPUs' active links form. A GPU with MIG enabled has none.
fn edges_of_links(gpus: &[Gpu], odd: &mut Vec<String>) -> Vec<Edge> {
    let mut edges = Vec::new();
    for (n, a) in gpus.iter().enumerate() {
        for b in &gpus[n + 1..] {
            if !a.mig_enabled && !b.mig_enabled {
                edges.extend(edge_of_links(a, b, odd));
            }
        }
    }
    edges
}

fn edge_of_links(a: &Gpu, b: &Gpu, odd: &mut Vec<String>) -> Option<Edge> {
    let (there, back) = (direct_links(a, b), direct_links(b, a));
    if there != back {
        odd.push(format!(
            "GPU {} reports {there} NVLinks to GPU {}, which reports {back} back: using the smaller",
            a.index, b.index
        ));
    }
    let (via, links) = match there.min(back) {
        0 => (Via::Switch, switch_links(a).min(switch_links(b))),
        direct => (Via::Direct, direct),
    };
    let rate = |gpu: &Gpu| bandwidth::nvlink(gpu.model.as_deref(), links, slowest_link(gpu));
    (links > 0).then(|| Edge {
        a: a.index,
        b: b.index,
        via,
        links,
        bytes_per_second: rate(a).min(rate(b)),
    })
}

fn active(gpu: &Gpu) -> impl Iterator<Item = &Link> {
    gpu.links.iter().flatten().filter(|link| link.up)
}

pub(crate) fn slowest_link(gpu: &Gpu) -> Option<u64> {
    active(gpu)
        .filter_map(|link| link.bytes_per_second)
        .filter(|&rate| rate > 0)
        .min()
}

/// Returns the number of active links of `from` that, as `from` reports them, end on `to`.
#[must_use]
pub fn direct_links(from: &Gpu, to: &Gpu) -> u32 {
    let Some(to) = to.pci_bus_id.as_deref().map(bus_id) else {
        return 0;
    };
    let ends_there = |link: &&Link| {
        let remote = link
            .remote
            .as_ref()
            .filter(|remote| remote.kind != RemoteKind::Switch);
        let address = remote.and_then(|remote| remote.pci_bus_id.as_deref());
        address.is_some_and(|address| bus_id(address) == to)
    };
    count(active(from).filter(ends_there))
}

/// Returns the number of active links of `gpu` that end on a switch.
pub(crate) fn switch_links(gpu: &Gpu) -> u32 {
    let on_switch = |link: &&Link| {
        link.remote
            .as_ref()
            .is_some_and(|remote| remote.kind == RemoteKind::Switch)
    };
    count(active(gpu).filter(on_switch))
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    items.fold(0, |n, _| n + 1)
}
