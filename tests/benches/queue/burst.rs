//! Many pods that may start at once.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;

use crate::{
    cluster::{AT_ONCE, BARE, CALLED, CLASS, Cluster, GPUS, LONG},
    pods,
    seen::{Seen, Times},
};

const GOAL: f64 = 1_000.0;

/// Who removes the gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// This program, and the API server does not call the webhook.
    Bare,
    /// This program, and the API server calls the webhook, as for the queue's own patches.
    Called,
    /// The queue.
    Queue,
}

const SIDES: [Side; 3] = [Side::Bare, Side::Called, Side::Queue];

impl Side {
    fn name(self) -> &'static str {
        match self {
            Self::Bare => "patches",
            Self::Called => "patches, with admission",
            Self::Queue => "the queue",
        }
    }

    fn namespace(self) -> &'static str {
        match self {
            Self::Bare => BARE,
            Self::Called | Self::Queue => CALLED,
        }
    }
}

/// What some releases took.
#[derive(Clone, Copy, Default)]
struct Spent {
    releases: f64,
    /// From the first release to the last one.
    time: Duration,
    /// CPU times.
    api: Duration,
    webhook: Duration,
    /// Rounds of the planner, and the seconds that they took.
    rounds: [f64; 2],
}

impl Spent {
    fn rate(self) -> f64 {
        self.releases / self.time.as_secs_f64()
    }

    /// Returns the milliseconds per release.
    fn each(self, cpu: Duration) -> f64 {
        1e3 * cpu.as_secs_f64() / self.releases
    }
}

/// Measures all sides by turns; the first turn of each is a warm-up and does not count.
pub(crate) fn measure(cluster: &Cluster, count: usize, rounds: usize) -> Result<()> {
    let mut all = [Spent::default(); 3];
    for round in 0..=rounds {
        for (side, spent) in SIDES.into_iter().zip(&mut all) {
            let turn = run(cluster, side, count)?;
            if round > 0 {
                spent.releases += turn.releases;
                spent.time += turn.time;
                spent.api += turn.api;
                spent.webhook += turn.webhook;
                for (sum, part) in spent.rounds.iter_mut().zip(turn.rounds) {
                    *sum += part;
                }
            }
        }
    }
    println!(
        "{count} pods of one GPU on {} nodes may start at once, {AT_ONCE} writes at a time, {rounds} rounds",
        count.div_ceil(GPUS)
    );
    for (side, spent) in SIDES.into_iter().zip(all) {
        print!(
            "  {:24} {:5.0} per second   CPU of each: API server {:.2} ms, webhook {:.2} ms",
            side.name(),
            spent.rate(),
            spent.each(spent.api),
            spent.each(spent.webhook)
        );
        if side == Side::Queue {
            let [number, seconds] = spent.rounds;
            print!(
                "   {:.2} of the patches, {:.2} of those with admission (goal {GOAL} per second, or 1)   {number:.0} rounds of {:.2} ms",
                spent.rate() / all[0].rate(),
                spent.rate() / all[1].rate(),
                1e3 * seconds / number
            );
        }
        println!();
    }
    Ok(())
}

/// Lets `count` pods wait, releases them, and deletes them.
fn run(cluster: &Cluster, side: Side, count: usize) -> Result<Spent> {
    let api = cluster.pods(side.namespace());
    let seen = Seen::start(&cluster.runtime, api.clone());
    cluster.runtime.block_on(async {
        // As the webhook changes it, for both namespaces.
        let first = pods::pod("first", CLASS, 1, false);
        let stored = pods::dry_run(&cluster.pods(CALLED), first).await?;
        let copies = (0..count).map(|number| {
            let mut pod = stored.clone();
            pod["metadata"]["name"] = json!(format!("burst-{number:05}"));
            pod
        });
        pods::create(&api, copies.collect()).await
    })?;
    let waiting = |times: &Times| (times.waiting.len() == count).then_some(());
    seen.until("the pods to wait", LONG, waiting)?;
    let spent = release(cluster, side, &seen, count)?;
    if side == Side::Queue {
        cluster.hold_lease()?;
    }
    cluster.runtime.block_on(pods::delete(&api))?;
    seen.until("the pods to be gone", LONG, |times| {
        times.pods.is_empty().then_some(())
    })?;
    Ok(spent)
}

fn release(cluster: &Cluster, side: Side, seen: &Seen, count: usize) -> Result<Spent> {
    let api = cluster.pods(side.namespace());
    let patches = cluster.runtime.block_on(pods::releases(&api))?;
    let webhook = &cluster.webhook.replica.process;
    let before = (cluster.plane.api_server_cpu()?, webhook.cpu()?);
    let rounds = cluster.rounds()?;
    match side {
        Side::Bare | Side::Called => cluster.runtime.block_on(pods::patch(&api, patches))?,
        Side::Queue => cluster.hand_over()?,
    }
    let [first, last]: [Instant; 2] = seen.until("the pods to be released", LONG, |times| {
        let all = times.released.len() == count;
        let ends = times.released.first().zip(times.released.last());
        ends.filter(|_| all).map(|(first, last)| [first.1, last.1])
    })?;
    let api = cluster.plane.api_server_cpu()?.checked_sub(before.0);
    let cpu = webhook.cpu()?.checked_sub(before.1);
    let after = cluster.rounds()?;
    #[allow(clippy::cast_precision_loss)] // far below 2^53
    Ok(Spent {
        releases: count as f64 - 1.0,
        time: last - first,
        api: api.context("the API server was restarted")?,
        webhook: cpu.context("the webhook was restarted")?,
        rounds: [after[0] - rounds[0], after[1] - rounds[1]],
    })
}
