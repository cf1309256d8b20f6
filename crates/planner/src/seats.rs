//! Ranks of members, and their seats on GPUs in ring order.

use std::collections::BTreeSet;

use crate::{Member, Name, Seat, node_entry::Node};

/// The members of a job in the order of their ranks.
pub(crate) struct Ranked<'a> {
    pub(crate) members: Vec<&'a Member>,
    /// Whether the ranks were in doubt, so that the order of the ids decides.
    pub(crate) in_doubt: bool,
}

/// Orders members by rank. The ranks must be exactly `0..n` over all members, or within
/// each role; then the roles come in the order of their names.
pub(crate) fn ranked(members: &[Member]) -> Ranked<'_> {
    let mut ordered: Vec<&Member> = members.iter().collect();
    ordered.sort_by(|a, b| a.pod.cmp(&b.pod));
    if members.len() == 1 || members.iter().all(|member| member.rank.is_none()) {
        return Ranked {
            in_doubt: false,
            members: ordered,
        };
    }
    if are_ranks(members.iter()) {
        ordered.sort_by_key(|member| member.rank);
        return Ranked {
            members: ordered,
            in_doubt: false,
        };
    }
    let roles: BTreeSet<Option<&Name>> = members.iter().map(|one| one.role.as_ref()).collect();
    let ranks_of =
        |role: Option<&Name>| are_ranks(members.iter().filter(|one| one.role.as_ref() == role));
    let in_doubt = roles.len() < 2 || !roles.iter().all(|&role| ranks_of(role));
    if !in_doubt {
        ordered.sort_by(|a, b| (&a.role, a.rank).cmp(&(&b.role, b.rank)));
    }
    Ranked {
        members: ordered,
        in_doubt,
    }
}

/// Reports whether the ranks are `0..n`, each once.
fn are_ranks<'a>(members: impl Iterator<Item = &'a Member> + Clone) -> bool {
    let n = members.clone().count();
    let ranks: BTreeSet<u32> = members.filter_map(|member| member.rank).collect();
    ranks.len() == n && ranks.last().is_some_and(|&last| last as usize + 1 == n)
}

/// Gives members, in the order of their ranks, consecutive GPUs of `order`. The first of
/// them has rank `first`.
pub(crate) fn consecutive(node: &Node, members: &[&Member], first: u32, order: &[u8]) -> Vec<Seat> {
    let mut rest = order;
    let mut seats = Vec::with_capacity(members.len());
    for (rank, member) in (first..).zip(members) {
        let (own, others) = rest.split_at(rest.len().min(member.gpus as usize));
        rest = others;
        seats.push(node.seat(&member.pod, rank, own));
    }
    seats
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(pod: &str, rank: Option<u32>, role: Option<&str>) -> Member {
        Member {
            pod: pod.into(),
            gpus: 1,
            rank,
            role: role.map(Into::into),
            resources: Vec::new(),
        }
    }

    fn order(members: &[Member]) -> (String, bool) {
        let ranked = ranked(members);
        let pods: Vec<&str> = ranked.members.iter().map(|one| &*one.pod).collect();
        (pods.join(" "), ranked.in_doubt)
    }

    #[test]
    fn ranks_decide_unless_they_are_in_doubt() {
        let ranks = |ranks: [Option<u32>; 3]| ranks.map(|rank| (rank, None));
        let two_roles = [
            (Some(0), Some("worker")),
            (Some(1), Some("router")),
            (Some(0), Some("router")),
        ];
        let cases = [
            (ranks([Some(2), Some(0), Some(1)]), "b c a", false),
            (ranks([None, None, None]), "a b c", false),
            (ranks([Some(2), Some(0), Some(0)]), "a b c", true),
            (ranks([Some(2), Some(0), None]), "a b c", true),
            (ranks([Some(3), Some(0), Some(1)]), "a b c", true),
            (two_roles, "c b a", false),
        ];
        for (given, expected, in_doubt) in cases {
            let members: Vec<Member> = ["a", "b", "c"]
                .iter()
                .zip(given)
                .map(|(pod, (rank, role))| member(pod, rank, role))
                .collect();
            assert_eq!(order(&members), (expected.to_owned(), in_doubt));
        }
    }
}
