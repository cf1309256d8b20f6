//! The members of a gang together: their order, and whether all are there.

use std::collections::{BTreeMap, BTreeSet};

use super::{Doubt, Gang, Life, Member};

/// The members of a gang together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assembly {
    /// The members that are live, in the order of their ranks, as indices into what was given.
    pub order: Vec<usize>,
    /// Number of pods that do not exist yet, or that only gates of others hold back; `None` if
    /// nothing says how many there are, or the pods say different numbers.
    pub missing: Option<u32>,
    /// What is odd.
    pub doubts: Vec<Doubt>,
}

impl Assembly {
    /// Returns why nobody can say whether the gang is complete.
    #[must_use]
    pub fn undecided(&self) -> Option<&Doubt> {
        let undecides =
            |doubt: &&Doubt| matches!(doubt, Doubt::NoSize | Doubt::NoObject(_) | Doubt::Sizes(_));
        let mut doubts = self.doubts.iter().rev();
        doubts.find(undecides).filter(|_| self.missing.is_none())
    }
}

/// Puts the members of one gang together. Those that have ended or are being deleted do not count:
/// whoever recreates them makes the gang whole again. Those with gates of others alone do not
/// either: whoever holds them decides when they start.
#[must_use]
pub fn assemble(members: &[&Member]) -> Assembly {
    let live = members.iter().enumerate();
    let live: Vec<_> = live
        .filter(|(_, member)| counts(&member.life))
        .filter_map(|(at, member)| Some((at, *member, member.gang.as_ref()?)))
        .collect();
    let mut doubts: Vec<Doubt> = Vec::new();
    for (_, _, gang) in &live {
        for doubt in &gang.doubts {
            if !doubts.contains(doubt) {
                doubts.push(doubt.clone());
            }
        }
    }
    let sizes: BTreeSet<_> = live.iter().filter_map(|(_, _, gang)| gang.size).collect();
    let size = sizes.first().copied().filter(|_| sizes.len() == 1);
    if sizes.len() > 1 {
        doubts.push(Doubt::Sizes(sizes.into_iter().collect()));
    }
    let pods = u32::try_from(live.len()).unwrap_or(u32::MAX);
    if let Some(size) = size.filter(|&size| pods > size) {
        doubts.push(Doubt::TooMany { pods, size });
    }
    doubts.extend(ranks(&live, size));
    let mut order = live;
    let unique: BTreeSet<_> = order.iter().filter_map(|(_, _, gang)| gang.rank).collect();
    let unique = unique.len() == order.len();
    order.sort_by_key(|(_, member, gang)| {
        // Ranks that are those of a role follow each other role by role.
        let role = if unique { "" } else { gang.role.as_str() };
        (role, gang.rank.is_none(), gang.rank, &member.name)
    });
    Assembly {
        order: order.into_iter().map(|(at, ..)| at).collect(),
        missing: size.map(|size| size.saturating_sub(pods)),
        doubts,
    }
}

/// Reports whether a member is there: it waits here, or was released.
fn counts(life: &Life) -> bool {
    life.is_live() && !matches!(life, Life::Gated { .. })
}

/// Returns what is odd about the ranks.
fn ranks(live: &[(usize, &Member, &Gang)], size: Option<u32>) -> Vec<Doubt> {
    let mut doubts = Vec::new();
    let ranked = live.iter().filter(|(_, _, gang)| gang.rank.is_some());
    match ranked.count() {
        0 if live.len() > 1 => return vec![Doubt::Unranked],
        0 => return Vec::new(),
        _ => {}
    }
    let mut by_rank: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for (_, member, gang) in live {
        let Some(rank) = gang.rank else {
            // Its own doubt says more.
            if gang.doubts.is_empty() {
                doubts.push(Doubt::NoRank(member.name.clone()));
            }
            continue;
        };
        if let Some(pods) = size.filter(|&size| rank >= size) {
            doubts.push(Doubt::RankOutOfRange { rank, pods });
        }
        let names = by_rank.entry((gang.role.as_str(), rank)).or_default();
        names.push(member.name.clone());
    }
    for ((_, rank), mut pods) in by_rank {
        if pods.len() > 1 {
            pods.sort();
            doubts.push(Doubt::SameRank { rank, pods });
        }
    }
    doubts
}
