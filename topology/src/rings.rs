//! The most rings that run at once over direct NVLinks, each on links of its own.
//!
//! NCCL's channels are such rings: directed, and none uses a link in the
//! direction in which another does (`src/graph/search.cc` takes the bandwidth
//! of each hop off the link). Four GPUs joined pairwise by four links each hold
//! twelve, a DGX-1 holds six.
//!
//! The most are found by a search for one number of rings after the other,
//! from a bound downwards: rings in ascending order, each on what the ones
//! before have left.

use crate::{
    GpuSet, Graph,
    graph::{Weight, weight_of},
};

/// The most GPUs for which rings are counted.
const MOST_GPUS: usize = 16;

/// Hops tried before the search gives up. A random mesh of 8 GPUs needs 500 on
/// average and 120,000 at most; real boards need 120.
const STEPS: u32 = 1_000_000;

/// The same beyond 8 GPUs, where no real board has direct links.
const FEW_STEPS: u32 = 2_000;

/// A number of rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rings {
    pub(crate) number: u32,
    /// They go through neighbours.
    pub(crate) relayed: bool,
    /// No more are possible.
    pub(crate) proven: bool,
}

impl Rings {
    const NONE: Self = Self {
        number: 0,
        relayed: false,
        proven: true,
    };

    /// So many, over links alone.
    pub(crate) fn at_most(number: u32) -> Self {
        Self {
            number,
            ..Self::NONE
        }
    }

    /// The weight of one byte that each GPU sends, over all rings.
    pub(crate) fn weight(self, graph: &Graph) -> Weight {
        weight_of(graph.link() * u64::from(self.number))
    }

    /// The weights of all GPUs together. A hop through a neighbour is two; that
    /// all hops are counted so lets rings over links alone win a tie.
    pub(crate) fn total(self, weight: Weight, gpus: usize) -> Weight {
        weight * gpus as Weight * if self.relayed { 2 } else { 1 }
    }
}

/// The direct links of at most [`MOST_GPUS`] GPUs, which are numbered in order.
pub(crate) struct Mesh {
    links: [[u8; MOST_GPUS]; MOST_GPUS],
    /// GPUs to which links are left, a bit each.
    near: [u16; MOST_GPUS],
    /// GPUs that are joined by a switch.
    switched: [u16; MOST_GPUS],
}

impl Mesh {
    /// The links inside `region`; `None` where they make no ring of three or
    /// more: too few GPUs, too many, or none with two neighbours.
    pub(crate) fn new(graph: &Graph, region: GpuSet) -> Option<Self> {
        if !(3..=MOST_GPUS).contains(&region.len()) {
            return None;
        }
        let direct = |gpu: usize| graph.direct(gpu).intersection(region);
        if region.iter().all(|gpu| direct(gpu).len() < 2) {
            return None;
        }
        let mut mesh = Self {
            links: [[0; _]; _],
            near: [0; _],
            switched: [0; _],
        };
        for (a, from) in region.iter().enumerate() {
            for (b, to) in region.iter().enumerate() {
                let joined = graph.neighbours(from).contains(to);
                let links = graph.links(from, to);
                mesh.links[a][b] = links;
                mesh.near[a] |= u16::from(links > 0) << b;
                mesh.switched[a] |= u16::from(joined && links == 0) << b;
            }
        }
        Some(mesh)
    }

    /// The fewest links that leave a GPU of `job` for others of it: a ring
    /// needs one. `None` where the job is not joined by direct links alone.
    pub(crate) fn bound(&self, job: u16) -> Option<u32> {
        let mut least = u32::MAX;
        for gpu in members(job) {
            if self.near[gpu] & job == 0 || self.switched[gpu] & job != 0 {
                return None;
            }
            least = least.min(self.leaving(gpu, job));
        }
        (job.count_ones() >= 3).then_some(least)
    }

    /// Links that leave a GPU for others of `job`.
    fn leaving(&self, gpu: usize, job: u16) -> u32 {
        members(job)
            .map(|other| u32::from(self.links[gpu][other]))
            .sum()
    }

    /// A bound for rings over links alone. A ring comes to a GPU from another
    /// neighbour than it goes to, so that links to one neighbour count for no
    /// more than those to all others; and it leaves each set of GPUs.
    fn direct_bound(&self, job: u16) -> u32 {
        let turn = |gpu: usize| {
            let links = members(job).map(|other| u32::from(self.links[gpu][other]));
            let all = self.leaving(gpu, job);
            all.min(2 * (all - links.max().unwrap_or(0)))
        };
        let least = members(job).map(turn).min().unwrap_or(0);
        if job.count_ones() > 8 {
            return least;
        }
        least.min(self.least_cut(job))
    }

    /// The fewest links that leave a set of GPUs of `job`, at most 8, for the others.
    fn least_cut(&self, job: u16) -> u32 {
        let mut gpus = [0; 8];
        let n = members(job)
            .zip(&mut gpus)
            .map(|(gpu, at)| *at = gpu)
            .count();
        let mut least = u32::MAX;
        let mut cuts = [0; 1 << 7];
        for set in 1..1usize << (n - 1) {
            let gpu = set.trailing_zeros() as usize;
            let rest = set & (set - 1);
            let inner: u32 = members(rest as u16)
                .map(|other| u32::from(self.links[gpus[gpu]][gpus[other]]))
                .sum();
            cuts[set] = cuts[rest] + self.leaving(gpus[gpu], job) - 2 * inner;
            least = least.min(cuts[set]);
        }
        least
    }

    /// The most rings inside `job`: over links alone, or, where there is none,
    /// through neighbours as well ([`Graph::relay`]), as NCCL tries one type of
    /// path after the other. Fewer than `floor` are not counted: the number is 0 then.
    pub(crate) fn most(&self, job: u16, floor: u32) -> Rings {
        let (Some(bound), floor) = (self.bound(job), floor.max(1)) else {
            return Rings::NONE;
        };
        if bound < floor {
            return Rings::NONE;
        }
        let direct = self.direct_bound(job);
        let rings = self.count(job, direct, floor, false);
        if rings.number > 0 {
            return rings;
        }
        let one = floor > 1 && self.count(job, direct.min(1), 1, false).number > 0;
        if one {
            return rings;
        }
        let relayed = self.count(job, bound, floor, true);
        Rings {
            proven: rings.proven && relayed.proven,
            ..relayed
        }
    }

    /// The most rings of `bound` down to `floor`.
    fn count(&self, job: u16, bound: u32, floor: u32, relayed: bool) -> Rings {
        let mut search = Search::new(self, job, relayed);
        for number in (floor..=bound).rev() {
            // Rings that run both ways are sooner found, and mostly the best.
            let found =
                number % 2 == 0 && search.run(true, number / 2) || search.run(false, number);
            if found {
                let proven = true;
                return Rings {
                    number,
                    relayed,
                    proven,
                };
            }
            if search.steps == 0 {
                let (number, proven) = (search.most, false);
                return Rings {
                    number,
                    relayed,
                    proven,
                };
            }
        }
        Rings::NONE
    }
}

/// The numbers below `gpus`, which is at most [`MOST_GPUS`].
pub(crate) fn all(gpus: usize) -> u16 {
    u16::MAX >> (MOST_GPUS - gpus)
}

/// The numbers in `set`, ascending.
fn members(set: u16) -> impl Iterator<Item = usize> + Clone {
    let mut rest = set;
    std::iter::from_fn(move || {
        let lowest = rest.trailing_zeros() as usize;
        (rest != 0).then(|| {
            rest &= rest - 1;
            lowest
        })
    })
}

struct Search {
    job: u16,
    /// A hop may lead through a third GPU of the job.
    relayed: bool,
    links: [[u8; MOST_GPUS]; MOST_GPUS],
    near: [u16; MOST_GPUS],
    /// GPUs to which there were links at the start: a hop there takes one.
    joined: [u16; MOST_GPUS],
    /// Each ring takes the links of both directions and stands for two.
    both_ways: bool,
    rings: Vec<[u8; MOST_GPUS]>,
    /// The most rings that were there at once.
    most: u32,
    steps: u32,
}

impl Search {
    fn new(mesh: &Mesh, job: u16, relayed: bool) -> Self {
        Self {
            job,
            relayed,
            links: mesh.links,
            near: mesh.near,
            joined: mesh.near,
            both_ways: false,
            rings: Vec::with_capacity(8),
            most: 0,
            steps: if job.count_ones() <= 8 {
                STEPS
            } else {
                FEW_STEPS
            },
        }
    }

    /// Finds so many rings, or pairs of rings.
    fn run(&mut self, both_ways: bool, number: u32) -> bool {
        self.both_ways = both_ways;
        self.ring(number)
    }

    /// The GPU at which every ring starts.
    fn start(&self) -> usize {
        self.job.trailing_zeros() as usize
    }

    /// Finds so many rings in the links that are left, none lower than the last one.
    fn ring(&mut self, missing: u32) -> bool {
        let there = self.rings.len() as u32;
        self.most = self
            .most
            .max(if self.both_ways { 2 * there } else { there });
        if missing == 0 {
            return true;
        }
        let tied = !self.rings.is_empty();
        self.rings.push([0; MOST_GPUS]);
        let found = self.walk(self.start(), 1 << self.start(), 1, missing, tied);
        self.rings.pop();
        found
    }

    /// Goes on from `here`, the GPU before place `at` of the newest ring;
    /// `tied` while that ring is equal to the one before.
    fn walk(&mut self, here: usize, visited: u16, at: usize, missing: u32, tied: bool) -> bool {
        if self.steps == 0 {
            return false;
        }
        self.steps -= 1;
        if visited == self.job {
            // Of the two directions of a ring that runs both ways, one is enough.
            let ring = self.rings.last().copied().unwrap_or_default();
            let other_way = self.both_ways && ring[1] > ring[at - 1];
            return !other_way && self.hop(here, self.start(), |search| search.ring(missing - 1));
        }
        let newest = self.rings.len() - 1;
        let low = if tied { self.rings[newest - 1][at] } else { 0 };
        let ahead = self.job & !visited & self.onward(here) & u16::MAX << low;
        for next in members(ahead) {
            // Below MOST_GPUS.
            self.rings[newest][at] = next as u8;
            let tied = tied && next == usize::from(low);
            let found = self.hop(here, next, |search| {
                search.walk(next, visited | 1 << next, at + 1, missing, tied)
            });
            if found {
                return true;
            }
        }
        false
    }

    /// GPUs to which a hop may be possible.
    fn onward(&self, here: usize) -> u16 {
        let near = self.near[here] & self.job;
        if !self.relayed {
            return near;
        }
        let reached = |reached, relay| reached | self.near[relay] & !self.joined[here];
        members(near).fold(near, reached)
    }

    /// Goes on with the links of a hop taken, if there are any, and gives them back.
    fn hop(&mut self, from: usize, to: usize, mut on: impl FnMut(&mut Self) -> bool) -> bool {
        if self.joined[from] >> to & 1 == 1 {
            return self.near[from] >> to & 1 == 1 && self.over(&[(from, to)], &mut on);
        }
        let relays = self.near[from] & self.job;
        self.relayed
            && members(relays).any(|relay| {
                let free = self.near[relay] >> to & 1 == 1;
                free && self.over(&[(from, relay), (relay, to)], &mut on)
            })
    }

    fn over(&mut self, links: &[(usize, usize)], on: &mut impl FnMut(&mut Self) -> bool) -> bool {
        links.iter().for_each(|&(a, b)| self.take(a, b));
        let found = on(self);
        links.iter().for_each(|&(a, b)| self.give(a, b));
        found
    }

    fn take(&mut self, a: usize, b: usize) {
        let ways = [(a, b), (b, a)];
        for &(a, b) in &ways[..1 + usize::from(self.both_ways)] {
            self.links[a][b] -= 1;
            if self.links[a][b] == 0 {
                self.near[a] &= !(1 << b);
            }
        }
    }

    fn give(&mut self, a: usize, b: usize) {
        let ways = [(a, b), (b, a)];
        for &(a, b) in &ways[..1 + usize::from(self.both_ways)] {
            self.links[a][b] += 1;
            self.near[a] |= 1 << b;
        }
    }
}
