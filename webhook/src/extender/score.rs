//! Scores of kube-scheduler's extender API, from verdicts. Pure.
//!
//! | score | nodes |
//! |---|---|
//! | 10 | least broken GPUs, then least cost, then least total, then least harm |
//! | 6 to 9 | the same cost, by rank of total and harm |
//! | 1 to 5 | a higher cost, in proportion to least cost over cost; more broken GPUs: 1 |
//! | 0 | nothing is known, or the pod does not fit |

use std::{cmp::Ordering, cmp::Reverse};

use super::verdict::{Fit, Verdict};

/// The best score of the API (`MaxExtenderPriority`, k8s.io/kube-scheduler/extender/v1).
pub(super) const BEST: u8 = 10;
/// The lowest score of a node of least cost.
const EQUAL: u8 = 6;

/// Returns the score of each node.
///
/// For a pod of a gang, more free GPUs mean less harm, because the others must come near.
pub(super) fn scores(verdicts: &[Verdict], gang: bool) -> Vec<u8> {
    let fits = verdicts.iter().filter_map(|verdict| match verdict {
        Verdict::Fits(fit) => Some(*fit),
        Verdict::Unknown | Verdict::Fails(_) => None,
    });
    let mut fits: Vec<Fit> = fits.collect();
    fits.sort_by(|a, b| by_cost(a, b).then_with(|| by_harm(a, b, gang)));
    let Some(best) = fits.first().copied() else {
        return vec![0; verdicts.len()];
    };
    fits.retain(|fit| by_cost(fit, &best).is_eq());
    fits.dedup_by(|a, b| by_harm(a, b, gang).is_eq());
    let score = |fit: &Fit| {
        if by_cost(fit, &best).is_gt() {
            return of_ratio(fit, &best);
        }
        let rank = fits.iter().position(|one| by_harm(one, fit, gang).is_eq());
        of_rank(rank.unwrap_or(0), fits.len())
    };
    let scores = verdicts.iter().map(|verdict| match verdict {
        Verdict::Fits(fit) => score(fit),
        Verdict::Unknown | Verdict::Fails(_) => 0,
    });
    scores.collect()
}

fn by_cost(a: &Fit, b: &Fit) -> Ordering {
    a.broken
        .cmp(&b.broken)
        .then_with(|| a.cost.total_cmp(&b.cost))
}

fn by_harm(a: &Fit, b: &Fit, gang: bool) -> Ordering {
    let key = |fit: &Fit| {
        let harm = fit.harm;
        let room = gang.then_some(Reverse(harm.free));
        (room, harm)
    };
    a.total
        .total_cmp(&b.total)
        .then_with(|| key(a).cmp(&key(b)))
}

/// Spreads `ranks` ranks over the scores of nodes of least cost; only rank 0 is the best.
fn of_rank(rank: usize, ranks: usize) -> u8 {
    let scores = usize::from(BEST - EQUAL);
    let below = match ranks {
        _ if rank == 0 => 0,
        ranks if ranks <= scores => rank,
        ranks => 1 + (rank - 1) * scores / (ranks - 1),
    };
    BEST - u8::try_from(below).unwrap_or(BEST - EQUAL)
}

/// Returns the score of a node of a higher cost.
fn of_ratio(fit: &Fit, best: &Fit) -> u8 {
    if fit.broken > best.broken {
        return 1;
    }
    let ratio = best.cost / fit.cost;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // from 0 to 5
    let steps = (ratio * f64::from(EQUAL - 1)).ceil() as u8;
    steps.clamp(1, EQUAL - 1)
}

#[cfg(test)]
mod tests {
    use nvlink_topology::{Interconnect, multi_node::Harm};
    use proptest::prelude::*;

    use super::*;

    fn fit(broken: usize, cost: u32, free: usize, breaks: bool) -> Fit {
        Fit {
            broken,
            cost: f64::from(cost),
            total: f64::from(cost),
            harm: Harm {
                interconnect: Interconnect::Nvswitch,
                breaks,
                free,
            },
        }
    }

    #[test]
    fn cost_comes_before_harm_and_a_fragment_before_a_whole_domain() {
        let nodes = [
            Verdict::Fits(fit(0, 20, 2, false)),
            Verdict::Fits(fit(0, 1, 8, true)),
            Verdict::Fits(fit(0, 1, 4, false)),
            Verdict::Fits(fit(0, 1, 6, false)),
            Verdict::Fits(fit(1, 1, 2, false)),
            Verdict::Unknown,
            Verdict::Fails(String::new()),
        ];
        assert_eq!(scores(&nodes, false), [1, 8, 10, 9, 1, 0, 0]);
        assert_eq!(scores(&nodes, true), [1, 10, 8, 9, 1, 0, 0]);
        assert_eq!(scores(&nodes[5..], false), [0, 0]);
    }

    prop_compose! {
        fn verdict()(
            known in 0..8, broken in 0..2_usize, cost in 0..6_u32, free in 0..16_usize, breaks: bool,
        ) -> Verdict {
            if known == 0 { Verdict::Unknown } else { Verdict::Fits(fit(broken, cost, free, breaks)) }
        }
    }

    proptest! {
        #[test]
        fn a_better_node_never_has_a_lower_score(
            nodes in prop::collection::vec(verdict(), 1..40), gang: bool,
        ) {
            let given = scores(&nodes, gang);
            prop_assert_eq!(&given, &scores(&nodes, gang));
            let fits = nodes.iter().zip(&given).filter_map(|(node, &score)| match node {
                Verdict::Fits(fit) => Some((fit, score)),
                _ => None,
            });
            let fits: Vec<_> = fits.collect();
            let best = fits.iter().map(|(_, score)| *score).max();
            prop_assert!(fits.is_empty() || best == Some(BEST));
            for (a, of_a) in &fits {
                prop_assert!((1..=BEST).contains(of_a));
                for (b, of_b) in &fits {
                    let order = by_cost(a, b).then_with(|| by_harm(a, b, gang));
                    prop_assert!(order.is_gt() || of_a >= of_b);
                    prop_assert!(!(order.is_gt() && *of_a == BEST));
                }
            }
        }
    }
}
