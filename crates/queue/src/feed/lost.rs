//! Pods that were released to a node which then was lost or does not take them, and jumps of the
//! clock.

use std::collections::BTreeMap;

use nvlink_planner::{Millis, Name};

use super::{
    Feed,
    dra::lacks_claim,
    entry::{Cause, Entry},
    writing::earlier,
};
use crate::writes::{NODE_LOST, REFUSED as REFUSED_BY};

/// For how long a pod waits for its node to be created again, milliseconds.
const GONE: Millis = 30_000;
/// For how long it waits for its node to be ready, milliseconds: as long as Kubernetes lets pods
/// run on a node that is not ready, unless they say otherwise.
const OUT: Millis = 300_000;
/// For how long the scheduler may refuse to bind it there, milliseconds. What is in the way may be
/// short, such as a pod that is still being deleted.
const REFUSED: Millis = 300_000;
/// For how long the scheduler may say nothing about a pod with volumes, milliseconds: it waits for
/// volumes that are made for the pod for ten minutes (`bindTimeoutSeconds` of its plugin
/// VolumeBinding), and five more.
const BINDING: Millis = 900_000;
/// How often the API server may refuse to release a pod whose gang was released: the pauses between
/// are as long in all.
const REFUSALS: u32 = 10;
/// Why a pod does not start whose claim nobody could make.
const UNCLAIMED: &str = "does not take it without its ResourceClaim, which could not be made: a ResourceQuota of the namespace or a policy may be in the way";
/// A pod that was created so much later than now was stamped by another clock, milliseconds: the leader
/// knows the API server's time to 2 seconds.
const AHEAD: Millis = 5_000;
/// A pod may have been created after a jump of the clock that is heard so much later, milliseconds.
const HEARD: Millis = 35_000;

/// A pod that was released to a node which then was lost or does not take it. Nobody can bind it
/// elsewhere: the affinity of a pod without gates cannot be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The pod.
    pub pod: Name,
    /// The reason of its status.
    pub reason: &'static str,
    /// Why it cannot start, for its author.
    pub why: String,
}

impl Feed {
    /// Returns the pods that wait in vain for the node to which they were released, and when to
    /// look again.
    pub fn lost(&mut self, now: Millis) -> (Vec<Lost>, Option<Millis>) {
        let (mut lost, mut next) = (Vec::new(), None);
        for id in &self.awaited {
            let Some(pod) = self.pods.get_mut(id) else {
                continue;
            };
            let Some(node) = pod.awaited().map(str::to_owned) else {
                continue;
            };
            let (cause, reason, what) = match (self.nodes.get(node.as_str()), &pod.refused) {
                (None, _) => (
                    Cause::NodeGone,
                    NODE_LOST,
                    "does not exist any more".to_owned(),
                ),
                (Some(node), _) if node.out => {
                    let what = "is not ready, or drained";
                    (Cause::NodeOut, NODE_LOST, what.to_owned())
                }
                (Some(_), Some(why)) => {
                    let what = format!("does not take it: {why}");
                    (Cause::NotBound, REFUSED_BY, what)
                }
                // The scheduler does not even try, and says nothing.
                (Some(_), None) if lacks_claim(&self.gpus, pod) => {
                    (Cause::NoClaim, REFUSED_BY, UNCLAIMED.to_owned())
                }
                (Some(_), None) => (Cause::NotTried, REFUSED_BY, pod.untried()),
            };
            if pod.expected.is_some() || pod.is_paused() {
                continue;
            }
            let grace = match cause {
                Cause::NodeGone => GONE,
                Cause::NodeOut => OUT,
                // Kubernetes makes some volumes only now.
                Cause::NotTried if !pod.claims.is_empty() => BINDING,
                Cause::NotBound | Cause::NotTried | Cause::NoClaim | Cause::NoClass => REFUSED,
            };
            let due = pod.orphaned(cause, now).saturating_add(grace);
            match due <= now {
                true => lost.push(Lost {
                    pod: id.clone(),
                    reason,
                    why: format!("node {node} {what}"),
                }),
                false => next = earlier(next, due),
            }
        }
        lost.extend(self.left_behind());
        (lost, next)
    }

    /// Returns the pods that cannot follow their gang, which was released: it waits for them, and
    /// holds GPUs.
    fn left_behind(&self) -> impl Iterator<Item = Lost> {
        self.paused.iter().filter_map(|id| {
            let pod = self.pods.get(id).filter(|pod| pod.waits())?;
            let pause = pod
                .pause()
                .filter(|it| it.failures >= REFUSALS && !it.leaves)?;
            let placement = pod.placement.as_ref()?;
            let mut gang = self.jobs.get(pod.job.as_ref()?)?.iter();
            let node = placement.node.as_deref().unwrap_or("any");
            let released = gang.any(|one| {
                let one = self.pods.get(one).filter(|one| one.is_released());
                let plan = one.and_then(|one| one.placement.as_ref());
                plan.is_some_and(|one| one.plan == placement.plan)
            });
            released.then(|| Lost {
                pod: id.clone(),
                reason: REFUSED_BY,
                why: format!(
                    "its gang was released, but not the pod to node {node}: {}",
                    pause.why
                ),
            })
        })
    }

    /// Records that the API server's clock was set back while nobody led, if it stamped pods that have
    /// come since the last round later than `now`: the latest of them was created now, and the others as
    /// long before it as they say.
    pub fn none_later(&mut self, now: Millis) {
        let late = now.saturating_add(AHEAD);
        let created = |pods: &BTreeMap<Name, Entry>, id: &Name| {
            let created = pods.get(id).filter(|pod| pod.waits())?.created();
            created.filter(|created| *created > late)
        };
        let pods = self.changed.pods.iter();
        let latest = pods.filter_map(|id| created(&self.pods, id)).max();
        let Some(latest) = latest else { return };
        for id in &self.changed.pods {
            if created(&self.pods, id).is_some()
                && let Some(pod) = self.pods.get_mut(id)
            {
                pod.shift(now.saturating_sub(latest));
            }
        }
    }

    /// Records that the API server's clock was set by `by` when it was `before`. What it stamped
    /// earlier is moved by as much, so that no pod has waited longer because of it.
    pub fn jumped(&mut self, by: Millis, before: Millis) {
        let after = before.saturating_add(by);
        self.incomplete.jumped(by);
        self.graphs_jumped(by);
        self.successors.jumped(by);
        for vacated in self.vacated.values_mut() {
            vacated.at = vacated.at.map(|at| at.saturating_add(by));
        }
        for (id, pod) in &mut self.pods {
            if let Some(pause) = pod.paused.as_mut().filter(|it| it.until > Millis::MIN) {
                pause.until = pause.until.saturating_add(by);
            }
            pod.orphan = pod
                .orphan
                .map(|(cause, since)| (cause, since.saturating_add(by)));
            let created = pod.created().unwrap_or(before);
            // Stamped by the new clock, as far as that can be known.
            let later = match by > 0 {
                true => created > before.saturating_add(HEARD.min(by / 2)),
                false => {
                    (after.saturating_sub(HEARD)..=after.saturating_add(HEARD)).contains(&created)
                }
            };
            pod.jumped(by, later);
            self.changed.pods.insert(id.clone());
            self.changed.jobs.extend(pod.job.clone());
        }
    }
}
