//! Remembers which GPUs were free when each pod started.
//!
//! It uses no clock: pods that are new in a look started after those of the previous
//! look. Where the looks do not show the order, these rules apply:
//!
//! * Pods that are new in the same look started together: the GPUs of each were free
//!   for the others, too. So no pod gets a better quality by a guess at their order.
//! * Pods that ended between two looks ended before the new ones started.
//! * For pods that exist at the first look, only the record is used: the allocations
//!   that an earlier process has published. The record applies to a pod only if the
//!   pod's UID is known to be the same.
//!
//! GPUs are remembered by UUID: when a GPU disappears, others get its index.

use std::collections::{BTreeMap, BTreeSet};

use nvlink_history::Key;
use nvlink_source::LostGpu;
use nvlink_topology::{Allocation, Gpu};

use super::holdings::{Held, Holdings, PodName};
use crate::{placement::Keys, publish::status::Record};

/// The pods of the last look.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    /// `None` before the first look.
    pods: Option<BTreeMap<PodName, Pod>>,
    record: Record,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) allocation: Allocation,
    /// The GPUs that do not answer.
    pub(super) lost: Vec<LostGpu>,
}

/// Returns the keys of all GPUs of `held`.
fn keys_of(held: &Held, keys: &Keys) -> BTreeSet<Key> {
    let present = held.gpus.iter().filter_map(|&gpu| keys.of_index(gpu));
    let lost = held.lost.iter();
    let lost = lost.map(|gpu| Key::new(gpu.index, gpu.uuid.as_deref()));
    present.chain(lost).collect()
}

#[derive(Clone, Debug)]
struct Pod {
    uid: Option<String>,
    containers: BTreeMap<String, Held>,
    /// All GPUs of its containers.
    own: BTreeSet<Key>,
    /// The GPUs that were free, including its own; `None` if unknown.
    free: Option<BTreeSet<Key>>,
    /// It existed at the first look.
    first: bool,
}

impl Pod {
    /// Reports whether it is the same pod as `now`, and not another one of the same name.
    fn is(&self, now: &BTreeMap<String, Held>, uid: Option<&str>) -> bool {
        if let (Some(before), Some(uid)) = (self.uid.as_deref(), uid)
            && before != uid
        {
            return false;
        }
        let same =
            |(name, held): (&String, &Held)| now.get(name).is_some_and(|now| now.ids == held.ids);
        self.containers.iter().any(same)
    }
}

impl Tracker {
    /// Sets the record that an earlier process has published, before or after the first
    /// look.
    pub(super) fn restore(&mut self, record: Record) {
        self.record = record;
    }

    /// Returns the allocations of a node with these GPUs, by namespace, pod and
    /// container. `uid` returns the UID of a pod, if known.
    pub(super) fn look(
        &mut self,
        gpus: &[Gpu],
        holdings: &Holdings,
        uid: impl Fn(&PodName) -> Option<String>,
    ) -> Vec<Placed> {
        let keys = Keys::of(gpus);
        let mut before = self.pods.take();
        let first = before.is_none();
        let (mut pods, mut new) = (BTreeMap::new(), BTreeMap::new());
        for (name, containers) in &holdings.pods {
            let known = before.as_mut().and_then(|pods| pods.remove(name));
            let uid = uid(name);
            let known = known.filter(|pod| pod.is(containers, uid.as_deref()));
            let own = containers.values().flat_map(|held| keys_of(held, &keys));
            let mut pod = Pod {
                containers: containers.clone(),
                own: own.collect(),
                free: None,
                first,
                uid,
            };
            match known {
                Some(known) => {
                    pod.free = known.free;
                    pod.first = known.first;
                    pod.uid = pod.uid.or(known.uid);
                    pods.insert(name.clone(), pod);
                }
                None => {
                    new.insert(name.clone(), pod);
                }
            }
        }
        if !first {
            let left = left(&keys, pods.values());
            for pod in new.values_mut() {
                pod.free.clone_from(&left);
            }
        }
        pods.append(&mut new);
        for (name, pod) in &mut pods {
            if pod.first && pod.free.is_none() {
                pod.free = recorded(&self.record, name, pod.uid.as_deref());
            }
            // GPUs that a pod got later were free for it as well.
            if let Some(free) = &mut pod.free {
                free.extend(pod.own.iter().cloned());
            }
        }
        let placed = pods.iter().flat_map(|(name, pod)| placed(&keys, name, pod));
        let placed = placed.collect();
        self.pods = Some(pods);
        placed
    }
}

/// Returns the GPUs that `pods` do not hold. Returns `None` if unknown names of
/// theirs may refer to such GPUs.
fn left<'a>(keys: &Keys, pods: impl Iterator<Item = &'a Pod> + Clone) -> Option<BTreeSet<Key>> {
    let taken: BTreeSet<&Key> = pods.clone().flat_map(|pod| &pod.own).collect();
    let left = keys.all().filter(|key| !taken.contains(key));
    let left: BTreeSet<Key> = left.cloned().collect();
    let held = pods.flat_map(|pod| pod.containers.values());
    let mut possible = held.flat_map(|held| &held.possible);
    let is_left = |gpu: &u32| keys.of_index(*gpu).is_some_and(|key| left.contains(&key));
    (!possible.any(is_left)).then_some(left)
}

/// Returns the GPUs that were free for the pod of this UID, from the record.
fn recorded(
    record: &Record,
    (namespace, pod): &PodName,
    uid: Option<&str>,
) -> Option<BTreeSet<Key>> {
    let uid = Some(uid?);
    let one = record.allocations.iter().find(|one| {
        one.namespace == *namespace && one.pod == *pod && one.pod_uid.as_deref() == uid
    })?;
    let keys = Keys::of(&record.gpus);
    let free = one.free_when_placed.as_ref()?.iter();
    free.map(|&index| keys.of_index(index)).collect()
}

fn placed<'a>(
    keys: &'a Keys,
    name: &'a PodName,
    pod: &'a Pod,
) -> impl Iterator<Item = Placed> + 'a {
    let free = pod.free.as_ref().map(|free| keys.indices(free));
    let some = |(_, held): &(&String, &Held)| !(held.gpus.is_empty() && held.lost.is_empty());
    let one = move |(container, held): (&String, &Held)| Placed {
        allocation: Allocation {
            namespace: name.0.clone(),
            pod: name.1.clone(),
            pod_uid: pod.uid.clone(),
            container: container.clone(),
            gpus: held.gpus.iter().copied().collect(),
            free_when_placed: free.clone(),
            idle_since: None,
        },
        lost: held.lost.clone(),
    };
    pod.containers.iter().filter(some).map(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [u32; 4] = [0, 1, 2, 3];

    /// GPUs whose UUIDs are `names`, in ascending order of index.
    fn gpus(names: &[u32]) -> Vec<Gpu> {
        let gpu = |(index, name): (u32, &u32)| Gpu {
            index,
            uuid: Some(format!("GPU-{name}")),
            ..Gpu::default()
        };
        (0..).zip(names).map(gpu).collect()
    }

    fn uid((_, pod): &PodName) -> Option<String> {
        Some(format!("uid-{pod}"))
    }

    fn look(tracker: &mut Tracker, pods: &[&str]) -> Vec<Allocation> {
        let placed = tracker.look(&gpus(&ALL), &holdings(pods), uid);
        placed.into_iter().map(|one| one.allocation).collect()
    }

    fn record(allocations: Vec<Allocation>) -> Record {
        Record {
            allocations,
            gpus: gpus(&ALL),
        }
    }

    /// Parses pods of the form `pod/container=0,1`.
    fn holdings(pods: &[&str]) -> Holdings {
        let mut holdings = Holdings::default();
        for text in pods {
            let (name, gpus) = text.split_once('=').unwrap();
            let (pod, container) = name.split_once('/').unwrap();
            let gpus: BTreeSet<u32> = gpus.split(',').map(|gpu| gpu.parse().unwrap()).collect();
            let ids = gpus.iter().map(|gpu| format!("GPU-{gpu}")).collect();
            let name = ("ci".to_owned(), pod.to_owned());
            let containers = holdings.pods.entry(name).or_default();
            let held = Held {
                ids,
                gpus,
                ..Held::default()
            };
            containers.insert(container.to_owned(), held);
        }
        holdings
    }

    fn free(tracker: &mut Tracker, pods: &[&str]) -> Vec<Option<Vec<u32>>> {
        let allocations = look(tracker, pods);
        allocations
            .into_iter()
            .map(|one| one.free_when_placed)
            .collect()
    }

    #[test]
    fn gpus_that_earlier_pods_do_not_hold_are_free() {
        let mut tracker = Tracker::default();
        assert_eq!(free(&mut tracker, &["a/c=0"]), [None], "existed before");
        let with_b = [None, Some(vec![1, 2, 3])];
        assert_eq!(free(&mut tracker, &["a/c=0", "b/c=2"]), with_b);
        // The value of b never changes, whatever pods end and start.
        assert_eq!(free(&mut tracker, &["b/c=2"]), [Some(vec![1, 2, 3])]);
        let with_d = [Some(vec![1, 2, 3]), Some(vec![0, 1, 3])];
        assert_eq!(free(&mut tracker, &["b/c=2", "d/c=0,1"]), with_d);
    }

    #[test]
    fn pods_of_one_look_started_together() {
        let mut tracker = Tracker::default();
        assert!(free(&mut tracker, &[]).is_empty());
        let all = Some(ALL.to_vec());
        let both = free(&mut tracker, &["a/c=0,1", "b/c=2", "b/d=3"]);
        assert_eq!(both, [all.clone(), all.clone(), all]);
    }

    #[test]
    fn a_shared_gpu_is_free_for_the_pod_that_gets_it() {
        let mut tracker = Tracker::default();
        free(&mut tracker, &[]);
        free(&mut tracker, &["a/c=0"]);
        let shared = free(&mut tracker, &["a/c=0", "b/c=0"]);
        assert_eq!(shared, [Some(ALL.to_vec()), Some(ALL.to_vec())]);
    }

    #[test]
    fn a_pod_of_the_same_name_with_other_gpus_is_another_pod() {
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
    fn the_record_has_the_free_gpus_of_pods_that_existed_before() {
        let mut before = Tracker::default();
        free(&mut before, &[]);
        look(&mut before, &["a/c=0"]);
        let published = look(&mut before, &["a/c=0", "b/c=1,2"]);
        let known = [Some(ALL.to_vec()), Some(vec![1, 2, 3])];
        let mut after = Tracker::default();
        after.restore(record(published.clone()));
        assert_eq!(free(&mut after, &["a/c=0", "b/c=1,2"]), known);
        // The record may come late, and so may the UIDs.
        let mut late = Tracker::default();
        let pods = ["a/c=0", "b/c=1,2"];
        assert_eq!(free(&mut late, &pods), [None, None]);
        late.restore(record(published.clone()));
        let nobody = late.look(&gpus(&ALL), &holdings(&pods), |_| None);
        assert_eq!(
            nobody[0].allocation.free_when_placed,
            Some(ALL.to_vec()),
            "its UID is known"
        );
        let mut later = Tracker::default();
        later.restore(record(published.clone()));
        let nobody = later.look(&gpus(&ALL), &holdings(&pods), |_| None);
        assert!(
            nobody
                .iter()
                .all(|one| one.allocation.free_when_placed.is_none())
        );
        assert_eq!(free(&mut later, &pods), known);
        // It does not apply to a pod of another UID, or to one that started later.
        let mut other = Tracker::default();
        other.restore(record(published));
        let mut again = |pods: &[&str]| {
            let another = |_: &PodName| Some("another".to_owned());
            let placed = other.look(&gpus(&ALL), &holdings(pods), another);
            let free = placed
                .into_iter()
                .map(|one| one.allocation.free_when_placed);
            free.collect::<Vec<_>>()
        };
        assert_eq!(again(&["b/c=1,2"]), [None]);
        assert_eq!(again(&["a/c=0", "b/c=1,2"]), [Some(vec![0, 3]), None]);
    }

    #[test]
    fn a_pod_of_another_uid_is_another_pod_on_the_same_gpus() {
        let mut tracker = Tracker::default();
        free(&mut tracker, &["o/c=2,3"]);
        free(&mut tracker, &["a/c=0", "o/c=2,3"]);
        let another = |_: &PodName| Some("another".to_owned());
        let placed = tracker.look(&gpus(&ALL), &holdings(&["a/c=0"]), another);
        assert_eq!(placed[0].allocation.free_when_placed, Some(ALL.to_vec()));
        assert_eq!(placed[0].allocation.pod_uid.as_deref(), Some("another"));
    }

    #[test]
    fn free_gpus_are_kept_when_indices_change() {
        let mut tracker = Tracker::default();
        free(&mut tracker, &["o/c=1"]);
        free(&mut tracker, &["a/c=3", "o/c=1"]);
        // GPU 0 is gone: GPU 3 now has the index 2 and the same name.
        let mut moved = holdings(&["a/c=2"]);
        let held = moved.pods.values_mut().flat_map(BTreeMap::values_mut);
        held.for_each(|held| held.ids = ["GPU-3".to_owned()].into());
        let placed = tracker.look(&gpus(&[1, 2, 3]), &moved, uid);
        assert_eq!(placed[0].allocation.gpus, [2]);
        assert_eq!(placed[0].allocation.free_when_placed, Some(vec![1, 2]));
    }

    #[test]
    fn a_lost_gpu_does_not_make_its_pod_a_new_one() {
        let mut tracker = Tracker::default();
        free(&mut tracker, &[]);
        free(&mut tracker, &["a/c=0", "b/c=2,3"]);
        let mut lost = holdings(&["a/c=0", "b/c=2,3"]);
        let three = LostGpu {
            index: 3,
            uuid: Some("GPU-3".to_owned()),
            ..LostGpu::default()
        };
        let b = ("ci".to_owned(), "b".to_owned());
        let b = lost.pods.get_mut(&b).unwrap().get_mut("c").unwrap();
        b.gpus.remove(&3);
        b.lost.push(three.clone());
        let placed = tracker.look(&gpus(&ALL[..3]), &lost, uid);
        assert_eq!(placed[1].allocation.gpus, [2]);
        assert_eq!(placed[1].lost, [three]);
        assert_eq!(placed[1].allocation.free_when_placed, Some(vec![0, 1, 2]));
        // GPU 3 was not free meanwhile, and answers again.
        let back = free(&mut tracker, &["a/c=0", "b/c=2,3", "d/c=1"]);
        assert_eq!(
            back,
            [Some(ALL.to_vec()), Some(ALL.to_vec()), Some(vec![1])]
        );
    }
}
