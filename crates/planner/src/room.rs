//! What a node has for jobs at one time: what the rounds see, for those who show it.

use std::collections::BTreeMap;

use crate::{
    Availability, Job, Millis, Name, Planner, node_entry::Node, profile::Owner, round::gang::sets,
};

/// What a node has for jobs at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Who holds its GPUs. Where nobody reported which ones a pod holds, the lowest that are left
    /// stand for them.
    pub held: Vec<Holding>,
    /// The indices of the GPUs that nobody holds; `None` if the node is not described.
    open: Option<Vec<u32>>,
    /// The number of GPUs that the scheduler may still hand out.
    count: u32,
    availability: Availability,
    /// The sets that it belongs to, sorted.
    sets: Vec<Name>,
}

/// GPUs that a pod holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The pod.
    pub pod: Name,
    /// The number of GPUs.
    pub count: u32,
    /// Their indices; none if the node is not described.
    pub gpus: Vec<u32>,
}

impl Room {
    /// Returns how many of the node's GPUs a job can get now that uses only nodes in all of the
    /// sets `within`; of those in `among` alone, if it is given.
    #[must_use]
    pub fn free(&self, among: Option<&[u32]>, within: &[Name]) -> u32 {
        if self.availability != Availability::Ready || !self.is_in(within) {
            return 0;
        }
        let free = match (&self.open, among) {
            (Some(open), None) => open.len(),
            (Some(open), Some(among)) => among.iter().filter(|gpu| open.contains(gpu)).count(),
            (None, Some(among)) => among.len(),
            (None, None) => return self.count,
        };
        u32::try_from(free).unwrap_or(u32::MAX).min(self.count)
    }

    /// Reports whether a job uses the node, if its GPUs are free and jobs may start on it.
    #[must_use]
    pub fn is_for(&self, job: &Job) -> bool {
        self.is_in(&sets(job))
    }

    fn is_in(&self, within: &[Name]) -> bool {
        let mut within = within.iter();
        within.all(|set| self.sets.binary_search(set).is_ok())
    }

    fn of(node: &Node) -> Self {
        let (open, count) = node.profile.free(Millis::MIN);
        let held = node.profile.intervals().iter().filter_map(|one| {
            let Owner::Pod(pod) = &one.owner else {
                return None;
            };
            Some(Holding {
                pod: pod.clone(),
                count: one.count,
                gpus: node.indices(one.set.iter()),
            })
        });
        Self {
            held: held.collect(),
            open: node.described.then(|| node.indices(open.iter())),
            count,
            availability: node.state.availability,
            sets: node.state.sets.clone(),
        }
    }
}

impl Planner {
    /// Returns what each node has for jobs at `now`.
    pub fn rooms(&mut self, now: Millis) -> BTreeMap<Name, Room> {
        self.refresh(now);
        let nodes = self.cluster.nodes();
        nodes
            .map(|(_, node)| (node.name.clone(), Room::of(node)))
            .collect()
    }
}
