//! The time from the end of a job to the release of the next one.

use std::{thread, time::Duration, time::Instant};

use anyhow::Result;

use crate::{
    cluster::{CALLED, CLASS, Cluster, GPUS, LONG},
    pods, quantile,
    seen::Seen,
};

const GOAL: f64 = 200.0;
/// The time between two samples: what follows a release must not delay the next one.
const PAUSE: Duration = Duration::from_millis(300);

/// Jobs that fill all nodes, and jobs that wait.
pub(crate) struct Jobs<'a> {
    cluster: &'a Cluster,
    seen: Seen,
    /// The number of jobs that have ended, in the order of their releases.
    ended: usize,
}

impl<'a> Jobs<'a> {
    /// Fills the nodes. The leader is the webhook from now on.
    pub(crate) fn start(cluster: &'a Cluster, samples: usize) -> Result<Self> {
        let api = cluster.pods(CALLED);
        let seen = Seen::start(&cluster.runtime, api.clone());
        let nodes = cluster.nodes;
        let jobs = (0..nodes + 2 * samples)
            .map(|number| pods::pod(&format!("job-{number:05}"), CLASS, GPUS, true));
        let created = pods::create(&api, jobs.collect());
        cluster.runtime.block_on(created)?;
        cluster.hand_over()?;
        seen.until("the nodes to be full", LONG, |times| {
            (times.released.len() >= nodes).then_some(())
        })?;
        Ok(Self {
            cluster,
            seen,
            ended: 0,
        })
    }

    /// Ends the oldest job, `samples` times, each time after the next one was released.
    pub(crate) fn measure(&mut self, samples: usize, what: &str) -> Result<()> {
        let api = self.cluster.pods(CALLED);
        let before = self.cluster.rounds()?;
        let mut times = Vec::with_capacity(samples);
        for _ in 0..samples {
            thread::sleep(PAUSE);
            let (released, oldest) = {
                let times = self.seen.times();
                (times.released.len(), times.released[self.ended].0.clone())
            };
            let start = Instant::now();
            self.cluster.runtime.block_on(pods::end(&api, &oldest))?;
            let next = self.seen.until("the next job", LONG, |times| {
                times.released.get(released).map(|(_, at)| *at)
            })?;
            self.ended += 1;
            times.push(1e3 * (next - start).as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        let after = self.cluster.rounds()?;
        let rounds = after[0] - before[0];
        println!(
            "from the end of a job to the release of the next one, {what}: median {:.0} ms (goal {GOAL}), 95th percentile {:.0} ms, longest {:.0} ms; {rounds:.0} rounds of {:.2} ms",
            quantile(&times, 0.5),
            quantile(&times, 0.95),
            quantile(&times, 1.0),
            1e3 * (after[1] - before[1]) / rounds
        );
        Ok(())
    }
}
