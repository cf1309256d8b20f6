//! Searches regions of more than [`EXACT_GPUS`] GPUs: an NVLink fabric of several nodes.
//!
//! Interchangeable GPUs (twins) are merged. If that leaves few different choices, each is
//! tried; else sets are grown from each kind of GPU. A result is called exact only if its
//! cost equals a bound that no placement beats.

use std::collections::BTreeMap;

use super::{EXACT_GPUS, Found, Instance, Rank, Request, tour::Kind};
use crate::{GpuSet, Graph, Pattern, Scope, volumes::Volumes, weight::Weight};

/// The maximum number of different choices that are tried one by one.
const CHOICES: usize = 2_000;

/// Returns the best set and order found in `region`; `None` if the scope allows none.
pub(super) fn search(
    graph: &Graph,
    request: &Request,
    region: GpuSet,
    share: u64,
) -> Option<Found> {
    let twins = twins(graph, request, region);
    let part = |sets: usize| sets.div_ceil(usize::try_from(share).unwrap_or(usize::MAX));
    let (sets, complete) = match all_choices(&twins, request) {
        Some(mut sets) => {
            let all = sets.len();
            sets.truncate(part(all));
            let complete = sets.len() == all;
            (sets, complete)
        }
        None => {
            let seeds = &twins[..part(twins.len())];
            (grown(graph, request, region, seeds), false)
        }
    };
    let mut proven = complete;
    let mut best: Option<(Rank, Found)> = None;
    let share = share * sets.len().max(1) as u64;
    for set in sets {
        let found = ordered(graph, request, set, share);
        let Some(found) = found.filter(|found| allowed(graph, request, found)) else {
            continue;
        };
        proven &= found.exact;
        let rank = Rank::of(graph, request, &found);
        if best.as_ref().is_none_or(|(least, _)| rank < *least) {
            best = Some((rank, found));
        }
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
fn ordered(graph: &Graph, request: &Request, set: GpuSet, share: u64) -> Option<Found> {
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
    let mut improved = true;
    while improved {
        improved = false;
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
