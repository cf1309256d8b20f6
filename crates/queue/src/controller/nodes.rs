//! Requests nodes for jobs that more nodes would start, with placeholder pods.

use std::collections::HashMap;

use nvlink_planner::{Millis, Name, Waiting};

use super::{effect::Effect, state::State};
use crate::{
    placeholders::{Change, GRACE, Request, Want, object::object},
    tally::lacks_nodes,
};

impl State {
    /// Begins to create and to delete placeholder pods, as the latest round demands. Returns when to look
    /// again.
    pub(super) fn request_nodes(&mut self, now: Millis) -> Option<Millis> {
        let namespace = self.placeholders.namespace()?.to_owned();
        let mut fresh = HashMap::new();
        let waiting = self.planned.waiting.iter();
        let wants = waiting.filter_map(|one| self.want(one, &mut fresh));
        let wants: Vec<(Want, Millis)> = wants.collect();
        let due = wants.iter().map(|(_, due)| *due).filter(|due| *due > now);
        let due = due.min();
        let wants = wants.into_iter().filter(|(_, due)| *due <= now);
        let wants: Vec<Want> = wants.map(|(want, _)| want).collect();
        for change in self.placeholders.plan(&wants, now) {
            let uid = change.uid().to_owned();
            let object = match change {
                Change::Delete { .. } => None,
                Change::Create { pod, class, .. } => {
                    let document = self.feed.document(&pod).unwrap_or_default();
                    tracing::info!(%pod, class, "requesting a node with a placeholder pod");
                    Some(object(&document, &class, &namespace))
                }
            };
            self.effects.push(Effect::Placeholder(Request {
                namespace: namespace.clone(),
                uid,
                object,
            }));
        }
        self.board.asking(self.placeholders.asking(&wants));
        let by_class = self.placeholders.by_class();
        self.metrics.queue().placeholders(&by_class);
        [due, self.placeholders.next(now)]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns what a job wants of an autoscaler, and when it may ask. `fresh` is the number of pods of
    /// each class for which nothing was requested so far: no more can be than the class allows, and a
    /// queue may have tens of thousands.
    fn want<'a>(
        &'a self,
        waiting: &Waiting,
        fresh: &mut HashMap<&'a str, usize>,
    ) -> Option<(Want, Millis)> {
        let obstacle = || self.feed.obstacle_to(&waiting.job, &waiting.reason);
        if !lacks_nodes(&waiting.reason) || obstacle().is_some() {
            return None;
        }
        let pods = self.feed.pods_of(&waiting.job);
        let mut pods = pods.filter(|pod| self.feed.waits(pod)).peekable();
        let first = *pods.peek()?;
        let member = self.feed.member(first).filter(|member| member.grows)?;
        let due = self.feed.created(first)?.saturating_add(GRACE);
        let most = self.feed.most_placeholders(&member.class);
        let known = |pod: &&Name| {
            let uid = self.feed.uid(pod);
            uid.is_some_and(|uid| self.placeholders.knows(uid))
        };
        let pods: Vec<&Name> = pods.collect();
        let fresh = fresh.entry(&member.class).or_default();
        let at_most = usize::try_from(most).unwrap_or(usize::MAX);
        let full = *fresh >= at_most || pods.len() > at_most;
        if full && !pods.iter().any(known) {
            return None;
        }
        *fresh += pods.iter().filter(|pod| !known(pod)).count();
        let pods = pods.into_iter();
        let pods = pods.filter_map(|pod| Some((pod.clone(), self.feed.uid(pod)?.to_owned())));
        let want = Want {
            job: waiting.job.clone(),
            class: member.class.clone(),
            most,
            pods: pods.collect(),
        };
        Some((want, due))
    }
}
