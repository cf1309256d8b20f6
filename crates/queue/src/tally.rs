//! How many pods wait, for the metrics. Pure.

use std::{collections::BTreeMap, time::Duration};

use nvlink_planner::{Millis, Waiting};

use super::{feed::Feed, notice::Obstacle, words};
use crate::metrics::Depth;

/// Returns how many pods wait, for each class that queues.
pub(super) fn depth(waiting: &[Waiting], feed: &Feed, now: Millis) -> BTreeMap<String, Depth> {
    let mut depth: BTreeMap<String, Depth> = feed
        .queues()
        .map(|class| (class.to_owned(), Depth::default()))
        .collect();
    for one in waiting {
        let reason = match feed.obstacle(&one.job) {
            Some(Obstacle::Refused(_)) => "refused",
            _ => words::label(&one.reason),
        };
        for pod in feed.pods_of(&one.job).filter(|pod| feed.waits(pod)) {
            let Some(member) = feed.member(pod) else {
                continue;
            };
            let created = member.created.map_or(now, |at| at.as_millisecond());
            let waited = u64::try_from(now.saturating_sub(created)).unwrap_or(0);
            if !depth.contains_key(&member.class) {
                depth.insert(member.class.clone(), Depth::default());
            }
            if let Some(depth) = depth.get_mut(&member.class) {
                *depth.pods.entry(reason).or_default() += 1;
                depth.gpus = depth.gpus.saturating_add(member.gpus);
                depth.oldest = depth.oldest.max(Duration::from_millis(waited));
            }
        }
    }
    depth
}
