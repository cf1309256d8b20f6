//! Which nodes of a group are nearest to each other.
//!
//! Nodes are in groups within groups: a zone has parts of a network, these have racks, and a rack has
//! fabrics. As few pairs of members as possible are in different zones; of these choices, as few as
//! possible in different parts of the network, and so on down to the nodes. That is exact, because the
//! number of pairs in one group grows with the square of the members there: the largest groups are
//! filled whole, and the rest goes into one group that has room for it.

use std::collections::HashMap;

use crate::Name;

/// A node that may hold members of a gang.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    /// Its groups, widest first: as many for each site.
    pub(crate) groups: Vec<Option<Name>>,
    /// The most members that it holds.
    pub(crate) members: u32,
}

impl Site {
    /// Returns its group at a level, and the level of that. Nodes that are not known to be in one, such as
    /// those without a zone, share it if they share a narrower group.
    fn group(&self, level: usize) -> Option<(usize, &Name)> {
        let groups = self.groups.iter().enumerate().skip(level);
        groups
            .filter_map(|(at, group)| Some((at, group.as_ref()?)))
            .next()
    }
}

/// How many members a site gets: its index, and at least one.
pub(crate) type Pick = (usize, u32);

/// Returns the sites that are nearest to each other and together hold so many members; `None` if
/// all of them do not. Of equal choices, that which leaves the largest groups whole, then the one of
/// the first sites.
pub(crate) fn nearest(sites: &[Site], members: u32) -> Option<Vec<Pick>> {
    let all: Vec<usize> = (0..sites.len()).collect();
    let sites = Sites(sites);
    (members > 0 && sites.room(&all) >= members.into())
        .then(|| sites.choose(&all, 0, members).picks)
}

/// Some of the sites, and how many pairs of their members are near.
struct Choice {
    /// For each level below, and the nodes at last: the sum of the squares of the members in each group.
    near: Vec<u64>,
    picks: Vec<Pick>,
}

/// A group of sites.
struct Group {
    sites: Vec<usize>,
    room: u64,
    /// What [`Choice::near`] is if all of it is used.
    near: Vec<u64>,
}

struct Sites<'a>(&'a [Site]);

impl Sites<'_> {
    fn members(&self, site: usize) -> u32 {
        self.0.get(site).map_or(0, |site| site.members)
    }

    fn room(&self, sites: &[usize]) -> u64 {
        sites.iter().map(|&one| u64::from(self.members(one))).sum()
    }

    fn levels(&self) -> usize {
        self.0.first().map_or(0, |site| site.groups.len())
    }

    /// Returns the sites by their group at a level, in the order of the first site of each.
    fn split(&self, sites: &[usize], level: usize) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut known: HashMap<(usize, &Name), usize> = HashMap::new();
        for &site in sites {
            let at = match self.0.get(site).and_then(|one| one.group(level)) {
                Some(group) => *known.entry(group).or_insert(groups.len()),
                None => groups.len(),
            };
            match groups.get_mut(at) {
                Some(group) => group.push(site),
                None => groups.push(vec![site]),
            }
        }
        groups
    }

    /// Returns [`Choice::near`] for all members of sites.
    fn near(&self, sites: &[usize], level: usize) -> Vec<u64> {
        if level == self.levels() {
            let squares = sites.iter().map(|&one| square(self.members(one).into()));
            return vec![squares.sum()];
        }
        let mut near = vec![0; self.levels() - level + 1];
        for group in self.split(sites, level) {
            near[0] += square(self.room(&group));
            add(&mut near[1..], &self.near(&group, level + 1));
        }
        near
    }

    fn groups(&self, sites: &[usize], level: usize) -> Vec<Group> {
        let groups = self.split(sites, level).into_iter().map(|sites| Group {
            room: self.room(&sites),
            near: self.near(&sites, level + 1),
            sites,
        });
        let mut groups: Vec<Group> = groups.collect();
        groups.sort_by(|a, b| b.room.cmp(&a.room).then_with(|| b.near.cmp(&a.near)));
        groups
    }

    /// Chooses among sites that have room.
    fn choose(&self, sites: &[usize], level: usize, members: u32) -> Choice {
        if level == self.levels() {
            return self.fewest(sites, members);
        }
        let groups = self.groups(sites, level);
        let mut missing = u64::from(members);
        let mut whole = 0;
        while let Some(group) = groups.get(whole).filter(|group| group.room < missing) {
            missing -= group.room;
            whole += 1;
        }
        let rest = u32::try_from(missing).unwrap_or(u32::MAX);
        let mut best: Option<(Vec<u64>, usize, Choice)> = None;
        for last in takers(&groups, whole, missing) {
            let choice = self.choose(&groups[last].sites, level + 1, rest);
            let mut near = choice.near.clone();
            for one in used(&groups, whole, last) {
                add(&mut near, &one.near);
            }
            // The rest cannot be nearer, and the best groups are used whole.
            let ideal = choice.near.iter().all(|&near| near == square(missing));
            if best.as_ref().is_none_or(|(other, ..)| near > *other) {
                best = Some((near, last, choice));
            }
            if ideal && last >= whole {
                break;
            }
        }
        let Some((mut near, last, mut choice)) = best else {
            return Choice {
                near: Vec::new(),
                picks: Vec::new(),
            };
        };
        let mut pairs = square(missing);
        for one in used(&groups, whole, last) {
            pairs += square(one.room);
            let all = one.sites.iter().map(|&site| (site, self.members(site)));
            choice.picks.extend(all.filter(|(_, members)| *members > 0));
        }
        near.insert(0, pairs);
        Choice {
            near,
            picks: choice.picks,
        }
    }

    /// Chooses as few sites as possible: the largest, and at last the smallest that holds the rest.
    fn fewest(&self, sites: &[usize], members: u32) -> Choice {
        let mut left = sites.to_vec();
        left.sort_by_key(|&site| std::cmp::Reverse(self.members(site)));
        let mut missing = members;
        let mut picks = Vec::new();
        while missing > 0 && !left.is_empty() {
            let last = left.iter().rposition(|&one| self.members(one) >= missing);
            let room = last.map(|at| self.members(left[at]));
            let first = left.iter().position(|&one| Some(self.members(one)) == room);
            let site = left.remove(first.unwrap_or(0));
            let taken = self.members(site).min(missing);
            missing -= taken;
            picks.push((site, taken));
        }
        let squares = picks.iter().map(|&(_, members)| square(members.into()));
        Choice {
            near: vec![squares.sum()],
            picks,
        }
    }
}

/// Returns the groups that may take the rest, `missing` members: those that it fills best first. A group
/// that could be used whole may take it if another one is as large.
fn takers(groups: &[Group], whole: usize, missing: u64) -> impl Iterator<Item = usize> {
    let rooms = groups.iter().map(|group| group.room).enumerate();
    let mut others: Vec<(u64, usize)> = rooms
        .clone()
        .filter(|&(at, room)| at >= whole && room >= missing)
        .map(|(at, room)| (room, at))
        .collect();
    others.sort_unstable();
    let next = groups.get(whole).map(|group| group.room);
    let as_large = rooms.filter(move |&(at, room)| at < whole && Some(room) == next);
    let as_large = as_large.map(|(at, _)| at);
    others.into_iter().map(|(_, at)| at).chain(as_large)
}

/// Returns the groups that are used whole if another one takes the rest: the `whole` first ones, without
/// that.
fn used(groups: &[Group], whole: usize, last: usize) -> impl Iterator<Item = &Group> {
    let others = groups.iter().enumerate().filter(move |(at, _)| *at != last);
    others.map(|(_, group)| group).take(whole)
}

fn square(number: u64) -> u64 {
    number.saturating_mul(number)
}

fn add(sums: &mut [u64], more: &[u64]) {
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum = sum.saturating_add(*more);
    }
}

#[cfg(test)]
#[path = "nearest/tests.rs"]
mod tests;
