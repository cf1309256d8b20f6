//! What became of placements: the metrics, and what the pods are told.

use nvlink_planner::{Millis, Name};

use super::{effect::Effect, state::State};
use crate::{outcome::Outcome, post::Posted};

impl State {
    /// Brings the metrics of the placed pods up to date, and begins to tell those whose GPUs are
    /// now known.
    pub(super) fn review(&mut self, now: Millis) {
        let metrics = self.metrics.placements();
        for (pod, class, quality) in self.review.look(&mut self.feed) {
            let Some((namespace, name)) = pod.split_once('/') else {
                continue;
            };
            match quality {
                Some(quality) => {
                    metrics.set([namespace, name], &class, quality.planned, quality.actual)
                }
                None => metrics.remove([namespace, name], &class),
            }
        }
        let tellings = self.review.tell(now).into_iter();
        self.effects.extend(tellings.map(Effect::Tell));
    }

    /// Records how it ended that a pod was told, and counts it.
    pub(super) fn told(&mut self, pod: &Name, uid: &str, posted: Posted) {
        let told = self
            .review
            .ended(pod, uid, posted.written, self.clock.now());
        if let Some(told) = told {
            let (mapping, outcome) = (told.mapping.into_str(), told.outcome.label());
            let metrics = self.metrics.placements();
            metrics.outcome(&told.class, mapping, outcome);
        }
        if let Some(failed) = posted.failed {
            self.complain(pod, failed, "cannot write which GPUs a pod got; retrying");
        }
    }

    /// Gives the classes that queue their counters.
    pub(super) fn count_from_zero(&self) {
        for (class, mapping) in self.feed.mappings() {
            for outcome in Outcome::ALL {
                let metrics = self.metrics.placements();
                drop(metrics.counter(class, mapping.into_str(), outcome.label()));
            }
        }
    }
}
