//! Gangs that span nodes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use nvlink_topology::{
    Fabric, Scope,
    multi_node::{Gang, local, plain},
};

use crate::{
    Job, Millis, Name,
    gang_kind::{Fit, GangIndex, GangSpec, Group, GroupId},
    job::total,
    profile::{Need, Profile, Starts, Stay},
    queue::Entry,
    round::{
        nearest::{Site, nearest},
        plan::Plan,
        target::{Part, Target},
    },
    search::Ask,
};

/// Of so many groups in which a gang can start at once, those that it fills best, the one of least
/// cost is taken.
const MOST_GROUPS: usize = 32;

/// A node of a group and what fits on it.
struct Place {
    node: u32,
    fit: Fit,
    /// Seconds per byte of payload, over the node's edge too.
    cost: f64,
}

/// Returns the sets in which a job's nodes must be, sorted.
pub(crate) fn sets(job: &Job) -> Vec<Name> {
    let mut sets = job.within.clone();
    sets.push(job.class.clone());
    sets.sort_unstable();
    sets.dedup();
    sets
}

impl Plan<'_> {
    /// Returns what a gang asks of the nodes that it spans; `None` for one pod.
    pub(crate) fn gang_spec(&self, entry: &Entry) -> Option<GangSpec> {
        let job = &entry.job;
        let gang = self.gang(entry)?;
        let mut resources: Vec<u64> = Vec::new();
        for member in &job.members {
            resources.resize(resources.len().max(member.resources.len()), 0);
            let both = resources.iter_mut().zip(&member.resources);
            both.for_each(|(most, own)| *most = (*most).max(*own));
        }
        let class = self.class(&job.class);
        let member = Ask {
            gpus: u32::try_from(gang.gpus).unwrap_or(u32::MAX).max(1),
            pattern: plain(job.pattern),
            scope: local(job.scope),
            broken: class.map(|class| class.broken).unwrap_or_default(),
        };
        Some(GangSpec {
            sets: sets(job),
            member,
            resources,
            scope: job.gang_scope,
            without_fabrics: gang.without_fabrics,
        })
    }

    /// Returns when and where a gang could start first over several nodes.
    pub(crate) fn choose_gang(
        &mut self,
        entry: &Entry,
        spec: &GangSpec,
        after: Millis,
        length: Millis,
    ) -> Option<Target> {
        let pods = u64::try_from(entry.job.members.len()).unwrap_or(u64::MAX);
        self.gangs.index(spec, self.cluster, self.search);
        let mut ids = self.groups_for(spec, pods);
        let starts = Starts::from(after, length);
        // Most gangs that start at all start at once, and that is found out sooner.
        let mut candidates = self.first_groups(
            spec,
            &ids,
            pods,
            Starts {
                until: after,
                ..starts
            },
        );
        if candidates.is_empty() {
            // By name: a place that is waited for must not move when a node of it becomes free.
            ids.sort_unstable();
            candidates = self.first_groups(spec, &ids, pods, starts);
        }
        let mut best: Option<Target> = None;
        for (start, id) in candidates {
            let Some(target) = self.fill(entry, spec, &id, Stay { start, length }) else {
                continue;
            };
            if best.as_ref().is_none_or(|best| target.cost < best.cost) {
                best = Some(target);
            }
        }
        best
    }

    /// Returns the groups that can hold so many members first, up to a time, of the closest
    /// scope.
    fn first_groups(
        &mut self,
        spec: &GangSpec,
        ids: &[GroupId],
        pods: u64,
        starts: Starts,
    ) -> Vec<(Millis, GroupId)> {
        let mut first: Option<(Millis, Scope)> = None;
        let mut candidates: Vec<(Millis, GroupId)> = Vec::new();
        for id in ids {
            let until = match first {
                // Only an earlier start makes up for a wider scope.
                Some((start, scope)) if scope != id.0 => start.saturating_sub(1),
                Some((start, _)) => start,
                None => starts.until,
            };
            let Some(start) = self.first_time(spec, id, pods, Starts { until, ..starts }) else {
                continue;
            };
            let rank = (start, id.0);
            if first != Some(rank) {
                first = Some(rank);
                candidates.clear();
            }
            candidates.push((start, id.clone()));
            if start <= starts.after && candidates.len() >= MOST_GROUPS {
                break;
            }
        }
        candidates
    }

    /// Returns the least time of the traffic between the pods of a gang on the nodes of its class:
    /// over NVLink if some fabric can hold it, else over the fastest network.
    pub(crate) fn least_over_nodes(&mut self, entry: &Entry, gang: &Gang) -> Option<f64> {
        let key = (entry.kind, gang.pods, gang.scope);
        if let Some(&known) = self.least_between.get(&key) {
            return known;
        }
        let spec = self.gang_spec(entry)?;
        let pods = u64::try_from(gang.pods).unwrap_or(u64::MAX);
        let ids = self.groups_for(&spec, pods);
        let within = match ids.first() {
            Some(&(Scope::NvlinkDomain, _)) => Scope::NvlinkDomain,
            _ => Scope::Cluster,
        };
        let nodes = self.cluster.nodes().map(|(_, node)| node);
        let usable = nodes.filter(|node| node.is_ready() && node.is_in(&spec.sets));
        let between = usable.map(|node| node.between(gang, within));
        let least = between.min_by(f64::total_cmp);
        self.least_between.insert(key, least);
        least
    }

    /// Returns the groups that can hold so many members at last, closest scope first. Those that hold them
    /// now come first, and of these those in which fewest fit, so that larger ones stay whole.
    fn groups_for(&mut self, spec: &GangSpec, pods: u64) -> Vec<GroupId> {
        let index = self.gangs.index(spec, self.cluster, self.search);
        let large = index.groups.iter().filter(|(_, one)| one.last >= pods);
        let mut large: Vec<(&GroupId, u64)> = large.map(|(id, one)| (id, one.now)).collect();
        large.sort_by_key(|&(id, now)| (id.0, now < pods, now));
        large.into_iter().map(|(id, _)| id.clone()).collect()
    }

    /// Returns the first time up to `until` at which the nodes of a group can hold so many
    /// members.
    fn first_time(
        &mut self,
        spec: &GangSpec,
        id: &GroupId,
        pods: u64,
        starts: Starts,
    ) -> Option<Millis> {
        let (after, until, length) = (starts.after, starts.until, starts.length);
        if after > until {
            return None;
        }
        let touched = self.touched_in(spec, id);
        let (cluster, profiles, search) = (self.cluster, &self.overlay.touched, &mut *self.search);
        let mut fits = |number: u32, at: Millis| {
            let node = cluster.node(number)?;
            let profile = profiles.get(&number)?;
            let stay = Stay { start: at, length };
            let fit = spec.fit(search, node, profile, stay, u32::MAX)?;
            Some(u64::from(fit.members))
        };
        let mut members: BTreeMap<u32, u64> = BTreeMap::new();
        for &node in &touched {
            members.insert(node, fits(node, after).unwrap_or(0));
        }
        let index = self.gangs.built(spec)?;
        let group = index.groups.get(id)?;
        let mut sum = untouched(index, group, &touched, after) + members.values().sum::<u64>();
        if sum >= pods {
            return Some(after);
        }
        if until <= after {
            return None;
        }
        let changes = changes(profiles, &touched, after, length);
        let later = group.events.range((after.saturating_add(1), 0, 0)..);
        let mut later = later
            .filter(|(_, node, _)| !touched.contains(node))
            .peekable();
        let mut changes = changes.into_iter().peekable();
        let mut at = after;
        while sum < pods {
            let base = later.peek().map(|&&(at, ..)| at);
            let planned = changes.peek().map(|&(at, _)| at);
            at = base.into_iter().chain(planned).min()?;
            if at > until {
                return None;
            }
            while let Some(&(.., more)) = later.next_if(|&&(when, ..)| when == at) {
                sum += u64::from(more);
            }
            while let Some((_, node)) = changes.next_if(|&(when, _)| when == at) {
                let now = fits(node, at).unwrap_or(0);
                let before = members.insert(node, now).unwrap_or(0);
                sum = sum + now - before;
            }
        }
        Some(at)
    }

    /// Returns the nodes of a group that this round has planned something on.
    fn touched_in(&self, spec: &GangSpec, id: &GroupId) -> BTreeSet<u32> {
        let Some(index) = self.gangs.built(spec) else {
            return BTreeSet::new();
        };
        let touched = self
            .overlay
            .touched_groups
            .get(id)
            .into_iter()
            .flatten()
            .copied();
        touched.filter(|&node| index.has(node)).collect()
    }

    fn fit(&mut self, spec: &GangSpec, number: u32, stay: Stay, most: u32) -> Option<Fit> {
        let node = self.cluster.node(number)?;
        let profile = self.overlay.touched.get(&number).unwrap_or(&node.profile);
        spec.fit(self.search, node, profile, stay, most)
    }

    /// Chooses the nodes of a group: those of least cost, then those that are nearest to each other,
    /// then those where it does the least harm.
    fn fill(&mut self, entry: &Entry, spec: &GangSpec, id: &GroupId, stay: Stay) -> Option<Target> {
        let pods = u32::try_from(entry.job.members.len()).ok()?;
        let mut places = self.places(entry, spec, id, stay);
        let mut held = 0;
        places.sort_by(|a, b| self.by_cost(a, b));
        let enough = places.iter().position(|place| {
            held += place.fit.members;
            held >= pods
        })?;
        let limit = self.rank(&places[enough]);
        places.retain(|place| self.rank(place) <= limit);
        places.sort_by(|a, b| self.by_harm(a, b));
        let sites: Vec<Site> = places
            .iter()
            .filter_map(|one| self.site(spec, one, stay.start))
            .collect();
        let mut parts: Vec<Part> = Vec::new();
        let mut cost: f64 = 0.0;
        for (at, members) in nearest(&sites, pods)? {
            let place = places.get(at)?;
            let found = match place.fit.members > members {
                true => {
                    let fit = self.fit(spec, place.node, stay, members)?;
                    (fit.members == members).then_some(fit.found)?
                }
                false => Arc::clone(&place.fit.found),
            };
            cost = cost.max(place.cost);
            parts.push(Part {
                node: place.node,
                members: members as usize,
                found,
            });
        }
        parts.sort_by_cached_key(|part| self.in_ring(part.node));
        self.trim(entry, spec, &mut parts, stay)?;
        Some(Target {
            start: stay.start,
            parts,
            within: id.0,
            cost,
        })
    }

    /// Gives each part a placement of exactly its members, where members differ.
    fn trim(
        &mut self,
        entry: &Entry,
        spec: &GangSpec,
        parts: &mut [Part],
        stay: Stay,
    ) -> Option<()> {
        let ranked = crate::seats::ranked(&entry.job.members);
        let mut first = 0;
        for part in parts {
            let own = &ranked.members[first..][..part.members];
            first += part.members;
            let gpus = total(own.iter().map(|member| member.gpus));
            if gpus as usize == part.found.order.len() {
                continue;
            }
            let need = Need {
                gpus,
                resources: &[],
            };
            let node = self.cluster.node(part.node)?;
            let profile = self.overlay.touched.get(&part.node);
            let profile = profile.unwrap_or(&node.profile);
            let free = profile.window(need, stay.start, stay.length)?;
            let sizes = own.iter().map(|member| member.gpus);
            part.found = spec.seat(self.search, node, free, sizes)?.found;
        }
        Some(())
    }

    /// Returns a place with the groups in which other nodes are nearer, widest first. A place that is
    /// waited for has none: it must not move when nodes elsewhere become free.
    fn site(&self, spec: &GangSpec, place: &Place, start: Millis) -> Option<Site> {
        let state = &self.cluster.node(place.node)?.state;
        let fabric = state.fabric.as_ref().filter(|_| !spec.without_fabrics);
        let mut groups = Vec::new();
        if start <= self.now {
            groups = state.groups();
            groups.push(fabric.map(Fabric::id).map(Name::from));
        }
        Some(Site {
            groups,
            members: place.fit.members,
        })
    }

    fn places(&mut self, entry: &Entry, spec: &GangSpec, id: &GroupId, stay: Stay) -> Vec<Place> {
        let pods = u32::try_from(entry.job.members.len()).unwrap_or(u32::MAX);
        let mut nodes = self.touched_in(spec, id);
        let index = self.gangs.built(spec);
        if let Some(group) = index.and_then(|index| index.groups.get(id)) {
            let until = (stay.start, u32::MAX, u32::MAX);
            nodes.extend(group.events.range(..=until).map(|&(_, node, _)| node));
        }
        let gang = self.gang(entry);
        let mut places = Vec::with_capacity(nodes.len());
        for number in nodes {
            let Some(fit) = self.fit(spec, number, stay, pods) else {
                continue;
            };
            let Some(node) = self.cluster.node(number) else {
                continue;
            };
            let between = gang.as_ref().map_or(0.0, |gang| node.between(gang, id.0));
            places.push(Place {
                node: number,
                cost: fit.found.cost.max(between),
                fit,
            });
        }
        places
    }

    /// Returns what makes a place worse, the first thing first: broken GPUs, its cost, and a slow
    /// node.
    fn rank(&self, place: &Place) -> (u8, f64, u8) {
        let slow = self.cluster.node(place.node).map(|node| node.state.slow);
        (place.fit.found.broken, place.cost, slow.unwrap_or(0))
    }

    fn by_cost(&self, a: &Place, b: &Place) -> std::cmp::Ordering {
        let order = self.rank(a).partial_cmp(&self.rank(b));
        let order = order.unwrap_or(std::cmp::Ordering::Equal);
        order.then_with(|| self.name(a.node).cmp(&self.name(b.node)))
    }

    fn by_harm(&self, a: &Place, b: &Place) -> std::cmp::Ordering {
        let interconnect = |place: &Place| {
            self.cluster
                .node(place.node)
                .map(|node| node.interconnect())
        };
        let fullest = b.fit.members.cmp(&a.fit.members);
        let order = fullest.then_with(|| interconnect(a).cmp(&interconnect(b)));
        let order = order.then(a.fit.free.cmp(&b.fit.free));
        order.then_with(|| self.name(a.node).cmp(&self.name(b.node)))
    }

    fn name(&self, number: u32) -> Option<&Name> {
        self.cluster.node(number).map(|node| &node.name)
    }

    /// Returns where a node is in the ring of a gang: nodes of one rack are adjacent.
    fn in_ring(&self, number: u32) -> Option<(Vec<Option<Name>>, Name)> {
        let node = self.cluster.node(number)?;
        Some((node.state.groups(), node.name.clone()))
    }
}

/// Returns when something may change on nodes, for a job of this length.
fn changes(
    profiles: &HashMap<u32, Profile>,
    nodes: &BTreeSet<u32>,
    after: Millis,
    length: Millis,
) -> BTreeSet<(Millis, u32)> {
    let of = |&node: &u32| {
        let times = profiles.get(&node).map(|one| one.changes(after, length));
        times.into_iter().flatten().map(move |at| (at, node))
    };
    nodes.iter().flat_map(of).collect()
}

/// Returns the number of members that fit at `after` on the nodes that nothing is planned on.
fn untouched(index: &GangIndex, group: &Group, touched: &BTreeSet<u32>, after: Millis) -> u64 {
    let now: u64 = touched.iter().map(|&node| index.now(node)).sum();
    let soon = (Millis::MIN + 1, 0, 0)..=(after, u32::MAX, u32::MAX);
    let soon = group.events.range(soon);
    let soon = soon.filter(|(_, node, _)| !touched.contains(node));
    group.now - now + soon.map(|&(.., more)| u64::from(more)).sum::<u64>()
}
