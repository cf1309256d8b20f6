//! The state of a round: what the jobs so far have taken or reserved, on top of the index.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nvlink_topology::Scope;

use crate::{
    Job, Millis, Name, Settings,
    assumed_end::{FAR, UNKNOWN},
    cluster::Cluster,
    gang_kind::{GangKinds, GroupId, LEVELS, group_of},
    job::total,
    job_kind::{Bar, JobSpec, Kinds},
    node_entry::Node,
    preference::Preference,
    profile::{Interval, Owner, Profile, Starts},
    queue::{Entry, Queue},
    round::{
        quota::Quotas,
        reasons::Class,
        target::{Chosen, Part, Target},
    },
    search::{Found, Search},
    seats::Ranked,
};

/// What a round reads and what it has planned so far.
pub(crate) struct Plan<'a> {
    pub(crate) now: Millis,
    pub(crate) settings: &'a Settings,
    pub(crate) classes: &'a BTreeMap<Name, crate::Class>,
    pub(crate) cluster: &'a Cluster,
    pub(crate) queue: &'a Queue,
    pub(crate) search: &'a mut Search,
    pub(crate) kinds: &'a mut Kinds,
    pub(crate) gangs: &'a mut GangKinds,
    pub(crate) overlay: Overlay,
    /// Kinds that only this round needs.
    joined: Vec<u32>,
    /// Why jobs wait, by kind, number of members and the gang's scope: it is the same for all of
    /// them.
    pub(crate) reasons: HashMap<(u32, usize, Scope), Class>,
    /// The least time of the traffic between pods, by kind, number of members and scope, seconds
    /// per byte of payload.
    pub(crate) least_between: HashMap<(u32, usize, Scope), Option<f64>>,
}

/// What a round has planned so far, on top of what the index knows.
#[derive(Default)]
pub(crate) struct Overlay {
    pub(crate) quotas: Quotas,
    /// The profiles of the nodes that this round has planned something on.
    pub(crate) touched: HashMap<u32, Profile>,
    /// These nodes by their groups.
    pub(crate) touched_groups: HashMap<GroupId, BTreeSet<u32>>,
    /// The numbers of these nodes, again each time.
    log: Vec<u32>,
    live: HashMap<(u32, bool), Live>,
}

/// The touched nodes for a kind, best first.
#[derive(Default)]
struct Live {
    /// How much of the log this has seen.
    seen: usize,
    /// Those without reservations: how long a job holds its GPUs makes no difference.
    sure: BTreeMap<Preference, u32>,
    /// The others, by the least that is to be expected of them: as if the job took no time.
    order: BTreeMap<Preference, u32>,
    keys: HashMap<u32, Preference>,
    /// All nodes of the kind's index before this key are touched.
    untouched: Option<Preference>,
}

impl Overlay {
    /// Replaces the profile of a node.
    pub(crate) fn touch(&mut self, number: u32, node: &Node, profile: Profile) {
        for level in LEVELS {
            if let Some(group) = group_of(node, level) {
                let touched = self.touched_groups.entry(group).or_default();
                touched.insert(number);
            }
        }
        self.touched.insert(number, profile);
        self.log.push(number);
    }
}

/// The state of the planner that a round reads, with the caches that it fills.
pub(crate) struct State<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) classes: &'a BTreeMap<Name, crate::Class>,
    pub(crate) cluster: &'a Cluster,
    pub(crate) queue: &'a Queue,
    pub(crate) search: &'a mut Search,
    pub(crate) kinds: &'a mut Kinds,
    pub(crate) gangs: &'a mut GangKinds,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(state: State<'a>, now: Millis) -> Self {
        Self {
            now,
            settings: state.settings,
            classes: state.classes,
            cluster: state.cluster,
            queue: state.queue,
            search: state.search,
            kinds: state.kinds,
            gangs: state.gangs,
            overlay: Overlay::default(),
            joined: Vec::new(),
            reasons: HashMap::new(),
            least_between: HashMap::new(),
        }
    }

    /// Ends the round: gives back the kinds that only it needed.
    pub(crate) fn finish(self) {
        for kind in self.joined {
            self.kinds.leave(kind);
        }
    }

    /// Returns the number of a kind for the rest of this round.
    pub(crate) fn join(&mut self, spec: JobSpec) -> u32 {
        let kind = self.kinds.join(spec);
        self.joined.push(kind);
        kind
    }

    /// Returns a node's profile with all that was planned so far.
    pub(crate) fn profile(&self, node: u32) -> Option<&Profile> {
        let planned = self.overlay.touched.get(&node);
        planned.or_else(|| Some(&self.cluster.node(node)?.profile))
    }

    /// Returns the node where a job of this kind could start first, from `after` on, and
    /// hold its GPUs for `length`. With `best`, only placements of the least cost count.
    pub(crate) fn choose(
        &mut self,
        kind: u32,
        best: bool,
        after: Millis,
        length: Millis,
    ) -> Option<Chosen> {
        let spec = self.kinds.get(kind)?.spec.clone();
        let least = self.kinds.least(kind, self.cluster, self.search);
        if best && least.is_none() {
            return None;
        }
        let bar = Bar { least, best };
        let mut live = self.overlay.live.remove(&(kind, best)).unwrap_or_default();
        self.catch_up(&mut live, &spec, bar);
        let untouched = self.untouched(&mut live, kind, best);
        let starts = Starts::from(after, length);
        let sure = live.sure.first_key_value().map(|(_, &node)| node);
        let known = untouched.into_iter().chain(sure);
        let known = known.filter_map(|node| self.rate(&spec, node, starts, bar));
        let mut chosen = known.min_by(|a, b| a.key.cmp(&b.key));
        for (least, &node) in &live.order {
            let least = (least.start.max(after), least.worth);
            let beaten = chosen.as_ref().is_some_and(|chosen| {
                let key = &chosen.key;
                // At a later time than now more may be free, so only the time is certain.
                least.0 > key.start
                    || (after == self.now && least.0 == key.start && least.1 > key.worth)
            });
            if beaten {
                break;
            }
            let until = chosen
                .as_ref()
                .map_or(Millis::MAX, |chosen| chosen.key.start);
            let starts = Starts { until, ..starts };
            let Some(found) = self.rate(&spec, node, starts, bar) else {
                continue;
            };
            if chosen.as_ref().is_none_or(|best| found.key < best.key) {
                chosen = Some(found);
            }
        }
        self.overlay.live.insert((kind, best), live);
        chosen
    }

    /// Rates one node exactly.
    pub(crate) fn rate(
        &mut self,
        spec: &JobSpec,
        number: u32,
        starts: Starts,
        bar: Bar,
    ) -> Option<Chosen> {
        let node = self.cluster.node(number)?;
        let profile = self.overlay.touched.get(&number).unwrap_or(&node.profile);
        let (key, found) = spec.rate(self.search, node, profile, starts, bar)?;
        Some(Chosen {
            key,
            node: number,
            found,
        })
    }

    /// Returns what all placements of jobs of this kind are compared with.
    pub(crate) fn bar(&mut self, kind: u32) -> Bar {
        Bar {
            least: self.kinds.least(kind, self.cluster, self.search),
            best: false,
        }
    }

    /// Returns the earliest time at which a job of this kind could start if it took no
    /// time: a lower bound.
    pub(crate) fn lower_bound(&mut self, kind: u32) -> Option<Millis> {
        let spec = self.kinds.get(kind)?.spec.clone();
        let bar = self.bar(kind);
        let mut live = self.overlay.live.remove(&(kind, false)).unwrap_or_default();
        self.catch_up(&mut live, &spec, bar);
        let untouched = self.untouched(&mut live, kind, false);
        let untouched =
            untouched.and_then(|node| self.rate(&spec, node, Starts::from(self.now, 0), bar));
        let orders = [&live.sure, &live.order].into_iter();
        let touched = orders.filter_map(|order| order.first_key_value());
        let first = touched.map(|(key, _)| key.start).min();
        self.overlay.live.insert((kind, false), live);
        let starts = untouched.map(|chosen| chosen.key.start);
        starts.into_iter().chain(first).min()
    }

    fn catch_up(&mut self, live: &mut Live, spec: &JobSpec, bar: Bar) {
        while live.seen < self.overlay.log.len() {
            let number = self.overlay.log[live.seen];
            live.seen += 1;
            if let Some(old) = live.keys.remove(&number) {
                live.order.remove(&old);
                live.sure.remove(&old);
            }
            let node = self.cluster.node(number);
            if !node.is_some_and(|node| node.is_ready() && node.is_in(&spec.sets)) {
                continue;
            }
            if let Some(chosen) = self.rate(spec, number, Starts::from(self.now, 0), bar) {
                let planned = self.overlay.touched.get(&number);
                let sure = planned.is_none_or(|planned| planned.is_free_of_plans(self.now));
                let order = if sure {
                    &mut live.sure
                } else {
                    &mut live.order
                };
                order.insert(chosen.key.clone(), number);
                live.keys.insert(number, chosen.key);
            }
        }
    }

    /// Returns the best node that this round has planned nothing on.
    fn untouched(&mut self, live: &mut Live, kind: u32, best: bool) -> Option<u32> {
        let index = self.kinds.index(kind, best, self.cluster, self.search)?;
        let rest = match &live.untouched {
            Some(key) => index.order().range(key.clone()..),
            None => index.order().range::<Preference, _>(..),
        };
        let mut rest = rest.skip_while(|(_, node)| self.overlay.touched.contains_key(node));
        let (key, &node) = rest.next()?;
        live.untouched = Some(key.clone());
        Some(node)
    }

    /// Adds what somebody takes or reserves on a node.
    pub(crate) fn hold(&mut self, number: u32, interval: Interval) {
        let Some(node) = self.cluster.node(number) else {
            return;
        };
        let planned = self.overlay.touched.remove(&number);
        let mut profile = planned.unwrap_or_else(|| node.profile.clone());
        profile.add(interval);
        self.overlay.touch(number, node, profile);
    }

    /// Takes or reserves the GPUs of a target for a job, and returns its expected start.
    pub(crate) fn take(&mut self, entry: &Entry, ranked: &Ranked<'_>, target: &Target) -> Millis {
        let mean = self.mean(target);
        let mut first = 0;
        for part in &target.parts {
            let members = &ranked.members[first..][..part.members];
            first += part.members;
            let gpus = total(members.iter().map(|member| member.gpus));
            let mut interval = occupancy(&entry.job, gpus, target.start, mean);
            interval.owner = Owner::Job(entry.id.clone());
            interval.set = part.found.set;
            interval.used = resources(members.iter().map(|member| &*member.resources));
            self.hold(part.node, interval);
        }
        let class = self.classes.get(&entry.job.class);
        if let Some(most) = class.and_then(|class| class.max_gpus_per_project) {
            let gpus = total(ranked.members.iter().map(|member| member.gpus));
            let (start, now) = (target.start, self.now);
            let quotas = &mut self.overlay.quotas;
            quotas.add(self.cluster, entry, most, gpus, start, now);
        }
        mean
    }

    /// Gives back what a job has taken on these nodes.
    pub(crate) fn give_back(&mut self, entry: &Entry, nodes: impl Iterator<Item = u32>) {
        let owner = Owner::Job(entry.id.clone());
        for number in nodes {
            if let Some(profile) = self.overlay.touched.get_mut(&number) {
                *profile = profile.without(&owner);
                self.overlay.log.push(number);
            }
        }
        self.overlay.quotas.remove(entry);
    }

    /// Returns the expected start of a target, not before now and not after its start.
    pub(crate) fn mean(&self, target: &Target) -> Millis {
        let mean = |part: &Part| {
            let profile = self.profile(part.node)?;
            profile.mean(part.found.set, target.start)
        };
        let mean = target.parts.iter().filter_map(mean).max();
        mean.unwrap_or(self.now)
            .clamp(self.now, target.start.max(self.now))
    }

    /// Returns the settings of a class.
    pub(crate) fn class(&self, name: &Name) -> Option<&crate::Class> {
        self.classes.get(name)
    }
}

/// Returns how long a job is planned to hold its GPUs; [`UNKNOWN`] if that is not known.
pub(crate) fn length(job: &Job) -> Millis {
    let upper = job.duration.map(|duration| duration.upper().max(1));
    upper.map_or(UNKNOWN, |upper| upper.min(UNKNOWN))
}

/// Returns the interval in which a job that starts at `start` holds `gpus` GPUs.
pub(crate) fn occupancy(job: &Job, gpus: u32, start: Millis, mean: Millis) -> Interval {
    let until = match job.duration {
        None if start < FAR => FAR + Millis::from(gpus),
        _ => start.saturating_add(length(job)),
    };
    let lasts = job.duration.map(|duration| duration.mean.max(1));
    Interval {
        owner: Owner::Outside,
        set: nvlink_topology::GpuSet::EMPTY,
        count: gpus,
        from: start,
        until,
        mean: lasts.map_or(until, |lasts| mean.saturating_add(lasts)),
        used: Vec::new(),
    }
}

/// Returns the sum of what members ask of other resources.
pub(crate) fn resources<'a>(members: impl Iterator<Item = &'a [u64]>) -> Vec<u64> {
    let mut sum: Vec<u64> = Vec::new();
    for member in members {
        sum.resize(sum.len().max(member.len()), 0);
        let both = sum.iter_mut().zip(member);
        both.for_each(|(sum, more)| *sum = sum.saturating_add(*more));
    }
    sum
}

/// Returns the closest scope that contains a placement on one node.
pub(crate) fn scope_of(cluster: &Cluster, node: u32, found: &Found) -> Scope {
    let graph = cluster.node(node).map(|node| &node.shared.graph);
    let mut domains = graph.into_iter().flat_map(|graph| graph.domains());
    if found.set.len() == 1 {
        Scope::Gpu
    } else if domains.any(|(_, domain)| domain.is_superset(found.set)) {
        Scope::NvlinkDomain
    } else {
        Scope::Node
    }
}
