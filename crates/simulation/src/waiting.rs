//! The queue of kube-scheduler.
//!
//! kube-scheduler tries the pods of its active queue by priority, then by the time since
//! which they are in it. A pod that fits nowhere blocks nobody: it leaves the active queue,
//! and returns when a pod with GPUs ends (the queueing hint of NodeResourcesFit) or backs off
//! for at most 10 s; a scheduler with nothing else to do cuts the back-off short
//! (SchedulerPopFromBackoffQ, since Kubernetes 1.33). Every attempt renews the time, but all
//! waiting pods are tried again in the same order, so that they keep it: by priority, then by
//! arrival. Here a scheduler takes no time and nobody backs off.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use crate::cluster::Demand;

/// Jobs that wait. Entries are numbered by arrival.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// By size: if a job does not fit, no other of its size fits in the same round.
    sizes: BTreeMap<Demand, BTreeSet<(Reverse<i32>, usize)>>,
}

impl Waiting {
    pub(crate) fn add(&mut self, entry: usize, priority: i32, demand: Demand) {
        let size = self.sizes.entry(demand).or_default();
        size.insert((Reverse(priority), entry));
    }

    /// Tries all jobs in the order of the queue. Those that `fit` accepts leave it.
    pub(crate) fn try_all<T>(&mut self, mut fit: impl FnMut(usize, Demand) -> Option<T>) -> Vec<T> {
        let mut tried = BTreeSet::new();
        let mut started = Vec::new();
        loop {
            let sizes = self.sizes.iter().filter(|(size, _)| !tried.contains(*size));
            let heads = sizes.filter_map(|(&size, jobs)| Some((*jobs.first()?, size)));
            let Some((head, size)) = heads.min() else {
                break;
            };
            match fit(head.1, size) {
                Some(start) => {
                    started.push(start);
                    if let Some(jobs) = self.sizes.get_mut(&size) {
                        jobs.remove(&head);
                    }
                }
                None => {
                    tried.insert(size);
                }
            }
        }
        self.sizes.retain(|_, jobs| !jobs.is_empty());
        started
    }
}
