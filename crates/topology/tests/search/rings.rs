//! Counts edge-disjoint directed rings over direct links by trying all sets of rings.

use nvlink_topology::{NodeTopologySpec, Via};

use super::brute::permutations;

/// The number of links left from each GPU to each other GPU.
type Links = Vec<Vec<u64>>;

/// Returns the total bandwidth of the most rings over the links of `gpus`, bytes per
/// second, and whether they go through neighbours; `None` if links do not join all of
/// them, or make no ring even through neighbours.
pub(crate) fn most(spec: &NodeTopologySpec, gpus: &[usize]) -> Option<(u64, bool)> {
    let (mut links, link) = links(spec, gpus)?;
    for relays in [false, true] {
        let rings = all(&links, relays);
        let number = pack(&rings, &mut links);
        if number > 0 {
            return Some((number * link, relays));
        }
    }
    None
}

/// Reports whether there is a ring over the links of `gpus`, directly or through neighbours.
pub(crate) fn exist(spec: &NodeTopologySpec, gpus: &[usize]) -> bool {
    let Some((links, _)) = links(spec, gpus) else {
        return false;
    };
    let fits = |ring: &Vec<(usize, usize)>| {
        let uses = |link: &(usize, usize)| ring.iter().filter(|one| *one == link).count() as u64;
        ring.iter().all(|link| links[link.0][link.1] >= uses(link))
    };
    all(&links, true).iter().any(fits)
}

/// Returns the number of links between each two of `gpus`, and the bandwidth of one link.
fn links(spec: &NodeTopologySpec, gpus: &[usize]) -> Option<(Links, u64)> {
    let n = gpus.len();
    let direct = spec.edges.iter().filter(|edge| edge.via == Via::Direct);
    let link = direct
        .map(|edge| edge.bytes_per_second / u64::from(edge.links))
        .min()?;
    let mut links: Links = vec![vec![0; n]; n];
    for edge in &spec.edges {
        let at = |gpu: u32| gpus.iter().position(|&one| one == gpu as usize);
        if let (Some(a), Some(b)) = (at(edge.a), at(edge.b)) {
            assert_eq!(edge.via, Via::Direct);
            links[a][b] = edge.bytes_per_second / link;
            links[b][a] = links[a][b];
        }
    }
    if links.iter().any(|row| row.iter().sum::<u64>() == 0) {
        return None;
    }
    Some((links, link))
}

/// Returns every directed ring, as the list of the links that it uses.
fn all(links: &Links, relays: bool) -> Vec<Vec<(usize, usize)>> {
    let n = links.len();
    let mut rings = Vec::new();
    let mut order: Vec<usize> = (1..n).collect();
    permutations(&mut order, 0, &mut |order| {
        let stops: Vec<usize> = [0]
            .into_iter()
            .chain(order.iter().copied())
            .chain([0])
            .collect();
        let mut ways: Vec<Vec<(usize, usize)>> = vec![Vec::new()];
        for hop in stops.windows(2) {
            let (a, b) = (hop[0], hop[1]);
            let mut hops = vec![];
            if links[a][b] > 0 {
                hops.push(vec![(a, b)]);
            } else if relays {
                let through = (0..n).filter(|&relay| links[a][relay].min(links[relay][b]) > 0);
                hops.extend(through.map(|relay| vec![(a, relay), (relay, b)]));
            }
            let on = |way: &Vec<(usize, usize)>| -> Vec<Vec<(usize, usize)>> {
                hops.iter().map(|hop| [&way[..], hop].concat()).collect()
            };
            ways = ways.iter().flat_map(on).collect();
        }
        rings.extend(ways);
    });
    rings
}

/// Returns the maximum number of `rings` that the links hold; each ring may occur several times.
fn pack(rings: &[Vec<(usize, usize)>], links: &mut Links) -> u64 {
    let left = |links: &Links| {
        links
            .iter()
            .map(|row| row.iter().sum::<u64>())
            .min()
            .unwrap_or(0)
    };
    fn go(
        rings: &[Vec<(usize, usize)>],
        links: &mut Links,
        sofar: u64,
        best: &mut u64,
        left: &dyn Fn(&Links) -> u64,
    ) {
        *best = (*best).max(sofar);
        for (at, ring) in rings.iter().enumerate() {
            if sofar + left(links) <= *best {
                return;
            }
            // A ring through neighbours may use a link twice.
            let uses =
                |link: &(usize, usize)| ring.iter().filter(|one| *one == link).count() as u64;
            if ring.iter().all(|link| links[link.0][link.1] >= uses(link)) {
                ring.iter().for_each(|&(a, b)| links[a][b] -= 1);
                go(&rings[at..], links, sofar + 1, best, left);
                ring.iter().for_each(|&(a, b)| links[a][b] += 1);
            }
        }
    }
    let mut best = 0;
    go(rings, links, 0, &mut best, &left);
    best
}
