//! Counts the most rings that can run at once over direct NVLinks, each on links of its own.
//!
//! NCCL's channels are such rings. They are directed, and no two rings use the same link
//! in the same direction (`src/graph/search.cc` subtracts the bandwidth of each hop from
//! the link). Four GPUs, each pair joined by four links, hold twelve rings; a DGX-1 holds
//! six.
//!
//! The maximum is found by trying one number of rings after the other, from a bound
//! downwards. Each attempt searches for rings in ascending order, each on the links that
//! the previous rings left.

use crate::{
    GpuSet, Graph,
    weight::{Weight, weight_of},
};

/// The maximum number of GPUs for which rings are counted.
const MOST_GPUS: usize = 16;

/// The number of hops that the search tries before it gives up. A random mesh of 8 GPUs
/// needs 500 on average and 120,000 at most; real boards need 120.
pub(crate) const STEPS: u32 = 200_000;

/// The same for more than 8 GPUs, which direct links join on no real board: a quarter of a
/// millisecond.
pub(crate) const FEW_STEPS: u32 = 10_000;

/// The result of counting rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rings {
    pub(crate) number: u32,
    /// Whether the rings go through neighbours.
    pub(crate) relayed: bool,
    /// One of the rings, as GPU numbers.
    pub(crate) one: [u8; MOST_GPUS],
    /// Whether it is proven that no more rings are possible.
    pub(crate) proven: bool,
}

impl Rings {
    const NONE: Self = Self {
        number: 0,
        relayed: false,
        one: [0; _],
        proven: true,
    };

    /// Returns `number` rings over links alone, as a bound.
    pub(crate) fn at_most(number: u32) -> Self {
        Self {
            number,
            ..Self::NONE
        }
    }

    /// Returns the total bandwidth of all rings.
    pub(crate) fn bytes_per_second(self, graph: &Graph) -> u64 {
        graph.link().saturating_mul(self.number.into())
    }

    /// Returns the weight of one byte that each GPU sends, split over all rings.
    pub(crate) fn weight(self, graph: &Graph) -> Weight {
        weight_of(self.bytes_per_second(graph))
    }

    /// Returns the total weight of all GPUs. A hop through a neighbour counts twice. If
    /// some hops go through neighbours, all hops count twice, so that rings over links
    /// alone win a tie.
    pub(crate) fn total(self, weight: Weight, gpus: usize) -> Weight {
        weight * gpus as Weight * if self.relayed { 2 } else { 1 }
    }
}

/// The direct links of at most [`MOST_GPUS`] GPUs, numbered in order.
pub(crate) struct Mesh {
    links: [[u8; MOST_GPUS]; MOST_GPUS],
    /// For each GPU, the GPUs to which it has links left, as a bit mask.
    near: [u16; MOST_GPUS],
    /// For each GPU, the GPUs to which a switch connects it, as a bit mask.
    switched: [u16; MOST_GPUS],
}

impl Mesh {
    /// Returns the links inside `region`; `None` if they form no ring of three or more:
    /// too few GPUs, too many, or none with two neighbours.
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

    /// Returns an upper bound on the number of rings of `job`; `None` if direct links
    /// alone do not connect it.
    pub(crate) fn bound(&self, job: u16) -> Option<u32> {
        let gpus = job.count_ones();
        let (mut through, mut leaving, mut fewest) = (u32::MAX, u32::MAX, gpus);
        for gpu in members(job) {
            let near = self.near[gpu] & job;
            if near == 0 || self.switched[gpu] & job != 0 {
                return None;
            }
            let (all, most) = self.links_to(gpu, near);
            through = through.min(all.min(2 * (all - most)));
            leaving = leaving.min(all);
            fewest = fewest.min(near.count_ones());
        }
        // If each GPU has half of the GPUs as neighbours, there is a ring over links
        // alone (Dirac 1952). If there is no such ring, rings go through neighbours.
        let bound = if 2 * fewest >= gpus { through } else { leaving };
        (gpus >= 3 && (2 * fewest >= gpus || self.joins(job))).then_some(bound)
    }

    /// Reports whether direct links connect all of `job`.
    fn joins(&self, job: u16) -> bool {
        let mut reached = job & job.wrapping_neg();
        let mut fresh = reached;
        while fresh != 0 {
            let near = members(fresh).fold(0, |near, gpu| near | self.near[gpu]);
            fresh = near & job & !reached;
            reached |= fresh;
        }
        reached == job
    }

    /// Returns the number of links from a GPU to those of `near`, and the most to one of them.
    fn links_to(&self, gpu: usize, near: u16) -> (u32, u32) {
        members(near).fold((0, 0), |(all, most), other| {
            let links = u32::from(self.links[gpu][other]);
            (all + links, links.max(most))
        })
    }

    /// Returns the number of links that leave a GPU for others of `job`.
    fn leaving(&self, gpu: usize, job: u16) -> u32 {
        self.links_to(gpu, self.near[gpu] & job).0
    }

    /// Returns an upper bound on the number of rings over links alone. A ring enters a
    /// GPU from one neighbour and leaves it to another. Therefore links to one neighbour
    /// count for no more than the links to all others. A ring also leaves each set of
    /// GPUs.
    fn direct_bound(&self, job: u16) -> u32 {
        let turn = |gpu: usize| {
            let (all, most) = self.links_to(gpu, self.near[gpu] & job);
            all.min(2 * (all - most))
        };
        let least = members(job).map(turn).min().unwrap_or(0);
        if job.count_ones() > 8 {
            return least;
        }
        least.min(self.least_cut(job))
    }

    /// Returns the fewest links that leave a set of GPUs of `job`, which has at most 8,
    /// for the others.
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

    /// Returns the most rings inside `job`. It counts rings over links alone or, if there
    /// are none, rings through neighbours as well ([`Graph::relays`]), as NCCL tries one
    /// type of path after the other. If there are fewer than `floor`, the result is 0.
    /// `steps` is the number of steps allowed; on return, the number left.
    pub(crate) fn most(&self, job: u16, floor: u32, steps: &mut u32) -> Rings {
        let (Some(bound), floor) = (self.bound(job), floor.max(1)) else {
            return Rings::NONE;
        };
        if bound < floor {
            return Rings::NONE;
        }
        let mut search = Search::new(self, job, *steps);
        let rings = search.most(bound.min(self.direct_bound(job)), floor);
        let below = floor > 1 && rings.number == 0 && search.most(1, 1).number > 0;
        let rings = if rings.number > 0 || below {
            rings
        } else {
            search.relayed = true;
            let proven = rings.proven;
            let rings = search.most(bound, floor);
            let proven = proven && rings.proven;
            Rings { proven, ..rings }
        };
        *steps = search.steps;
        rings
    }
}

/// Returns the number of hops that the search may try for a job of `gpus` GPUs.
pub(crate) fn steps(gpus: usize) -> u32 {
    if gpus <= 8 { STEPS } else { FEW_STEPS }
}

/// Returns the mask of the numbers below `gpus`, which is at most [`MOST_GPUS`].
pub(crate) fn all(gpus: usize) -> u16 {
    u16::MAX >> (MOST_GPUS - gpus)
}

/// Returns the numbers in `set`, ascending.
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
    /// Whether a hop may lead through a third GPU of the job.
    relayed: bool,
    links: [[u8; MOST_GPUS]; MOST_GPUS],
    near: [u16; MOST_GPUS],
    /// For each GPU, the GPUs to which it had links at the start: a hop to one of them
    /// uses a link.
    joined: [u16; MOST_GPUS],
    /// Whether each ring uses the links of both directions and stands for two.
    both_ways: bool,
    rings: Vec<[u8; MOST_GPUS]>,
    /// The most rings found at once, and one of them.
    most: u32,
    one: [u8; MOST_GPUS],
    steps: u32,
}

impl Search {
    fn new(mesh: &Mesh, job: u16, steps: u32) -> Self {
        Self {
            job,
            relayed: false,
            links: mesh.links,
            near: mesh.near,
            joined: mesh.near,
            both_ways: false,
            rings: Vec::with_capacity(8),
            most: 0,
            one: [0; _],
            steps,
        }
    }

    /// Finds the most rings, from `bound` down to `floor`.
    fn most(&mut self, bound: u32, floor: u32) -> Rings {
        self.most = 0;
        for number in (floor..=bound).rev() {
            // Rings that run both ways are found faster, and are mostly the best.
            let found = number % 2 == 0 && self.run(true, number / 2) || self.run(false, number);
            let given_up = self.steps == 0;
            if found || given_up {
                return Rings {
                    number: self.most,
                    relayed: self.relayed,
                    one: self.one,
                    proven: found,
                };
            }
        }
        Rings::NONE
    }

    /// Searches for `number` rings, or pairs of rings if `both_ways`.
    fn run(&mut self, both_ways: bool, number: u32) -> bool {
        self.both_ways = both_ways;
        self.ring(number)
    }

    /// Returns the GPU at which every ring starts.
    fn start(&self) -> usize {
        self.job.trailing_zeros() as usize
    }

    /// Searches for `missing` rings in the links that are left, none lower than the last one.
    fn ring(&mut self, missing: u32) -> bool {
        let there = self.rings.len() as u32 * if self.both_ways { 2 } else { 1 };
        if there > self.most {
            self.most = there;
            self.one = self.rings[0];
        }
        if missing == 0 {
            return true;
        }
        let tied = !self.rings.is_empty();
        let mut ring = [0; MOST_GPUS];
        ring[0] = self.start() as u8;
        self.rings.push(ring);
        let found = self.walk(self.start(), 1 << self.start(), 1, missing, tied);
        self.rings.pop();
        found
    }

    /// Continues from `here`, the GPU before position `at` of the newest ring; `tied`
    /// while that ring is equal to the previous one.
    fn walk(&mut self, here: usize, visited: u16, at: usize, missing: u32, tied: bool) -> bool {
        if self.steps == 0 {
            return false;
        }
        self.steps -= 1;
        if visited == self.job {
            // One of the two directions of a ring that runs both ways is enough.
            let ring = self.rings.last().copied().unwrap_or_default();
            let other_way = self.both_ways && ring[1] > ring[at - 1];
            return !other_way && self.hop(here, self.start(), |search| search.ring(missing - 1));
        }
        let newest = self.rings.len() - 1;
        let low = if tied { self.rings[newest - 1][at] } else { 0 };
        let ahead = self.job & !visited & self.onward(here) & u16::MAX << low;
        for next in members(ahead) {
            // `next` is below MOST_GPUS.
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

    /// Returns the GPUs to which a hop may be possible.
    fn onward(&self, here: usize) -> u16 {
        let near = self.near[here] & self.job;
        if !self.relayed {
            return near;
        }
        let reached = |reached, relay| reached | self.near[relay] & !self.joined[here];
        members(near).fold(near, reached)
    }

    /// Uses the links of a hop, if there are any, calls `on`, and releases the links.
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
