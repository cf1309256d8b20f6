//! Remembers what was free when each pod came.
//!
//! There is no clock in it: pods that are new in a look came after those that
//! were there in the look before. What the looks cannot tell is decided so:
//!
//! * Pods that are new in the same look came together: the GPUs of each were
//!   free for the others, too. So none is flattered by a guess at their order.
//! * Pods that left between two looks left before the new ones came.
//! * Of pods that are there at the first look nothing is known but what the
//!   record says: the allocations that an earlier process has published.

use std::collections::{BTreeMap, BTreeSet};

use nvlink_topology::Allocation;

use super::holdings::{Held, Holdings, PodName};

/// What is known of the pods of the last look.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    /// None before the first look.
    pods: Option<BTreeMap<PodName, Pod>>,
    record: Vec<Allocation>,
}

#[derive(Clone, Debug)]
struct Pod {
    containers: BTreeMap<String, Held>,
    /// Its own GPUs among them; none where it is not known.
    free: Option<BTreeSet<u32>>,
    /// It was there at the first look.
    first: bool,
}

impl Pod {
    fn gpus(&self) -> impl Iterator<Item = u32> {
        self.containers
            .values()
            .flat_map(|held| held.gpus.iter().copied())
    }

    /// Whether it still is the pod that `now` is, and not another of its name.
    fn is(&self, now: &BTreeMap<String, Held>) -> bool {
        let same =
            |(name, held): (&String, &Held)| now.get(name).is_some_and(|now| now.ids == held.ids);
        self.containers.iter().any(same)
    }
}

impl Tracker {
    /// Takes what an earlier process has published, before the first look or after it.
    pub(super) fn restore(&mut self, record: Vec<Allocation>) {
        self.record = record;
        let unknown = |pod: &&mut Pod| pod.first && pod.free.is_none();
        for (name, pod) in self.pods.iter_mut().flatten() {
            if let Some(pod) = Some(pod).filter(unknown) {
                pod.free = recorded(&self.record, name, &pod.containers);
            }
        }
    }

    /// The allocations, by namespace, pod, container, on a node with the GPUs `all`.
    pub(super) fn look(&mut self, all: &[u32], holdings: &Holdings) -> Vec<Allocation> {
        let mut before = self.pods.take();
        let first = before.is_none();
        let mut old = BTreeMap::new();
        let mut new = BTreeMap::new();
        for (name, containers) in &holdings.pods {
            let known = before.as_mut().and_then(|pods| pods.remove(name));
            match known.filter(|pod| pod.is(containers)) {
                Some(pod) => {
                    let containers = containers.clone();
                    old.insert(name.clone(), Pod { containers, ..pod });
                }
                None => {
                    new.insert(name.clone(), containers);
                }
            }
        }
        let taken: BTreeSet<u32> = old.values().flat_map(Pod::gpus).collect();
        let mut pods = old;
        for (name, containers) in new {
            let own = containers.values().flat_map(|held| &held.gpus);
            let free = match first {
                true => recorded(&self.record, &name, containers),
                false => {
                    let left = all.iter().filter(|gpu| !taken.contains(gpu));
                    Some(left.chain(own).copied().collect())
                }
            };
            let containers = containers.clone();
            pods.insert(
                name,
                Pod {
                    containers,
                    free,
                    first,
                },
            );
        }
        let allocations = pods.iter().flat_map(allocations).collect();
        self.pods = Some(pods);
        allocations
    }
}

/// What the record says was free for a pod.
fn recorded(
    record: &[Allocation],
    (namespace, pod): &PodName,
    containers: &BTreeMap<String, Held>,
) -> Option<BTreeSet<u32>> {
    let one = record.iter().find(|one| {
        let held = containers.get(&one.container);
        one.namespace == *namespace
            && one.pod == *pod
            && held.is_some_and(|held| held.gpus.iter().eq(&one.gpus))
    })?;
    let free = one.free_when_placed.as_ref()?;
    Some(free.iter().copied().collect())
}

fn allocations((name, pod): (&PodName, &Pod)) -> Vec<Allocation> {
    let own = pod.gpus();
    // A pod that got more than it came with had that free as well.
    let free = pod.free.clone().map(|free| free.into_iter().chain(own));
    let free: Option<BTreeSet<u32>> = free.map(Iterator::collect);
    let one = |(container, held): (&String, &Held)| Allocation {
        namespace: name.0.clone(),
        pod: name.1.clone(),
        container: container.clone(),
        gpus: held.gpus.iter().copied().collect(),
        free_when_placed: free.as_ref().map(|free| free.iter().copied().collect()),
    };
    pod.containers.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [u32; 4] = [0, 1, 2, 3];

    /// `pod/container=0,1` each.
    fn holdings(pods: &[&str]) -> Holdings {
        let mut holdings = Holdings::default();
        for text in pods {
            let (name, gpus) = text.split_once('=').unwrap();
            let (pod, container) = name.split_once('/').unwrap();
            let gpus: BTreeSet<u32> = gpus.split(',').map(|gpu| gpu.parse().unwrap()).collect();
            let ids = gpus.iter().map(|gpu| format!("GPU-{gpu}")).collect();
            let name = ("ci".to_owned(), pod.to_owned());
            let containers = holdings.pods.entry(name).or_default();
            containers.insert(container.to_owned(), Held { ids, gpus });
        }
        holdings
    }

    fn free(tracker: &mut Tracker, pods: &[&str]) -> Vec<Option<Vec<u32>>> {
        let allocations = tracker.look(&ALL, &holdings(pods));
        allocations
            .into_iter()
            .map(|one| one.free_when_placed)
            .collect()
    }

    #[test]
    fn free_is_what_earlier_pods_do_not_hold() {
        let mut tracker = Tracker::default();
        assert_eq!(free(&mut tracker, &["a/c=0"]), [None], "already there");
        let with_b = [None, Some(vec![1, 2, 3])];
        assert_eq!(free(&mut tracker, &["a/c=0", "b/c=2"]), with_b);
        // b stays as it came, whoever leaves and comes.
        assert_eq!(free(&mut tracker, &["b/c=2"]), [Some(vec![1, 2, 3])]);
        let with_d = [Some(vec![1, 2, 3]), Some(vec![0, 1, 3])];
        assert_eq!(free(&mut tracker, &["b/c=2", "d/c=0,1"]), with_d);
    }

    #[test]
    fn pods_of_one_look_came_together() {
        let mut tracker = Tracker::default();
        assert!(free(&mut tracker, &[]).is_empty());
        let all = Some(ALL.to_vec());
        let both = free(&mut tracker, &["a/c=0,1", "b/c=2", "b/d=3"]);
        assert_eq!(both, [all.clone(), all.clone(), all]);
    }

    #[test]
    fn a_shared_gpu_is_free_for_who_got_it() {
        let mut tracker = Tracker::default();
        free(&mut tracker, &[]);
        free(&mut tracker, &["a/c=0"]);
        let shared = free(&mut tracker, &["a/c=0", "b/c=0"]);
        assert_eq!(shared, [Some(ALL.to_vec()), Some(ALL.to_vec())]);
    }

    #[test]
    fn a_pod_of_the_same_name_with_other_gpus_is_another() {
        let mut tracker = Tracker::default();
        free(&mut tracker, &[]);
        free(&mut tracker, &["a/c=0"]);
        free(&mut tracker, &["a/c=0", "b/c=1"]);
        let again = free(&mut tracker, &["a/c=2", "b/c=1"]);
        assert_eq!(
            again,
            [Some(vec![0, 2, 3]), Some(vec![0, 1, 2, 3].split_off(1))]
        );
    }

    #[test]
    fn the_record_tells_of_pods_that_were_there_first() {
        let mut before = Tracker::default();
        free(&mut before, &[]);
        before.look(&ALL, &holdings(&["a/c=0"]));
        let record = before.look(&ALL, &holdings(&["a/c=0", "b/c=1,2"]));
        let known = [Some(ALL.to_vec()), Some(vec![1, 2, 3])];
        let mut after = Tracker::default();
        after.restore(record.clone());
        assert_eq!(free(&mut after, &["a/c=0", "b/c=1,2"]), known);
        // The record may come late.
        let mut late = Tracker::default();
        assert_eq!(free(&mut late, &["a/c=0", "b/c=1,2"]), [None, None]);
        late.restore(record.clone());
        assert_eq!(free(&mut late, &["a/c=0", "b/c=1,2"]), known);
        // It says nothing of a pod with other GPUs, nor of one that came later.
        let mut other = Tracker::default();
        other.restore(record);
        assert_eq!(free(&mut other, &["b/c=1,3"]), [None]);
        let again = free(&mut other, &["a/c=0", "b/c=1,3"]);
        assert_eq!(again, [Some(vec![0, 2]), None]);
    }

    #[test]
    fn a_gpu_that_is_lost_makes_no_new_pod() {
        let mut tracker = Tracker::default();
        free(&mut tracker, &[]);
        free(&mut tracker, &["a/c=0", "b/c=2,3"]);
        let mut lost = holdings(&["a/c=0", "b/c=2,3"]);
        let b = lost
            .pods
            .get_mut(&("ci".to_owned(), "b".to_owned()))
            .unwrap();
        b.get_mut("c").unwrap().gpus.remove(&3);
        let allocations = tracker.look(&[0, 1, 2], &lost);
        assert_eq!(allocations[1].gpus, [2]);
        assert_eq!(allocations[1].free_when_placed, Some(ALL.to_vec()));
    }
}
