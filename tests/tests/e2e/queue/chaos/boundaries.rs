//! A leader that is killed between any two of its writes: the next one finishes.

use std::time::Instant;

use nvlink_tests::{Replica, wait_until};

use super::{
    ledger::{Ledger, Seen},
    stage::{BRIEF, Stage, pod},
    team::Team,
};
use crate::queue::cluster::SOON;

/// What the pods of a job come to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// They are bound, by one plan.
    Started,
    /// They fail, because no node can hold them before their time is over.
    Rejected,
    /// They wait, and say why.
    Shown,
}

/// The boundary, the number of pods, and what comes of them.
const BOUNDARIES: [(&str, usize, End); 14] = [
    ("decide=1", 1, End::Started),
    ("release=1", 1, End::Started),
    ("decide=1", 3, End::Started),
    ("prepare=1", 3, End::Started),
    ("prepare=2", 3, End::Started),
    ("prepare=3", 3, End::Started),
    ("release=1", 3, End::Started),
    ("release=2", 3, End::Started),
    ("release=3", 3, End::Started),
    ("decide=1", 2, End::Rejected),
    ("reject=1", 2, End::Rejected),
    ("reject=2", 2, End::Rejected),
    ("reject=1", 1, End::Rejected),
    ("show=1", 2, End::Shown),
];

#[test]
fn the_next_leader_finishes_what_a_killed_one_began() {
    let stage = Stage::start(&["n1", "n2"], "4s");
    let ledger = Ledger::open(&stage.plane);
    let team = Team::new(&stage.plane);
    for (number, (boundary, pods, end)) in BOUNDARIES.into_iter().enumerate() {
        let mortal = stage.mortal_leader(boundary);
        stage.led_after(0);
        let names = create(&team, number, pods, end);
        wait_until(&format!("the leader to die at {boundary}"), SOON, || {
            Ok(mortal.process.check_running().err())
        })
        .unwrap();
        // Nobody waits for the 15 seconds after which it would expire.
        stage.free_lease();
        let dead = Instant::now();
        let before = names.iter().filter_map(|name| ledger.pod(name));
        let before = before.filter(|pod| !pod.waits()).count();
        let next = stage.leader();
        finish(&stage, &ledger, &names, end, &next);
        println!(
            "{boundary:<9} of {pods}: {before} done before, {end:?} {:.1}s after",
            dead.elapsed().as_secs_f64()
        );
        next.process.terminate(SOON).unwrap();
        for name in &names {
            team.delete(name);
        }
    }
    ledger.check();
}

/// Creates a job, and returns the names of its pods.
fn create(team: &Team, number: usize, pods: usize, end: End) -> Vec<String> {
    let job = format!("boundary-{number}");
    // The cluster has 16 GPUs.
    let (gpus, class) = match end {
        End::Started => (4, None),
        End::Rejected => (16, Some(BRIEF)),
        End::Shown => (16, None),
    };
    let names = (0..pods).map(|member| format!("{job}-{member}"));
    let names: Vec<String> = names.collect();
    let gang = (pods > 1).then_some((job.as_str(), pods));
    for name in &names {
        team.create(&pod(name, gpus, gang, class));
    }
    names
}

/// Waits until the pods have come to their end.
fn finish(stage: &Stage, ledger: &Ledger, names: &[String], end: End, next: &Replica) {
    let found = wait_until(&format!("{names:?} to be {end:?}"), SOON, || {
        ledger.check();
        let pods = names.iter().filter_map(|name| ledger.pod(name));
        let pods: Vec<Seen> = pods.collect();
        let all = match end {
            End::Started => pods.iter().all(|pod| pod.node.is_some()),
            End::Rejected => pods
                .iter()
                .all(|pod| pod.phase == "Failed" && pod.reason.as_deref() == Some("QueueTimeout")),
            End::Shown => names.iter().all(|name| says_why(stage, name)),
        };
        Ok((all && pods.len() == names.len()).then_some(pods))
    });
    let pods = found.unwrap_or_else(|error| panic!("{error:#}\n{}", next.process.log()));
    if end == End::Started {
        let places = pods.iter().filter_map(|pod| pod.place.as_ref());
        let mut plans: Vec<_> = places.map(|place| place["plan"].to_string()).collect();
        plans.dedup();
        assert_eq!(
            plans.len(),
            1,
            "the plan of those released before: {pods:#?}"
        );
    }
}

/// Reports whether a pod says why it waits.
pub(super) fn says_why(stage: &Stage, name: &str) -> bool {
    let pod = stage.team.get(&["pod", name]).unwrap_or_default();
    pod["metadata"]["annotations"]["nvlink-domains.io/queue-reason"].is_string()
}
