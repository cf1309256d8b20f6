//! Pods that were released and cannot get the GPUs of their claims.

use nvlink_cluster::gpus::User;
use nvlink_planner::{Millis, Name};
use serde_json::Value;

use super::{Feed, dra::claim_of, entry::Entry, writing::earlier};
use crate::{Placement, claim};

/// For how long after it was made a claim is left alone, milliseconds: it may be unknown, because
/// the watches of pods and claims are two, and the scheduler needs its time.
const LAG: Millis = 10_000;
/// What the scheduler says if no node has the devices of a claim (its plugin `DynamicResources`).
const UNALLOCATED: &str = "cannot allocate all claims";

/// A released pod whose claim must be made anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclaimed {
    /// The pod.
    pub pod: Name,
    /// The indices of those of its GPUs that it cannot get; empty if its claim is gone, or for others.
    pub without: Vec<u32>,
}

impl Feed {
    /// Returns the released pods whose claims must be made anew, and when to look again.
    #[must_use]
    pub fn unclaimed(&self, now: Millis) -> (Vec<Unclaimed>, Option<Millis>) {
        let (mut found, mut next) = (Vec::new(), None);
        for pod in &self.awaited {
            let Some(entry) = self.pods.get(pod) else {
                continue;
            };
            let (Some(_), Some(placement)) = (&entry.claim, &entry.placement) else {
                continue;
            };
            if entry.expected.is_some() || entry.is_paused() {
                continue;
            }
            let claim = claim_of(&self.gpus, entry);
            let due = entry.placed(placement).saturating_add(LAG);
            let without = match claim {
                Some(claim) if claim.is_allocated() => continue,
                _ if due > now => {
                    next = earlier(next, due);
                    continue;
                }
                None => Vec::new(),
                // An earlier leader has not finished.
                Some(found) if !claim::is_for(found.asks(), placement) => Vec::new(),
                Some(_) => {
                    let without = self.out_of_reach(pod, entry, placement);
                    if without.is_empty() {
                        continue;
                    }
                    without
                }
            };
            let pod = pod.clone();
            found.push(Unclaimed { pod, without });
        }
        (found, next)
    }

    /// Returns the GPUs of a pod that the scheduler has refused to bind, and that it cannot get:
    /// they are gone, tainted, marked as broken, or others hold them. All of them, if the scheduler
    /// says so and nothing known explains it, such as a DeviceTaintRule.
    fn out_of_reach(&self, pod: &Name, entry: &Entry, placement: &Placement) -> Vec<u32> {
        let node = placement.node.as_deref().map(Name::from);
        let (Some(node), Some(refused)) = (node, &entry.refused) else {
            return Vec::new();
        };
        let gpus = self.gpus.of(&node);
        let known = gpus.known();
        let devices = gpus.devices.unwrap_or_default();
        let broken = |index: u32| {
            let mut gpus = known.into_iter().flat_map(|known| &known.gpus);
            let gpu = gpus.find(|gpu| gpu.index == index);
            gpu.is_none_or(|gpu| !gpu.faults.is_empty())
        };
        let live = |user: &User| {
            let known = self.pods.get(&user.pod).filter(|_| user.pod != *pod);
            known.is_some_and(|known| known.uid == user.uid && known.life.is_live())
        };
        let pairs = placement.gpus.iter().zip(&placement.uuids);
        let out = pairs.filter(|(index, uuid)| broken(**index) || !devices.is_free(uuid, &live));
        let out: Vec<u32> = out.map(|(index, _)| *index).collect();
        match out.is_empty() && refused.contains(UNALLOCATED) {
            true => placement.gpus.clone(),
            false => out,
        }
    }

    /// Returns a released pod that is not bound, as it was read, and where it is to start.
    #[must_use]
    pub fn released(&self, pod: &Name) -> Option<(Value, Placement)> {
        let entry = self
            .pods
            .get(pod)
            .filter(|entry| entry.awaited().is_some())?;
        Some((entry.document()?, entry.placement.clone()?))
    }
}
