//! A region of at most [`EXACT_GPUS`] GPUs, renumbered for bit masks, and its k-subsets.

use super::{EXACT_GPUS, Request, Share, tour::Score};
use crate::{GpuSet, Graph, Pattern, Scope, flows::Loads, rings::Mesh, weight::Weight};

/// A set of GPUs by their number in the [`Instance`].
pub(super) type Mask = u32;

/// Weight of a path that the scope does not allow: heavier than any real path.
pub(super) const FORBIDDEN: Weight = 100_000_000_000_000;

/// What it costs to build an instance, and to bound the cost of one of its sets, in steps.
const STEPS_TO_BUILD: u64 = 2_000;
const STEPS_PER_SET: u64 = 200;

/// One region of candidate GPUs. GPUs are numbers `0..len`, in the order of their indices.
pub(super) struct Instance<'a> {
    pub(super) graph: &'a Graph,
    /// The part of each budget that the search may spend.
    pub(super) share: Share<'a>,
    /// Number of GPUs to choose.
    pub(super) k: usize,
    /// Position in the graph of each number.
    positions: Vec<usize>,
    pub(super) required: Mask,
    /// The weight of the path of each two GPUs if the job has the whole region; no job of
    /// fewer GPUs has a lighter path. Paths over PCIe are [`FORBIDDEN`] if the job must
    /// stay on NVLink.
    pub(super) weights: Weights,
    /// The same without paths through a third GPU.
    pub(super) plain: Weights,
    /// Whether the job must stay on NVLink.
    pub(super) on_nvlink: bool,
    /// Whether paths through a third GPU change any weight.
    pub(super) relayed: bool,
    /// Whether hops of one tour may share a resource.
    pub(super) sharing: bool,
    /// Direct links, if rings of three or more may run over them.
    pub(super) mesh: Option<Mesh>,
    /// For each GPU, one bit for its NUMA node; the same bit for all GPUs in a job
    /// without traffic, to which NUMA nodes do not matter.
    numa: [Mask; EXACT_GPUS],
    /// For each GPU, the GPUs of the region to which NVLink edges connect it.
    pub(super) neighbours: [Mask; EXACT_GPUS],
    /// For each GPU, the neighbours to which links connect it without a switch.
    pub(super) direct: [Mask; EXACT_GPUS],
    /// Groups of GPUs whose PCIe paths share an uplink, and its weight.
    pub(super) groups: Vec<(Mask, Weight)>,
    /// Sets of interchangeable GPUs.
    twins: Vec<Mask>,
}

/// Weights between GPUs by number.
pub(super) type Weights = [[Weight; EXACT_GPUS]; EXACT_GPUS];

/// Returns, for each of the first `gpus` GPUs, the others within `limit`.
pub(super) fn within(weights: &Weights, gpus: usize, limit: Weight) -> [Mask; EXACT_GPUS] {
    let mut near = [0; EXACT_GPUS];
    for (a, near) in near.iter_mut().enumerate().take(gpus) {
        let close = (0..gpus).filter(|&b| a != b && weights[a][b] <= limit);
        *near = close.fold(0, |mask, b| mask | 1 << b);
    }
    near
}

/// Returns the numbers in `mask`, ascending.
pub(super) fn members(mask: Mask) -> impl Iterator<Item = usize> + Clone {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let lowest = rest.trailing_zeros() as usize;
        (rest != 0).then(|| {
            rest &= rest - 1;
            lowest
        })
    })
}

/// Reports whether the ascending members of `a` come before those of `b`.
pub(super) fn comes_first(a: Mask, b: Mask) -> bool {
    let differ = a ^ b;
    a & differ & differ.wrapping_neg() != 0
}

impl<'a> Instance<'a> {
    /// Returns the instance for the GPUs of `region`, at most [`EXACT_GPUS`].
    pub(super) fn new(
        graph: &'a Graph,
        request: &Request,
        region: GpuSet,
        share: Share<'a>,
    ) -> Self {
        share.spend(STEPS_TO_BUILD);
        let positions: Vec<usize> = region.iter().collect();
        let on_nvlink = request.scope == Scope::NvlinkDomain;
        let mut plain = [[0; EXACT_GPUS]; EXACT_GPUS];
        let (mut neighbours, mut direct) = ([0; EXACT_GPUS], [0; EXACT_GPUS]);
        let mut required = 0;
        for (a, &at) in positions.iter().enumerate() {
            let (row, near) = (graph.row(at), graph.neighbours(at));
            for (b, &to) in positions.iter().enumerate() {
                let joined = at == to || near.contains(to);
                plain[a][b] = if on_nvlink && !joined {
                    FORBIDDEN
                } else {
                    row[to]
                };
                neighbours[a] |= Mask::from(near.contains(to)) << b;
                direct[a] |= Mask::from(graph.direct(at).contains(to)) << b;
            }
            required |= Mask::from(request.required.contains(at)) << a;
        }
        let mut instance = Self {
            graph,
            share,
            on_nvlink,
            k: request.gpus,
            numa: numa_bits(graph, request.pattern, &positions),
            positions,
            required,
            weights: plain,
            plain,
            relayed: false,
            sharing: false,
            mesh: Mesh::new(graph, region),
            neighbours,
            direct,
            groups: Vec::new(),
            twins: Vec::new(),
        };
        instance.find_relays();
        instance.groups = instance.groups_inside();
        let several = |(members, _): &(Mask, Weight)| members.count_ones() > 1;
        instance.sharing = instance.relayed || instance.groups.iter().any(several);
        instance.twins = instance.find_twins();
        instance
    }

    /// Updates the weights with paths through a third GPU of the region.
    fn find_relays(&mut self) {
        // Only a GPU with two direct neighbours can lead from one to the other.
        if self.mesh.is_none() {
            return;
        }
        let relayed = self.relay_weights((1 << self.len()) - 1);
        for (row, relayed) in self.weights.iter_mut().zip(&relayed) {
            for (weight, &relayed) in row.iter_mut().zip(relayed) {
                *weight = (*weight).min(relayed);
            }
        }
        self.relayed = relayed != self.plain;
    }

    /// Returns the groups that split the region.
    fn groups_inside(&self) -> Vec<(Mask, Weight)> {
        let inside = |members: GpuSet| {
            let positions = self.positions.iter().enumerate();
            positions.fold(0, |mask, (gpu, &at)| {
                mask | Mask::from(members.contains(at)) << gpu
            })
        };
        let groups = self.graph.groups().iter();
        let groups = groups.map(|group| (inside(group.members), group.uplink.weight));
        let everything = (1 << self.len()) - 1;
        groups
            .filter(|&(mask, _)| mask != 0 && mask != everything)
            .collect()
    }

    /// Converts the GPUs of `mask` to positions in the graph.
    pub(super) fn set(&self, mask: Mask) -> GpuSet {
        members(mask).map(|gpu| self.positions[gpu]).collect()
    }

    /// Returns the weight of the path of each two GPUs if the job has the GPUs of `job`.
    pub(super) fn relay_weights(&self, job: Mask) -> Weights {
        let mut weights = self.plain;
        let set = self.set(job);
        for a in members(job) {
            for b in members(job & !self.neighbours[a] & !(1 << a)) {
                let (at, to) = (self.positions[a], self.positions[b]);
                if let Some((_, weight)) = self.graph.relays(at, to, set) {
                    weights[a][b] = weight;
                }
            }
        }
        weights
    }

    pub(super) fn len(&self) -> usize {
        self.positions.len()
    }

    /// Reports whether direct links join two GPUs.
    pub(super) fn joined_directly(&self, a: usize, b: usize) -> bool {
        self.direct[a] >> b & 1 == 1
    }

    /// Returns the weight of the links of a GPU to the switches.
    pub(super) fn port(&self, gpu: usize) -> Weight {
        let port = self.graph.port(self.positions[gpu]);
        port.map_or(0, |port| port.weight)
    }

    /// Returns the weight of a GPU's port if the GPU sends everything to the others of
    /// `set` through it.
    pub(super) fn only_port(&self, set: Mask, gpu: usize) -> Option<Weight> {
        let others = set & !(1 << gpu);
        let direct = members(others).any(|other| self.joined_directly(gpu, other));
        let all = !direct && self.neighbours[gpu] & others == others;
        self.graph
            .port(self.positions[gpu])
            .filter(|_| all)
            .map(|port| port.weight)
    }

    /// Returns the position in the graph of a GPU by number.
    pub(super) fn position(&self, gpu: usize) -> usize {
        self.positions[gpu]
    }

    /// Returns the cost of flows; forbidden if they leave NVLink but must not.
    pub(super) fn score(&self, loads: &Loads<'_>) -> Score {
        let busy = loads.busy();
        if self.on_nvlink && busy.over_pcie {
            return Score::FORBIDDEN;
        }
        Score {
            heaviest: busy.busiest,
            sum: busy.total,
        }
    }

    /// Returns the positions in the graph of GPUs by number.
    pub(super) fn positions(&self, order: &[usize]) -> Vec<usize> {
        order.iter().map(|&gpu| self.positions[gpu]).collect()
    }

    /// Returns the number of NUMA nodes that `mask` spans.
    pub(super) fn numa_nodes(&self, mask: Mask) -> u32 {
        members(mask)
            .fold(0, |seen, gpu| seen | self.numa[gpu])
            .count_ones()
    }

    /// Returns the sizes of the NVLink-connected sets that stay free in the region
    /// without `mask`, largest first, one byte each. Greater is better; see
    /// [`super::Remainder`]. Sets outside the region do not change.
    pub(super) fn remainder(&self, mask: Mask) -> u128 {
        let mut sets_of_size = [0u8; EXACT_GPUS + 1];
        let mut rest = ((1 << self.len()) - 1) & !mask;
        while rest != 0 {
            let mut reached = rest & rest.wrapping_neg();
            let mut fresh = reached;
            while fresh != 0 {
                let near = members(fresh).fold(0, |near, gpu| near | self.neighbours[gpu]);
                fresh = near & rest & !reached;
                reached |= fresh;
            }
            rest &= !reached;
            sets_of_size[reached.count_ones() as usize] += 1;
        }
        let mut packed = 0;
        let mut place = u128::BITS;
        for (size, &sets) in sets_of_size.iter().enumerate().rev() {
            for _ in 0..sets {
                place -= 8;
                packed |= (size as u128) << place;
            }
        }
        packed
    }

    /// Returns the sets of interchangeable GPUs (twins): exchanging two of them changes
    /// only the indices, of all that the rules compare.
    fn find_twins(&self) -> Vec<Mask> {
        let mut twins: Vec<Mask> = Vec::with_capacity(self.len());
        for gpu in 0..self.len() {
            let like = |set: &&mut Mask| self.alike(set.trailing_zeros() as usize, gpu);
            match twins.iter_mut().find(like) {
                Some(set) => *set |= 1 << gpu,
                None => twins.push(1 << gpu),
            }
        }
        twins
    }

    fn alike(&self, a: usize, b: usize) -> bool {
        let required = |gpu: usize| self.required >> gpu & 1;
        if self.numa[a] != self.numa[b] || required(a) != required(b) {
            return false;
        }
        if !self.graph.alike(self.positions[a], self.positions[b]) {
            return false;
        }
        let both: Mask = 1 << a | 1 << b;
        let same = |other| self.plain[a][other] == self.plain[b][other];
        self.neighbours[a] & !both == self.neighbours[b] & !both
            && members(((1 << self.len()) - 1) & !both).all(same)
    }

    /// Returns the lowest member of each set of twins that has members in `unused`. To a
    /// search, the other members are the same GPU again.
    pub(super) fn distinct(&self, unused: Mask) -> Mask {
        let lowest = |set: &Mask| {
            let left = set & unused;
            left & left.wrapping_neg()
        };
        self.twins.iter().map(lowest).fold(0, |all, one| all | one)
    }

    /// Calls `each` with every set of `k` GPUs that includes the required ones. Of sets
    /// that differ only by an exchange of twins, it uses the lowest.
    pub(super) fn subsets(&self, mut each: impl FnMut(Mask)) {
        self.choose(0, 0, self.k, &mut |set| {
            self.share.spend(STEPS_PER_SET);
            each(set);
        });
    }

    fn choose(&self, set: usize, chosen: Mask, missing: usize, each: &mut impl FnMut(Mask)) {
        if set == self.twins.len() {
            if missing == 0 && chosen & self.required == self.required {
                each(chosen);
            }
            return;
        }
        let left: u32 = self.twins[set..]
            .iter()
            .map(|twins| twins.count_ones())
            .sum();
        if (left as usize) < missing {
            return;
        }
        let (mut rest, mut taken, mut missing) = (self.twins[set], chosen, missing);
        loop {
            self.choose(set + 1, taken, missing, each);
            if rest == 0 || missing == 0 {
                return;
            }
            taken |= rest & rest.wrapping_neg();
            rest &= rest - 1;
            missing -= 1;
        }
    }
}

/// Returns one bit for each NUMA node, in the order of their first GPU.
fn numa_bits(graph: &Graph, pattern: Pattern, positions: &[usize]) -> [Mask; EXACT_GPUS] {
    let mut bits = [1; EXACT_GPUS];
    if pattern == Pattern::None {
        return bits;
    }
    for (gpu, &at) in positions.iter().enumerate() {
        let like = positions[..gpu]
            .iter()
            .position(|&before| graph.numa(before) == graph.numa(at));
        bits[gpu] = like.map_or(1 << gpu, |before| bits[before]);
    }
    bits
}
