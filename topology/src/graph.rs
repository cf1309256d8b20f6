//! A node's GPUs as the search wants them: positions, a matrix of costs, domains as sets.

use crate::{GpuSet, Invalid, MAX_GPUS, NoPlacement, NodeTopologySpec, PathClass, bandwidth};

/// One byte over the path of two GPUs takes this many [`UNIT`]s.
///
/// Costs are whole numbers inside the search, so that equal costs are equal
/// whatever the order of the additions, and ties are real ties.
pub(crate) type Weight = u64;

/// Seconds in one unit of [`Weight`].
pub(crate) const UNIT: f64 = 1e-20;

/// Units in a second; a path slower than this many bytes per second divided by
/// [`MAX_WEIGHT`] is taken to be that slow.
const UNITS_PER_SECOND: u128 = 100_000_000_000_000_000_000;

/// A path of 10 MB/s: no sum over 128 GPUs with the largest volumes overflows 64 bits.
const MAX_WEIGHT: u128 = 10_000_000_000_000;

/// The GPUs of one node, or of several nodes of one fabric, ready to be searched.
///
/// GPUs are *positions* `0..len()` in here, in the order of their indices.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    indices: Vec<u32>,
    /// NUMA node of each GPU, as a small number; GPUs without one share number 0.
    numa: Vec<u8>,
    /// Row-major `len × len`.
    weights: Vec<Weight>,
    bandwidths: Vec<u64>,
    /// GPUs joined to each by an NVLink edge.
    neighbours: Vec<GpuSet>,
    domains: Vec<(String, GpuSet)>,
}

impl Graph {
    /// The graph of a node.
    ///
    /// # Errors
    /// When the document has more than [`MAX_GPUS`] GPUs, or edges, paths or
    /// domains that name a GPU it lacks. A document that went through
    /// [`NodeTopologySpec::complete`] has neither.
    pub fn new(spec: &NodeTopologySpec) -> Result<Self, Invalid> {
        let mut indices: Vec<u32> = spec.gpus.iter().map(|gpu| gpu.index).collect();
        indices.sort_unstable();
        indices.dedup();
        if indices.len() > MAX_GPUS || indices.len() != spec.gpus.len() {
            let reason = format!(
                "{} GPUs: at most {MAX_GPUS}, each index once",
                spec.gpus.len()
            );
            return Err(Invalid::new("spec.gpus", reason));
        }
        let n = indices.len();
        let mut graph = Self {
            numa: numa_numbers(spec, &indices),
            indices,
            weights: vec![0; n * n],
            bandwidths: vec![0; n * n],
            neighbours: vec![GpuSet::EMPTY; n],
            domains: Vec::new(),
        };
        graph.connect(spec)?;
        for (at, domain) in spec.domains.iter().enumerate() {
            let set = graph.set(&domain.gpus).map_err(|reason| {
                Invalid::new(format!("spec.domains[{at}].gpus"), reason.to_string())
            })?;
            graph.domains.push((domain.id.clone(), set));
        }
        Ok(graph)
    }

    fn connect(&mut self, spec: &NodeTopologySpec) -> Result<(), Invalid> {
        for a in 0..self.len() {
            for b in 0..a {
                self.set_path(a, b, bandwidth::assumed(PathClass::Sys));
            }
        }
        for (at, path) in spec.paths.iter().enumerate() {
            let (a, b) = self.pair(path.a, path.b, || format!("spec.paths[{at}]"))?;
            self.set_path(a, b, path.bytes_per_second);
        }
        for (at, edge) in spec.edges.iter().enumerate() {
            let (a, b) = self.pair(edge.a, edge.b, || format!("spec.edges[{at}]"))?;
            self.set_path(a, b, edge.bytes_per_second);
            self.neighbours[a].insert(b);
            self.neighbours[b].insert(a);
        }
        Ok(())
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
        let weight = (UNITS_PER_SECOND / u128::from(bytes_per_second.max(1))).min(MAX_WEIGHT);
        for at in [a * n + b, b * n + a] {
            // At most MAX_WEIGHT.
            self.weights[at] = u64::try_from(weight).unwrap_or(u64::MAX);
            self.bandwidths[at] = bytes_per_second;
        }
    }

    /// Number of GPUs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    /// The node has no GPU.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// All GPUs.
    #[must_use]
    pub fn all(&self) -> GpuSet {
        GpuSet::first(self.len())
    }

    /// The GPUs with these indices.
    ///
    /// # Errors
    /// [`NoPlacement::UnknownGpu`] for an index that the node does not have.
    pub fn set(&self, indices: &[u32]) -> Result<GpuSet, NoPlacement> {
        let position = |&gpu: &u32| self.position(gpu).ok_or(NoPlacement::UnknownGpu { gpu });
        indices.iter().map(position).collect()
    }

    /// The index of the GPU at `position`.
    ///
    /// # Panics
    /// When there is no such position.
    #[must_use]
    pub fn index(&self, position: usize) -> u32 {
        self.indices[position]
    }

    fn position(&self, index: u32) -> Option<usize> {
        self.indices.binary_search(&index).ok()
    }

    /// Usable bandwidth between two different GPUs, bytes per second in one direction.
    ///
    /// # Panics
    /// When there is no such position.
    #[must_use]
    pub fn bytes_per_second(&self, a: usize, b: usize) -> u64 {
        self.bandwidths[a * self.len() + b]
    }

    /// The domains, by id, and their GPUs.
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
}

/// NUMA nodes renumbered from 0, in the order of their first GPU.
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
        // At most MAX_GPUS different ones.
        u8::try_from(number).unwrap_or(u8::MAX)
    };
    indices.iter().map(numa).collect()
}
