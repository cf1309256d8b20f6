//! A node's GPUs in the form that the search needs: positions, a matrix of costs, domains
//! as sets.

mod sharing;

use crate::{
    Edge, GpuSet, Invalid, MAX_GPUS, NoPlacement, NodeTopologySpec, PathClass, Via, bandwidth,
    complete::{slowest_link, switch_links},
    weight::{Capacity, Weight, weight_of},
};
use sharing::Group;

/// The maximum number of parallel links of a pair that the count of rings considers. No
/// GPU up to Blackwell has more than 18 links in total.
const MOST_LINKS: u64 = 64;

/// The GPUs of one node, or of several nodes of one fabric, in the form that the search needs.
///
/// GPUs are *positions* `0..len()` in the graph, in the order of their indices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Graph {
    indices: Vec<u32>,
    /// NUMA node of each GPU, as a small number; GPUs without one share number 0.
    numa: Vec<u8>,
    /// Row-major `len × len`.
    weights: Vec<Weight>,
    bandwidths: Vec<u64>,
    /// For each GPU, the GPUs to which an NVLink edge connects it.
    neighbours: Vec<GpuSet>,
    /// For each GPU, the neighbours to which links connect it without a switch.
    direct: Vec<GpuSet>,
    /// The number of links of each direct edge, in units of `link`; row-major.
    links: Vec<u8>,
    /// Usable bandwidth of one direct link, bytes per second; 0 if there are no direct links.
    link: u64,
    /// The capacity of each GPU's links to the switches, in one direction; `None` if it
    /// has none.
    ports: Vec<Option<Capacity>>,
    /// The links that PCIe paths share.
    groups: Vec<Group>,
    domains: Vec<(String, GpuSet)>,
}

impl Graph {
    /// Returns the graph of a node.
    ///
    /// # Errors
    /// When the document has more than [`MAX_GPUS`] GPUs, or has edges, paths or domains
    /// that name a missing GPU. A document that went through
    /// [`NodeTopologySpec::complete`] has neither.
    pub fn new(spec: &NodeTopologySpec) -> Result<Self, Invalid> {
        let mut indices: Vec<u32> = spec.gpus.iter().map(|gpu| gpu.index).collect();
        indices.sort_unstable();
        indices.dedup();
        if indices.len() > MAX_GPUS || indices.len() != spec.gpus.len() {
            let reason = format!(
                "{} GPUs; expected at most {MAX_GPUS} with unique indices",
                spec.gpus.len()
            );
            return Err(Invalid::new("spec.gpus", reason));
        }
        let mut graph = Self {
            numa: numa_numbers(spec, &indices),
            ..Self::unconnected(indices.len())
        };
        graph.indices = indices;
        graph.connect(spec)?;
        graph.groups = sharing::groups(&graph, spec);
        for (at, domain) in spec.domains.iter().enumerate() {
            let set = graph.set(&domain.gpus).map_err(|reason| {
                Invalid::new(format!("spec.domains[{at}].gpus"), reason.to_string())
            })?;
            graph.domains.push((domain.id.clone(), set));
        }
        Ok(graph)
    }

    /// Returns `gpus` GPUs, at most [`MAX_GPUS`], of whose connections nothing is known:
    /// the slowest path joins each pair, and none is in a domain.
    #[must_use]
    pub fn unconnected(gpus: usize) -> Self {
        let n = gpus.min(MAX_GPUS);
        let mut graph = Self {
            // At most MAX_GPUS.
            indices: (0..n).filter_map(|at| u32::try_from(at).ok()).collect(),
            numa: vec![0; n],
            weights: vec![0; n * n],
            bandwidths: vec![0; n * n],
            neighbours: vec![GpuSet::EMPTY; n],
            direct: vec![GpuSet::EMPTY; n],
            links: vec![0; n * n],
            link: 0,
            ports: vec![None; n],
            groups: Vec::new(),
            domains: Vec::new(),
        };
        graph.assume_paths();
        graph
    }

    fn assume_paths(&mut self) {
        for a in 0..self.len() {
            for b in 0..a {
                self.set_path(a, b, bandwidth::assumed(PathClass::Sys));
            }
        }
    }

    fn connect(&mut self, spec: &NodeTopologySpec) -> Result<(), Invalid> {
        for (at, path) in spec.paths.iter().enumerate() {
            let (a, b) = self.pair(path.a, path.b, || format!("spec.paths[{at}]"))?;
            self.set_path(a, b, path.bytes_per_second);
        }
        let direct = spec.edges.iter().filter(|edge| edge.via == Via::Direct);
        self.link = direct.map(one_link).min().unwrap_or(0);
        for (at, edge) in spec.edges.iter().enumerate() {
            let (a, b) = self.pair(edge.a, edge.b, || format!("spec.edges[{at}]"))?;
            self.set_path(a, b, edge.bytes_per_second);
            self.set_edge(a, b, edge);
            self.set_edge(b, a, edge);
        }
        if let [alone] = &spec.gpus[..] {
            // Its edges are on other nodes.
            let links = switch_links(alone);
            let rate = bandwidth::nvlink(alone.model.as_deref(), links, slowest_link(alone));
            self.ports[0] = (links > 0).then(|| Capacity::new(rate));
        }
        Ok(())
    }

    /// Records an edge for the GPU at one end of it.
    fn set_edge(&mut self, from: usize, to: usize, edge: &Edge) {
        self.neighbours[from].insert(to);
        if edge.via == Via::Direct {
            self.direct[from].insert(to);
            let links = (edge.bytes_per_second / self.link.max(1)).min(MOST_LINKS);
            let n = self.len();
            // At most MOST_LINKS.
            self.links[from * n + to] = u8::try_from(links).unwrap_or(u8::MAX);
        } else {
            // An edge is as fast as the slower of its two ports, so the port is at least
            // as fast as the GPU's fastest edge.
            let port = Capacity::new(edge.bytes_per_second);
            let known = self.ports[from].get_or_insert(port);
            *known = (*known).max(port);
        }
    }

    fn pair(&self, a: u32, b: u32, at: impl Fn() -> String) -> Result<(usize, usize), Invalid> {
        match (self.position(a), self.position(b)) {
            (Some(a), Some(b)) if a != b => Ok((a, b)),
            _ => Err(Invalid::new(
                at(),
                format!("{a}-{b} is not a pair of this node's GPUs"),
            )),
        }
    }

    fn set_path(&mut self, a: usize, b: usize, bytes_per_second: u64) {
        let n = self.len();
        for at in [a * n + b, b * n + a] {
            self.weights[at] = weight_of(bytes_per_second);
            self.bandwidths[at] = bytes_per_second;
        }
    }

    /// Returns the same graph with numbers in place of the ids of its domains, so that
    /// nodes with equal GPUs have equal graphs.
    #[must_use]
    pub fn unnamed(&self) -> Self {
        let sets = self.domains.iter().enumerate();
        let domains = sets.map(|(at, (_, set))| (at.to_string(), *set)).collect();
        Self {
            domains,
            ..self.clone()
        }
    }

    /// Returns the number of GPUs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    /// Reports whether the node has no GPU.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// Returns all GPUs.
    #[must_use]
    pub fn all(&self) -> GpuSet {
        GpuSet::first(self.len())
    }

    /// Returns the GPUs with these indices.
    ///
    /// # Errors
    /// [`NoPlacement::UnknownGpu`] for an index that the node does not have.
    pub fn set(&self, indices: &[u32]) -> Result<GpuSet, NoPlacement> {
        let position = |&gpu: &u32| self.position(gpu).ok_or(NoPlacement::UnknownGpu { gpu });
        indices.iter().map(position).collect()
    }

    /// Returns the index of the GPU at `position`.
    ///
    /// # Panics
    /// When there is no such position.
    #[must_use]
    pub fn index(&self, position: usize) -> u32 {
        self.indices[position]
    }

    pub(crate) fn position(&self, index: u32) -> Option<usize> {
        self.indices.binary_search(&index).ok()
    }

    /// Returns the usable bandwidth between two different GPUs, bytes per second in one
    /// direction.
    ///
    /// # Panics
    /// When there is no such position.
    #[must_use]
    pub fn bytes_per_second(&self, a: usize, b: usize) -> u64 {
        self.bandwidths[a * self.len() + b]
    }

    /// Returns the ids of the domains and their GPUs.
    pub fn domains(&self) -> impl Iterator<Item = (&str, GpuSet)> {
        self.domains.iter().map(|(id, set)| (id.as_str(), *set))
    }

    pub(crate) fn weight(&self, a: usize, b: usize) -> Weight {
        self.weights[a * self.indices.len() + b]
    }

    pub(crate) fn row(&self, a: usize) -> &[Weight] {
        let n = self.indices.len();
        &self.weights[a * n..][..n]
    }

    pub(crate) fn numa(&self, position: usize) -> u8 {
        self.numa[position]
    }

    pub(crate) fn neighbours(&self, position: usize) -> GpuSet {
        self.neighbours[position]
    }

    /// Returns the GPUs that links connect to `position` without a switch.
    pub(crate) fn direct(&self, position: usize) -> GpuSet {
        self.direct[position]
    }

    /// Returns the number of links from `a` to `b` without a switch, each with the
    /// bandwidth [`Self::link`].
    pub(crate) fn links(&self, a: usize, b: usize) -> u8 {
        self.links[a * self.len() + b]
    }

    /// Returns the usable bandwidth of one direct link, bytes per second in one direction.
    pub(crate) fn link(&self) -> u64 {
        self.link
    }

    /// Returns the capacity of the GPU's links to the switches, in one direction.
    pub(crate) fn port(&self, position: usize) -> Option<Capacity> {
        self.ports[position]
    }

    /// Returns the usable bandwidth of the fastest of the GPUs' links to the switches together,
    /// bytes per second in one direction; `None` if no GPU has such links.
    pub(crate) fn fastest_port(&self) -> Option<u64> {
        let ports = self.ports.iter().flatten();
        ports.map(|port| port.bytes_per_second).max()
    }

    /// Reports whether two GPUs use resources of the same kinds and sizes.
    pub(crate) fn alike(&self, a: usize, b: usize) -> bool {
        let both: GpuSet = [a, b].into_iter().collect();
        let direct = |gpu: usize| self.direct[gpu].difference(both);
        let alone = |group: &Group| group.members.len() == 1;
        let shared = |group: &Group| group.members.contains(a) == group.members.contains(b);
        direct(a) == direct(b)
            && self.ports[a] == self.ports[b]
            && self
                .groups
                .iter()
                .all(|group| alone(group) || shared(group))
            && self.own_uplink(a) == self.own_uplink(b)
    }

    fn own_uplink(&self, gpu: usize) -> Option<Capacity> {
        let own = |group: &&Group| group.members.len() == 1 && group.members.contains(gpu);
        self.groups.iter().find(own).map(|group| group.uplink)
    }

    /// Returns the groups of GPUs whose PCIe paths share a link.
    pub(crate) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Returns the GPUs of `job` (relays) through which two GPUs without an edge reach
    /// each other over two direct edges, limited to the widest such paths, and the weight
    /// of those paths.
    ///
    /// NCCL uses the same routing (`PATH_NVB`: `ncclTopoSetPaths` in
    /// `src/graph/paths.cc`). Such a path leads through one GPU, over NVLink alone, and
    /// never through a GPU outside the job, because NCCL's topology contains only the
    /// job's GPUs. NCCL prefers it to PCIe because it counts fewer hops. Which of several
    /// equal paths NCCL uses depends on the order of the links, which is unknown here.
    pub(crate) fn relays(&self, a: usize, b: usize, job: GpuSet) -> Option<(GpuSet, Weight)> {
        if self.neighbours[a].contains(b) {
            return None;
        }
        let both = self.direct[a]
            .intersection(self.direct[b])
            .intersection(job);
        let way = |relay: usize| self.weight(a, relay).max(self.weight(relay, b));
        let widest = both.iter().map(way).min()?;
        Some((
            both.iter().filter(|&relay| way(relay) == widest).collect(),
            widest,
        ))
    }
}

/// Returns the usable bandwidth of one link of an edge.
fn one_link(edge: &Edge) -> u64 {
    edge.bytes_per_second / u64::from(edge.links.max(1))
}

/// Returns the NUMA node of each GPU, renumbered from 0 in the order of their first GPU.
fn numa_numbers(spec: &NodeTopologySpec, indices: &[u32]) -> Vec<u8> {
    let mut known: Vec<Option<u32>> = Vec::new();
    let numa = |index: &u32| {
        let node = spec
            .gpus
            .iter()
            .find(|gpu| gpu.index == *index)
            .and_then(|gpu| gpu.numa_node);
        let number = known
            .iter()
            .position(|&one| one == node)
            .unwrap_or_else(|| {
                known.push(node);
                known.len() - 1
            });
        // There are at most MAX_GPUS different nodes.
        u8::try_from(number).unwrap_or(u8::MAX)
    };
    indices.iter().map(numa).collect()
}
