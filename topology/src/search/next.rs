//! The best placement of another set of GPUs, to show what a placement was preferred to.

use serde::Serialize;

use super::{Found, Placement, Rank, Request, check, regions, search};
use crate::{Graph, cost::Cost};

/// The best placement of GPUs other than those of a [`Placement`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NextBest {
    /// GPU indices in rank order, as in [`Placement`].
    pub gpus: Vec<u32>,
    /// Time of the busiest resource, seconds per byte of payload.
    pub cost: f64,
    /// Time of all transfers one after the other, seconds per byte of payload.
    pub total_cost: f64,
    /// Capacity of the busiest resource, bytes per second in one direction; absent
    /// without traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bottleneck_bytes_per_second: Option<u64>,
    /// Whether no other set is proven to have a lower cost, then a lower total cost.
    pub exact: bool,
}

/// Finds the best placement of another set of GPUs than `placement`, which [`super::place`]
/// returned for `request`; `None` if no other set satisfies the request.
///
/// Another set lacks at least one GPU of the placement, so the search runs once without
/// each of them that is not required. This takes up to `request.gpus` times as long as
/// [`super::place`]. Rules 1 to 3 decide between all other sets; for rule 4, each search
/// takes the GPU that it leaves out as held.
#[must_use]
pub fn next_best(graph: &Graph, request: &Request, placement: &Placement) -> Option<NextBest> {
    let chosen = graph.set(&placement.gpus).ok()?;
    let mut best: Option<(Rank, Found)> = None;
    let mut exact = true;
    for gpu in chosen.difference(request.required).iter() {
        let without = [gpu].into_iter().collect();
        let request_without = Request {
            free: request.free.difference(without),
            ..*request
        };
        let Some(found) = searched(graph, &request_without) else {
            continue;
        };
        exact &= found.exact;
        let rank = Rank::of(graph, request, &found);
        if best.as_ref().is_none_or(|(least, _)| rank < *least) {
            best = Some((rank, found));
        }
    }
    let (_, found) = best?;
    let Cost {
        slowest,
        total,
        bottleneck_bytes_per_second,
        ..
    } = found.cost(graph, request.pattern);
    Some(NextBest {
        gpus: found.order.iter().map(|&at| graph.index(at)).collect(),
        cost: slowest,
        total_cost: total,
        bottleneck_bytes_per_second,
        exact,
    })
}

/// Returns the best placement of `request`; `None` if there is none.
pub(super) fn searched(graph: &Graph, request: &Request) -> Option<Found> {
    check(graph, request).ok()?;
    let regions = regions(graph, request).ok()?;
    search(graph, request, &regions)
}
