//! Which GPUs a placement may use if some of them are marked as broken.

use super::{EXACT_GPUS, Effort, Rank, Request, Share, check, next::searched};
use crate::{GpuSet, Graph, NoPlacement, Scope};

/// What a placement does with GPUs that are marked as broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, strum::Display, strum::EnumString)]
#[strum(serialize_all = "lowercase", parse_err_ty = String, parse_err_fn = unknown)]
pub enum BrokenGpus {
    /// It never uses one, except those that the request requires.
    Avoid,
    /// It uses as few as possible. This rule comes before all others: a placement with
    /// fewer broken GPUs wins, whatever it costs.
    #[default]
    Last,
    /// It treats them like all others.
    Ignore,
}

fn unknown(word: &str) -> String {
    format!("{word:?} is not avoid, last or ignore")
}

/// The maximum number of broken GPUs of which all subsets are tried, where the number of
/// GPUs alone does not decide. This happens only where direct links join the GPUs, and
/// the largest such board has 8.
const MOST_TRIED: usize = 12;

/// Narrows `request` so that the placement of the result, by [`super::place`], is the
/// best that treats the GPUs `broken` as `how` says.
///
/// [`BrokenGpus::Last`] is exact with up to 12 broken GPUs that are free, of up to
/// [`EXACT_GPUS`]. With more, the placement may have more broken GPUs than necessary if its
/// scope is a domain of direct links.
///
/// # Errors
/// When there is no such placement.
pub fn sparing(
    graph: &Graph,
    request: &Request,
    broken: GpuSet,
    how: BrokenGpus,
) -> Result<Request, NoPlacement> {
    sparing_with(
        graph,
        request,
        broken,
        how,
        Share::whole(&Effort::default()),
    )
}

pub(super) fn sparing_with(
    graph: &Graph,
    request: &Request,
    broken: GpuSet,
    how: BrokenGpus,
    share: Share<'_>,
) -> Result<Request, NoPlacement> {
    let spare = broken.difference(request.required);
    let without = Request {
        free: request.free.difference(spare),
        ..*request
    };
    match how {
        BrokenGpus::Ignore => return Ok(*request),
        BrokenGpus::Avoid => return Ok(without),
        BrokenGpus::Last => {}
    }
    check(graph, request)?;
    if searched(graph, &without, share).is_some() {
        return Ok(without);
    }
    let areas: Vec<GpuSet> = match request.scope {
        Scope::NvlinkDomain => graph.domains().map(|(_, domain)| domain).collect(),
        _ => vec![graph.all()],
    };
    let within = |area: &GpuSet| Request {
        free: request.free.intersection(*area),
        ..*request
    };
    let narrowed = areas
        .iter()
        .map(within)
        .filter_map(|request| fewest(graph, &request, spare, share));
    let mut best: Option<((usize, Rank), Request)> = None;
    for (count, narrowed) in narrowed {
        let Some(found) = searched(graph, &narrowed, share) else {
            continue;
        };
        let rank = (count, Rank::of(graph, request, &found));
        if best.as_ref().is_none_or(|(least, _)| rank < *least) {
            best = Some((rank, narrowed));
        }
    }
    // Without a result, the search of the whole request says why.
    Ok(best.map_or(*request, |(_, narrowed)| narrowed))
}

/// Narrows `request` to the fewest GPUs of `spare`; returns also their number. `None` if
/// it cannot be satisfied at all.
fn fewest(
    graph: &Graph,
    request: &Request,
    spare: GpuSet,
    share: Share<'_>,
) -> Option<(usize, Request)> {
    let spare = spare.intersection(request.free);
    let healthy = request.free.difference(spare);
    let least = request.gpus.saturating_sub(healthy.len());
    if least > 0 {
        // Every healthy GPU is needed.
        let all = Request {
            required: request.required.union(healthy),
            ..*request
        };
        if searched(graph, &all, share).is_some() {
            return Some((least, all));
        }
    }
    searched(graph, request, share)?;
    if spare.len() > MOST_TRIED || request.free.len() > EXACT_GPUS {
        return Some((spare.len(), *request));
    }
    let share = share.split(1 << spare.len());
    (least.max(1)..=spare.len()).find_map(|count| {
        let tried = subsets(spare, count).filter_map(|some| {
            let with = Request {
                free: healthy.union(some),
                ..*request
            };
            let found = searched(graph, &with, share)?;
            Some((Rank::of(graph, request, &found), with))
        });
        let best = tried.reduce(|best, next| if next.0 < best.0 { next } else { best });
        best.map(|(_, with)| (count, with))
    })
}

/// Returns all subsets of `set` with `count` members. `set` has at most [`MOST_TRIED`].
fn subsets(set: GpuSet, count: usize) -> impl Iterator<Item = GpuSet> {
    let members: Vec<usize> = set.iter().collect();
    let masks = (0_u32..1 << members.len()).filter(move |mask| mask.count_ones() as usize == count);
    masks.map(move |mask| {
        let chosen = members.iter().enumerate();
        let chosen = chosen.filter(|(bit, _)| mask >> bit & 1 == 1);
        chosen.map(|(_, &member)| member).collect()
    })
}
