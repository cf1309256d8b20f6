//! Searches regions of more than [`EXACT_GPUS`] GPUs: an NVLink fabric of several nodes.
//!
//! Interchangeable GPUs (twins) are merged. If that leaves few different choices, each is
//! tried; else sets are grown from each kind of GPU, as many as a number of steps allows. A
//! result is called exact only if its cost equals a bound that no placement beats.

use std::collections::BTreeMap;

use super::{EXACT_GPUS, Found, Instance, Rank, Request, Share, subsets::effort, tour::Kind};
use crate::{GpuSet, Graph, Pattern, Scope, volumes::Volumes, weight::Weight};

/// The maximum number of different choices that are tried one by one.
const CHOICES: usize = 2_000;
/// The steps that one search may spend on sets, of which it orders at least one: some tens of
/// milliseconds. They limit the search only on a graph without any order, whose GPUs are no
/// twins, so that each of them is a seed. Nobody builds such machines, but anybody can describe
/// one.
const STEPS: u64 = 40_000_000;
/// The same where all choices together are a proof.
const STEPS_TO_PROVE: u64 = 16 * STEPS;
/// The number of times that all pieces of a tour are reversed.
const PASSES: usize = 16;

/// Returns about how many steps it takes to grow, order and rate one set.
fn steps_per_set(graph: &Graph, request: &Request) -> u64 {
    let (n, k) = (graph.len() as u64, request.gpus as u64);
    let order = match request.pattern {
        Pattern::AllToAll | Pattern::ParameterServer | Pattern::None => 50 * k * k,
        _ if request.gpus > EXACT_GPUS => 100 * k * k,
        _ if request.gpus <= 4 => 20_000,
        // The fewest hops of the count of rings, and the fewest assignments.
        Pattern::AllReduce | Pattern::Shape(_) => 1_000_000,
        Pattern::Pipeline => effort(request.gpus),
    };
    n * k * k / 2 + 20 * n * n + order
}

/// Returns the most searches of another set, one for each GPU that it leaves out.
pub(super) fn most_searches(graph: &Graph, request: &Request, region: GpuSet) -> usize {
    if region.len() <= EXACT_GPUS {
        return usize::MAX;
    }
    usize::try_from(STEPS / steps_per_set(graph, request)).map_or(1, |most| most.max(1))
}

/// Returns the best set and order found in `region`; `None` if the scope allows none.
pub(super) fn search(
    graph: &Graph,
    request: &Request,
    region: GpuSet,
    share: Share<'_>,
) -> Option<Found> {
    let twins = twins(graph, request, region);
    let each = steps_per_set(graph, request);
    let part = |sets: usize, steps: u64| {
        let part = sets.div_ceil(usize::try_from(share.parts).unwrap_or(usize::MAX));
        let most = usize::try_from(steps / each / share.parts).unwrap_or(usize::MAX);
        part.min(most.max(1))
    };
    let (sets, complete) = match all_choices(&twins, request) {
        Some(mut sets) => {
            let all = sets.len();
            sets.truncate(part(all, STEPS_TO_PROVE));
            let complete = sets.len() == all;
            (sets, complete)
        }
        None => {
            let seeds = &twins[..part(twins.len(), STEPS)];
            (grown(graph, request, region, seeds), false)
        }
    };
    let mut proven = complete;
    let mut best: Option<(Rank, Found)> = None;
    let n = graph.len() as u64;
    share.spend(200 * n * n);
    let share = share.split(sets.len() as u64);
    for set in sets {
        share.spend(each);
        let found = ordered(graph, request, set, share);
        // Another order of the same GPUs may be allowed, and better.
        proven &= found.as_ref().is_none_or(|found| found.exact);
        let Some(found) = found.filter(|found| allowed(graph, request, found)) else {
            continue;
        };
        let rank = Rank::of(graph, request, &found);
        if best.as_ref().is_none_or(|(least, _)| rank < *least) {
            best = Some((rank, found));
        }
    }
    if best.is_none() && !proven {
        share.give_up();
    }
    let (_, mut found) = best?;
    found.exact = proven || at_floor(graph, request, region, &found);
    Some(found)
}

/// Reports whether the placement stays on NVLink if it must.
fn allowed(graph: &Graph, request: &Request, found: &Found) -> bool {
    request.scope != Scope::NvlinkDomain || !found.cost(graph, request.pattern).over_pcie
}

/// Returns the sets of interchangeable GPUs (twins); see [`Instance`].
fn twins(graph: &Graph, request: &Request, region: GpuSet) -> Vec<Vec<usize>> {
    let alike = |a: usize, b: usize| {
        let both: GpuSet = [a, b].into_iter().collect();
        let near = |gpu| {
            graph
                .neighbours(gpu)
                .intersection(request.free)
                .difference(both)
        };
        let same = |c| c == a || c == b || graph.weight(a, c) == graph.weight(b, c);
        graph.alike(a, b)
            && graph.numa(a) == graph.numa(b)
            && request.required.contains(a) == request.required.contains(b)
            && near(a) == near(b)
            && region.iter().all(same)
    };
    let mut twins: Vec<Vec<usize>> = Vec::new();
    for gpu in region.iter() {
        match twins.iter_mut().find(|set| alike(set[0], gpu)) {
            Some(set) => set.push(gpu),
            None => twins.push(vec![gpu]),
        }
    }
    twins
}

/// Returns every set of the right size, up to an exchange of twins; `None` if there are
/// too many.
fn all_choices(twins: &[Vec<usize>], request: &Request) -> Option<Vec<GpuSet>> {
    let mut partial = vec![GpuSet::EMPTY];
    for (at, set) in twins.iter().enumerate() {
        let left: usize = twins[at + 1..].iter().map(Vec::len).sum();
        let mut next = Vec::new();
        for chosen in partial {
            let must = if request.required.contains(set[0]) {
                set.len()
            } else {
                0
            };
            for take in must..=set.len() {
                let chosen = chosen.union(set[..take].iter().copied().collect());
                if chosen.len() <= request.gpus && chosen.len() + left >= request.gpus {
                    next.push(chosen);
                }
            }
            if next.len() > CHOICES {
                return None;
            }
        }
        partial = next;
    }
    Some(partial)
}

/// Returns sets grown from one GPU of each kind. Each step adds the GPU that is nearest
/// to those chosen.
fn grown(graph: &Graph, request: &Request, region: GpuSet, twins: &[Vec<usize>]) -> Vec<GpuSet> {
    let seeds = twins.iter().map(|set| set[0]);
    let grow = |seed: usize| {
        let mut chosen = request.required;
        if chosen.len() < request.gpus {
            chosen.insert(seed);
        }
        while chosen.len() < request.gpus {
            let far = |gpu: &usize| -> (Weight, bool, usize) {
                let sum = chosen.iter().map(|other| graph.weight(*gpu, other)).sum();
                let new_numa = chosen
                    .iter()
                    .all(|other| graph.numa(other) != graph.numa(*gpu));
                (sum, new_numa, *gpu)
            };
            match region.difference(chosen).iter().min_by_key(far) {
                Some(gpu) => chosen.insert(gpu),
                None => break,
            }
        }
        chosen
    };
    let sets: BTreeMap<u128, GpuSet> = seeds.map(grow).map(|set| (set.0, set)).collect();
    sets.into_values().collect()
}

/// Returns the best order of `set` that it finds: an exact one for few GPUs and for
/// patterns without a tour.
fn ordered(graph: &Graph, request: &Request, set: GpuSet, share: Share<'_>) -> Option<Found> {
    if set.len() > EXACT_GPUS {
        let (order, exact) = match request.pattern {
            Pattern::AllToAll | Pattern::None => (set.iter().collect(), true),
            Pattern::ParameterServer => (star(graph, set), true),
            Pattern::AllReduce => (near_neighbours(graph, set, Kind::Ring), false),
            _ => (near_neighbours(graph, set, Kind::Chain), false),
        };
        return Some(Found {
            order,
            exact,
            rings: None,
        });
    }
    let request = Request {
        gpus: set.len(),
        required: set,
        ..*request
    };
    Instance::new(graph, &request, set, share).search(request.pattern)
}

fn star(graph: &Graph, set: GpuSet) -> Vec<usize> {
    let row = |gpu: &usize| -> Weight { set.iter().map(|other| graph.weight(*gpu, other)).sum() };
    let centre = set.iter().min_by_key(row);
    centre
        .into_iter()
        .chain(set.iter().filter(|&gpu| Some(gpu) != centre))
        .collect()
}

/// Returns an order that goes from the lowest GPU always to the nearest one left. Then
/// pieces are reversed as long as that helps (2-opt).
fn near_neighbours(graph: &Graph, set: GpuSet, kind: Kind) -> Vec<usize> {
    let mut order: Vec<usize> = set.iter().take(1).collect();
    let mut rest = set.difference(order.iter().copied().collect());
    while let Some(next) = rest
        .iter()
        .min_by_key(|&gpu| order.last().map(|&here| graph.weight(here, gpu)))
    {
        order.push(next);
        rest = rest.difference([next].into_iter().collect());
    }
    let n = order.len();
    let weight = |order: &[usize], at: usize| match order.get(at + 1) {
        Some(&next) => graph.weight(order[at], next),
        None if kind == Kind::Ring => graph.weight(order[at], order[0]),
        None => 0,
    };
    for _ in 0..PASSES {
        let mut improved = false;
        for from in 1..n {
            for to in from + 1..n {
                let before = (weight(&order, from - 1), weight(&order, to));
                order[from..=to].reverse();
                let after = (weight(&order, from - 1), weight(&order, to));
                if after.0 + after.1 < before.0 + before.1 {
                    improved = true;
                } else {
                    order[from..=to].reverse();
                }
            }
        }
        if !improved {
            break;
        }
    }
    order
}

/// Reports whether no placement in the region has a lower cost or a lower total. The
/// floor assumes that the largest volume uses the lightest path, that all traffic of a
/// GPU passes its port if it has no other links, and that all bytes use the lightest
/// path.
fn at_floor(graph: &Graph, request: &Request, region: GpuSet, found: &Found) -> bool {
    let direct = |gpu: usize| !graph.direct(gpu).intersection(region).is_empty();
    if request.pattern == Pattern::AllReduce && region.iter().any(direct) {
        // Several rings over direct links are faster than the lightest path.
        return false;
    }
    let pairs = region
        .iter()
        .flat_map(|a| region.iter().filter(move |&b| a < b).map(move |b| (a, b)));
    let lightest = pairs.map(|(a, b)| graph.weight(a, b)).min().unwrap_or(0);
    let only_port = |gpu: usize| {
        let others = region.difference([gpu].into_iter().collect());
        let all = graph.neighbours(gpu).is_superset(others);
        let direct = !graph.direct(gpu).intersection(others).is_empty();
        let port = graph.port(gpu).filter(|_| all && !direct);
        port.map(|port| port.weight)
    };
    let port = region.iter().map(only_port).min().flatten().unwrap_or(0);
    let volumes = Volumes::new(request.pattern, request.gpus);
    let busiest = (volumes.largest() * lightest).max(volumes.most() * port);
    let cost = found.cost(graph, request.pattern);
    cost.slowest <= volumes.seconds(busiest)
        && cost.total <= volumes.seconds(volumes.sum() * lightest)
}
