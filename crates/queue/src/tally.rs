//! How many pods wait, for the metrics. Pure.

use std::{collections::BTreeMap, time::Duration};

use nvlink_planner::{Millis, Reason, Waiting};

use super::{feed::Feed, notice::Obstacle, words};
use crate::metrics::{Depth, Shape};

/// Reports whether a job that waits for this reason would start on more nodes.
pub(super) fn lacks_nodes(reason: &Reason) -> bool {
    match reason {
        Reason::Insufficient { .. }
        | Reason::Fragmented { .. }
        | Reason::Resources { .. }
        | Reason::Behind { .. }
        | Reason::Never
        | Reason::Spreads
        | Reason::NeverTogether { .. }
        | Reason::Unlabelled => true,
        Reason::Incomplete | Reason::Silent | Reason::Quota { .. } | Reason::Better { .. } => false,
    }
}

/// Returns how many pods wait, for each class that queues.
pub(super) fn depth(waiting: &[Waiting], feed: &Feed, now: Millis) -> BTreeMap<String, Depth> {
    let mut depth: BTreeMap<String, Depth> = feed
        .queues()
        .map(|class| (class.to_owned(), Depth::default()))
        .collect();
    let mut add = |class: &str,
                   reason: &'static str,
                   gpus: u32,
                   created: Option<Millis>,
                   wanted: Option<Shape>| {
        let waited = now.saturating_sub(created.unwrap_or(now));
        let waited = Duration::from_millis(u64::try_from(waited).unwrap_or(0));
        if !depth.contains_key(class) {
            depth.insert(class.to_owned(), Depth::default());
        }
        if let Some(depth) = depth.get_mut(class) {
            *depth.pods.entry(reason).or_default() += 1;
            depth.gpus = depth.gpus.saturating_add(gpus);
            depth.oldest = depth.oldest.max(waited);
            if let Some(shape) = wanted {
                let wanted = depth.wanted.entry(shape).or_default();
                *wanted = wanted.saturating_add(gpus);
            }
        }
    };
    for one in waiting {
        for pod in feed.pods_of(&one.job).filter(|pod| feed.waits(pod)) {
            let Some(member) = feed.member(pod) else {
                continue;
            };
            let reason = match feed.obstacle(&one.job) {
                Some(Obstacle::Refused(_)) => "refused",
                _ => words::label(&one.reason, member.grows),
            };
            let wanted = lacks_nodes(&one.reason).then_some(Shape {
                gpus: member.gpus,
                scope: member.scope,
            });
            let created = feed.created(pod);
            add(&member.class, reason, member.gpus, created, wanted);
        }
    }
    for one in feed.unaccepted() {
        add(one.class, "unaccepted", one.gpus, one.created, None);
    }
    depth
}
