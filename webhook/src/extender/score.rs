//! Scores of kube-scheduler's extender API, from verdicts, in the order of the queue's planner. Pure.
//!
//! | score | nodes |
//! |---|---|
//! | 10 | least broken GPUs, then as fast as any, else least cost, then not slow, then least harm |
//! | 6 to 9 | the others that are as fast, or of the same cost, by rank |
//! | 1 to 5 | a higher cost, in proportion to least cost over cost; more broken GPUs: 1 |
//! | 0 | nothing is known, or the pod does not fit |

use std::{cmp::Ordering, cmp::Reverse};

use nvlink_topology::multi_node::is_as_fast;

use super::verdict::{Fit, Verdict};

/// The best score of the API (`MaxExtenderPriority`, k8s.io/kube-scheduler/extender/v1).
pub(super) const BEST: u8 = 10;
/// The lowest score of a node that is as fast as the best.
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
    let order = Order::of(&fits, gang);
    fits.sort_by(|a, b| order.all(a, b));
    let Some(best) = fits.first().copied() else {
        return vec![0; verdicts.len()];
    };
    fits.retain(|fit| order.by_cost(fit, &best).is_eq());
    let fastest = fits.iter().map(|fit| fit.cost).fold(best.cost, f64::min);
    fits.dedup_by(|a, b| order.by_harm(a, b).is_eq());
    let score = |fit: &Fit| {
        if order.by_cost(fit, &best).is_gt() {
            return of_ratio(fit, &best, fastest);
        }
        let rank = fits.iter().position(|one| order.by_harm(one, fit).is_eq());
        of_rank(rank.unwrap_or(0), fits.len())
    };
    let scores = verdicts.iter().map(|verdict| match verdict {
        Verdict::Fits(fit) => score(fit),
        Verdict::Unknown | Verdict::Fails(_) => 0,
    });
    scores.collect()
}

/// The order of nodes for a pod.
#[derive(Clone, Copy, Debug)]
struct Order {
    /// The least cost of the pod on one of the nodes, empty.
    least: f64,
    gang: bool,
}

impl Order {
    fn of(fits: &[Fit], gang: bool) -> Self {
        let least = fits.iter().map(|fit| fit.least);
        Self {
            least: least.fold(f64::INFINITY, f64::min),
            gang,
        }
    }

    fn all(&self, a: &Fit, b: &Fit) -> Ordering {
        self.by_cost(a, b).then_with(|| self.by_harm(a, b))
    }

    fn is_as_fast(&self, fit: &Fit) -> bool {
        is_as_fast(fit.at_full_speed, fit.cost, self.least)
    }

    fn by_cost(&self, a: &Fit, b: &Fit) -> Ordering {
        let slower = |fit: &Fit| (!self.is_as_fast(fit)).then_some(fit.cost);
        let order = a.broken.cmp(&b.broken);
        order.then_with(|| slower(a).partial_cmp(&slower(b)).unwrap_or(Ordering::Equal))
    }

    fn by_harm(&self, a: &Fit, b: &Fit) -> Ordering {
        let total = |fit: &Fit| (!self.is_as_fast(fit)).then_some(fit.total);
        let key = |fit: &Fit| {
            let harm = fit.harm;
            let room = self.gang.then_some(Reverse(harm.free));
            (fit.slow, room, harm)
        };
        let order = total(a).partial_cmp(&total(b)).unwrap_or(Ordering::Equal);
        let order = order.then_with(|| key(a).cmp(&key(b)));
        let order = order.then_with(|| a.cost.total_cmp(&b.cost));
        order.then_with(|| a.total.total_cmp(&b.total))
    }
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

/// Returns the score of a node of a higher cost than those that are as fast as the `fastest`.
fn of_ratio(fit: &Fit, best: &Fit, fastest: f64) -> u8 {
    if fit.broken > best.broken {
        return 1;
    }
    let ratio = fastest / fit.cost;
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
            least: f64::from(cost),
            at_full_speed: false,
            slow: false,
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
        let slow = Fit {
            slow: true,
            ..fit(0, 1, 4, false)
        };
        let nodes = [Verdict::Fits(slow), Verdict::Fits(fit(0, 1, 8, true))];
        assert_eq!(
            scores(&nodes, false),
            [9, 10],
            "a slow node comes after its siblings"
        );
    }

    /// A node at full speed that takes at most twice as long as the fastest spares it, as in the
    /// queue; one that takes longer does not, nor one whose best GPUs are held.
    #[test]
    fn a_node_that_is_nearly_as_fast_spares_the_fastest() {
        let full = |cost, free| Fit {
            at_full_speed: true,
            ..fit(0, cost, free, false)
        };
        let held = Fit {
            least: 10.0,
            ..fit(0, 11, 1, false)
        };
        let nodes = [full(10, 8), full(20, 4), full(21, 2), held].map(Verdict::Fits);
        assert_eq!(scores(&nodes, false), [9, 10, 3, 5]);
    }

    prop_compose! {
        fn verdict()(
            known in 0..8, broken in 0..2_usize, cost in 0..6_u32, free in 0..16_usize, breaks: bool,
            at_full_speed: bool, less in 0..2_u32,
        ) -> Verdict {
            let fit = Fit {
                at_full_speed: at_full_speed && less == 0,
                least: f64::from(cost.saturating_sub(less)),
                ..fit(broken, cost, free, breaks)
            };
            if known == 0 { Verdict::Unknown } else { Verdict::Fits(fit) }
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
            let all: Vec<Fit> = fits.iter().map(|(fit, _)| **fit).collect();
            let order = Order::of(&all, gang);
            let best = fits.iter().map(|(_, score)| *score).max();
            prop_assert!(fits.is_empty() || best == Some(BEST));
            for (a, of_a) in &fits {
                prop_assert!((1..=BEST).contains(of_a));
                for (b, of_b) in &fits {
                    let order = order.all(a, b);
                    prop_assert!(order.is_gt() || of_a >= of_b);
                    prop_assert!(!(order.is_gt() && *of_a == BEST));
                }
            }
        }
    }
}
