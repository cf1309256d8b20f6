//! Which GPUs of a node are held, from what the API and the exporter's report say.
//!
//! 1. GPUs that the report gives to no pod of the cluster are out, whoever else is said to hold them.
//! 2. A pod that the report names holds what the report says.
//! 3. Another pod holds what was planned for it, as far as the first two leave it.
//! 4. A pod whose GPUs are not all known so holds the lowest GPUs that are left: which
//!    ones the device plugin gives is unknown, but that they are gone is known.
//!
//! A pod that ended or was deleted is not known to the API, so it holds nothing, whatever
//! the report says. Beyond that, the scheduler hands out no more than its own count.

use std::collections::BTreeMap;

use nvlink_topology::GpuSet;

use crate::{
    Estimate, Millis, Name, PodState,
    assumed_end::End,
    node_entry::Node,
    profile::{Interval, Owner, Profile},
};

/// How long a gang keeps the seats of lost members: five minutes from its release, or from the last
/// loss.
pub(crate) const HOLD: Millis = 300_000;

/// Somebody who holds GPUs.
struct Holding<'a> {
    owner: Owner,
    set: GpuSet,
    count: u32,
    since: Millis,
    end: Option<Estimate>,
    used: &'a [u64],
}

/// A node's profile, and how long it is valid.
pub(crate) struct Built {
    pub(crate) profile: Profile,
    pub(crate) valid: Millis,
    pub(crate) adjusted: bool,
}

/// A node, its pods and its vacant seats.
pub(crate) struct View<'a> {
    node: &'a Node,
    /// In the order of their start, then of their ids.
    pods: Vec<(&'a Name, &'a PodState)>,
    vacant: Vec<Vacant<'a>>,
}

/// GPUs that a gang keeps for a lost member.
pub(crate) struct Vacant<'a> {
    pub(crate) job: &'a Name,
    pub(crate) set: GpuSet,
    pub(crate) until: Millis,
}

impl<'a> View<'a> {
    /// Returns the view of `node` with the pods and the vacant seats on it.
    pub(crate) fn new(
        node: &'a Node,
        mut pods: Vec<(&'a Name, &'a PodState)>,
        vacant: Vec<Vacant<'a>>,
    ) -> Self {
        pods.sort_by_key(|&(id, pod)| (pod.since, id));
        Self { node, pods, vacant }
    }

    /// Returns the node's profile at `now`.
    pub(crate) fn profile(&self, now: Millis) -> Built {
        let state = &self.node.state;
        let all = self.node.shared.graph.all();
        let mut built = Built {
            profile: Profile::new(all, state.capacity, &state.resources),
            valid: Millis::MAX,
            adjusted: false,
        };
        let mut unknown = 0_u32;
        let (outside, holdings) = self.holdings();
        if !outside.is_empty() {
            built.profile.add(forever(outside));
        }
        let mut taken = outside;
        for holding in holdings {
            taken = taken.union(holding.set);
            if holding.end.is_none() {
                unknown = unknown.saturating_add(holding.count);
            }
            let end = match holding.end {
                None if holding.count == 0 => End::NEVER,
                end => End::of(end, holding.since, unknown, now),
            };
            built.valid = built.valid.min(end.valid);
            built.adjusted |= end.adjusted;
            built.profile.add(Interval {
                owner: holding.owner,
                set: holding.set,
                count: holding.count,
                from: Millis::MIN,
                until: end.until,
                mean: end.mean,
                used: holding.used.to_vec(),
            });
        }
        self.keep_vacant(taken, now, &mut built);
        built
    }

    /// Returns the GPUs that nobody but `pod` holds.
    pub(crate) fn free_but_for(&self, pod: &Name) -> GpuSet {
        let (outside, holdings) = self.holdings();
        let others = holdings
            .iter()
            .filter(|holding| !matches!(&holding.owner, Owner::Pod(id) if id == pod));
        let held = others.fold(outside, |held, one| held.union(one.set));
        let vacant = self
            .vacant
            .iter()
            .fold(held, |held, one| held.union(one.set));
        self.node.shared.graph.all().difference(vacant)
    }

    fn keep_vacant(&self, mut taken: GpuSet, now: Millis, built: &mut Built) {
        for &Vacant { job, set, until } in &self.vacant {
            let set = set.difference(taken);
            built.adjusted = true; // a clock that is set back revives the seat
            if until <= now || set.is_empty() {
                continue;
            }
            taken = taken.union(set);
            built.valid = built.valid.min(until);
            built.profile.add(Interval {
                owner: Owner::Vacant(job.clone()),
                set,
                count: u32::try_from(set.len()).unwrap_or(u32::MAX),
                from: Millis::MIN,
                until,
                mean: until,
                used: Vec::new(),
            });
        }
    }

    /// Returns the GPUs that nobody in the cluster holds and that are out, and who holds
    /// the others.
    fn holdings(&self) -> (GpuSet, Vec<Holding<'a>>) {
        let (outside, mut reported) = self.reported();
        let named = reported.values().copied();
        let mut taken = named.fold(outside, GpuSet::union);
        let planned = |&(id, pod): &(&Name, &PodState)| {
            (!reported.contains_key(id)).then(|| (id.clone(), self.node.positions(&pod.planned)))
        };
        let planned: Vec<(Name, GpuSet)> = self.pods.iter().filter_map(planned).collect();
        for (id, set) in planned {
            reported.insert(id, set.difference(taken));
            taken = taken.union(set);
        }
        let all = self.node.shared.graph.all();
        let holding = |&(id, pod): &(&'a Name, &'a PodState)| {
            let mut set = reported.get(id).copied().unwrap_or_default();
            for next in all.difference(taken).iter() {
                if set.len() >= pod.gpus as usize {
                    break;
                }
                set.insert(next);
                taken.insert(next);
            }
            let known = u32::try_from(set.len()).unwrap_or(u32::MAX);
            // Those that are out count once.
            let set = set.difference(outside);
            let out = known.saturating_sub(u32::try_from(set.len()).unwrap_or(u32::MAX));
            Holding {
                owner: Owner::Pod(id.clone()),
                set,
                count: pod.gpus.max(known).saturating_sub(out),
                since: pod.since,
                end: pod.end,
                used: &pod.resources,
            }
        };
        let holdings = self.pods.iter().map(holding).collect();
        (outside, holdings)
    }

    /// Returns the GPUs that the report gives to nobody in the cluster, and those that it
    /// gives to pods of this node.
    fn reported(&self) -> (GpuSet, BTreeMap<Name, GpuSet>) {
        let here = |id: &Name| self.pods.iter().any(|(pod, _)| *pod == id);
        let mut outside = GpuSet::EMPTY;
        let mut reported: BTreeMap<Name, GpuSet> = BTreeMap::new();
        for held in &self.node.state.held {
            let set = self.node.positions(&held.gpus);
            match &held.pod {
                None => outside = outside.union(set),
                Some(pod) if here(pod) => {
                    let known = reported.entry(pod.clone()).or_default();
                    *known = known.union(set);
                }
                Some(_) => {}
            }
        }
        reported.retain(|_, set| !set.is_empty());
        (outside, reported)
    }
}

/// Returns an interval of GPUs that are out until the report changes.
fn forever(set: GpuSet) -> Interval {
    Interval {
        owner: Owner::Outside,
        set,
        count: u32::try_from(set.len()).unwrap_or(u32::MAX),
        from: Millis::MIN,
        until: Millis::MAX,
        mean: Millis::MAX,
        used: Vec::new(),
    }
}
