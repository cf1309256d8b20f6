//! The account of the clock: what it refuses.

use nvlink_topology::Pattern;

use super::*;
use crate::{cluster::Demand, trace::Job};

/// Starts each job when it arrives, on the GPUs that the test says.
struct Scripted {
    arrived: Vec<usize>,
    gpus: Vec<Vec<usize>>,
}

impl Scheduler for Scripted {
    fn arrive(&mut self, entry: usize) {
        self.arrived.push(entry);
    }

    fn end(&mut self, _: usize, _: Millis) {}

    fn round(&mut self, _: Millis) -> Vec<Start> {
        let start = |entry: usize| {
            let gpus = self.gpus.get(entry)?.iter().copied().collect();
            let seats = vec![Seat { node: 0, gpus }];
            Some(Start { entry, seats })
        };
        self.arrived.drain(..).filter_map(start).collect()
    }
}

fn scripted(gpus: &[&[usize]]) -> Result<(), String> {
    let cluster = Cluster::new(&"l40s=1".parse().unwrap()).unwrap();
    let job = |time: Millis| Job {
        time,
        gpus: 2,
        duration: 10,
        project: "".into(),
        pattern: Pattern::AllReduce,
        priority: 0,
    };
    let jobs: Vec<Job> = (0..2).map(job).collect();
    let entry = |job| Entry {
        job,
        demand: Demand { pods: 1, gpus: 2 },
    };
    let entries: Vec<_> = jobs.iter().map(entry).collect();
    let mut scheduler = Scripted {
        arrived: Vec::new(),
        gpus: gpus.iter().map(|gpus| gpus.to_vec()).collect(),
    };
    let mut length = |entry: usize, _: &[Seat]| entries[entry].job.duration;
    let ran = replay(&entries, &cluster, &mut scheduler, &mut length, &mut |_| {});
    ran.map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn a_policy_that_breaks_a_rule_is_found_out() {
    assert_eq!(scripted(&[&[0, 1], &[2, 3]]), Ok(()));
    for (gpus, problem) in [
        (&[&[0, 1][..], &[1, 2]][..], "gets a GPU that is not free"),
        (&[&[0, 1], &[7, 8]], "gets a GPU that is not free"),
        (&[&[0, 1], &[2]], "gets 1 GPUs"),
        (&[&[0, 1]], "1 jobs wait forever"),
    ] {
        let error = scripted(gpus).unwrap_err();
        assert!(error.contains(problem), "{gpus:?}: {error}");
    }
}
