//! What the order promises: nobody is delayed by a job behind, and nobody waits who could
//! start.

use nvlink_planner::{Estimate, Job, Millis, Name, NodeState, Settings};
use nvlink_topology::Scope;
use proptest::prelude::*;

use crate::{
    cluster::{With, dgx1v, job, name, pairs, switched},
    fed::Fed,
    world::World,
};

fn nodes() -> impl Strategy<Value = Vec<NodeState>> {
    let racked = |(mut node, rack): (NodeState, u32)| {
        node.rack = Some(name(format!("rack{rack}")));
        node
    };
    let node = prop_oneof![Just(switched()), Just(pairs()), Just(dgx1v())];
    prop::collection::vec((node, 0..2u32).prop_map(racked), 1..4)
}

/// Returns jobs in the order of their arrival.
fn jobs(most: usize) -> impl Strategy<Value = Vec<(Name, Job)>> {
    let scope = prop_oneof![
        Just(Scope::NvlinkDomain),
        Just(Scope::Node),
        Just(Scope::Rack),
        Just(Scope::Cluster)
    ];
    let pods = prop_oneof![3 => Just(1u32), 1 => 2..4u32];
    let one = (0..30i64, pods, 1..5u32, 1..20i64, scope);
    prop::collection::vec(one, 1..most).prop_map(|mut jobs| {
        jobs.sort_by_key(|job| job.0);
        let one = |(at, (created, pods, gpus, seconds, scope))| {
            let one = job(created * 1_000, gpus, seconds)
                .of(pods, gpus)
                .scope(scope);
            (name(format!("{at:02}")), one)
        };
        (0..).zip(jobs).map(one).collect()
    })
}

fn world(nodes: &[NodeState], settings: Settings) -> World {
    let mut world = World::new(settings);
    for (at, node) in nodes.iter().enumerate() {
        world.fed.node(&format!("n{at}"), node.clone());
    }
    world
}

proptest! {
    #![proptest_config(crate::cases(300))]

    #[test]
    fn backfill_delays_nobody(nodes in nodes(), jobs in jobs(14)) {
        delays_nobody(&nodes, &jobs)?;
    }

    /// Where all GPUs are alike, each job starts no later than without backfill.
    #[test]
    fn backfill_is_never_worse_than_none(jobs in jobs(20)) {
        let nodes = [switched()];
        let mut with = world(&nodes, Settings::default());
        with.replay(&jobs);
        let mut without = world(&nodes, Settings { backfill: false, ..Settings::default() });
        without.replay(&jobs);
        prop_assert_eq!(with.started.len(), without.started.len());
        for (id, at) in &with.started {
            prop_assert!(*at <= without.started[id], "{}", id);
        }
    }

    /// Against all placements that there are: whoever waits could only start now if a job
    /// ahead started later.
    #[test]
    fn nobody_waits_who_could_start(
        nodes in nodes(),
        jobs in jobs(9),
        ends in prop::collection::vec((0..3usize, 0..8u32, 1..20i64), 0..8),
    ) {
        let mut world = world(&nodes, Settings::default());
        for (at, (node, gpu, end)) in ends.iter().enumerate() {
            let node = name(format!("n{}", node % nodes.len()));
            let gpu = gpu % world.fed.nodes[&node].capacity;
            if world.held.insert((node.clone(), gpu), name("other")).is_some() {
                continue;
            }
            let pod = crate::waits::pod(&node, &[gpu], Some(end * 1_000));
            world.fed.pod(&format!("other{at}"), pod);
        }
        for (id, job) in jobs.iter().filter(|(_, job)| job.members.len() == 1) {
            world.fed.job(id, Job { created: 0, ..job.clone() });
        }
        while !world.step().actions.is_empty() {}
        let waiting = world.fed.round(0).waiting;
        for (at, one) in waiting.iter().enumerate() {
            let ahead = &waiting[..at];
            for (node, gpus) in choices(&world, &one.job) {
                let mut then = started(&world.fed, &one.job, &node, &gpus);
                let then = then.round(0).waiting;
                let later = ahead.iter().any(|before| {
                    let now = then.iter().find(|after| after.job == before.job);
                    // A job that now starts at once is not delayed.
                    now.is_some_and(|now| start(now.eta) > start(before.eta))
                });
                prop_assert!(later, "{} could have {gpus:?} of {node}", one.job);
            }
        }
    }
}

/// A later job may only have GPUs that the plan does not need to keep its times, also where it
/// keeps them by choosing other GPUs for jobs ahead. Cases that were found at random.
#[test]
fn a_plan_counts_on_no_more_than_will_be() {
    let (domain, node, rack) = (Scope::NvlinkDomain, Scope::Node, Scope::Rack);
    // Created, pods, GPUs of each, seconds, scope.
    let bridged: &[(i64, u32, u32, i64, Scope)] = &[
        (0, 1, 3, 12, domain),
        (0, 2, 3, 8, domain),
        (3, 1, 1, 16, domain),
        (11, 1, 4, 3, domain),
        (11, 2, 1, 10, domain),
        (18, 1, 1, 10, domain),
    ];
    let unlike: &[(i64, u32, u32, i64, Scope)] = &[
        (4, 1, 3, 4, node),
        (6, 2, 1, 1, domain),
        (7, 1, 1, 8, node),
        (17, 1, 4, 11, node),
        (17, 3, 3, 12, rack),
        (18, 3, 1, 4, node),
        (19, 1, 3, 15, rack),
        (19, 1, 1, 14, domain),
        (20, 1, 1, 14, rack),
        (21, 1, 1, 13, domain),
        (27, 1, 4, 6, domain),
        (29, 1, 1, 19, node),
        (29, 1, 2, 9, domain),
    ];
    for (nodes, jobs) in [
        (vec![dgx1v()], bridged),
        (vec![pairs(), switched()], unlike),
    ] {
        let nodes: Vec<NodeState> = nodes
            .into_iter()
            .map(|mut node| {
                node.rack = Some(name("rack"));
                node
            })
            .collect();
        let jobs = jobs.iter().enumerate();
        let jobs: Vec<(Name, Job)> = jobs
            .map(|(at, &(created, pods, gpus, seconds, scope))| {
                let one = job(created * 1_000, gpus, seconds);
                (name(format!("{at:02}")), one.of(pods, gpus).scope(scope))
            })
            .collect();
        delays_nobody(&nodes, &jobs).unwrap();
    }
}

/// Each job starts as if the jobs behind it did not exist, or earlier.
fn delays_nobody(nodes: &[NodeState], jobs: &[(Name, Job)]) -> Result<(), TestCaseError> {
    let mut all = world(nodes, Settings::default());
    all.replay(jobs);
    for at in 0..jobs.len() {
        let mut alone = world(nodes, Settings::default());
        alone.replay(&jobs[..=at]);
        let id = &jobs[at].0;
        let (with, without) = (all.started.get(id), alone.started.get(id));
        prop_assert_eq!(with.is_some(), without.is_some(), "{}", id);
        prop_assert!(
            with <= without,
            "{} at {:?}, alone at {:?}",
            id,
            with,
            without
        );
    }
    Ok(())
}

fn start(eta: Option<nvlink_planner::Eta>) -> Millis {
    eta.map_or(Millis::MAX, |eta| eta.upper)
}

/// Returns all sets of free GPUs on which a job could start.
fn choices(world: &World, id: &Name) -> Vec<(Name, Vec<u32>)> {
    let job = &world.fed.jobs[id];
    let asked = job.members[0].gpus;
    let mut choices = Vec::new();
    for (name, node) in &world.fed.nodes {
        let graph = node.graph.as_ref().unwrap();
        let free: Vec<u32> = (0..node.capacity)
            .filter(|&gpu| !world.held.contains_key(&(name.clone(), gpu)))
            .collect();
        for mask in 0u32..1 << free.len() {
            if mask.count_ones() != asked {
                continue;
            }
            let of_mask = free
                .iter()
                .enumerate()
                .filter(|(bit, _)| mask >> bit & 1 == 1);
            let gpus: Vec<u32> = of_mask.map(|(_, &gpu)| gpu).collect();
            let set = graph.set(&gpus).unwrap();
            let request = nvlink_topology::Request {
                gpus: gpus.len(),
                free: set,
                required: set,
                pattern: job.pattern,
                scope: job.scope,
            };
            if nvlink_topology::place(graph, &request).is_ok() {
                choices.push((name.clone(), gpus));
            }
        }
    }
    choices
}

/// Returns a planner of the same state, except that a job has started.
fn started(fed: &Fed, id: &Name, node: &Name, gpus: &[u32]) -> nvlink_planner::Planner {
    let mut planner = fed.fresh();
    let job = &fed.jobs[id];
    planner.job(id, None);
    let mut pod = crate::waits::pod(node, gpus, None);
    pod.end = job.duration.map(|duration| Estimate { ..duration });
    planner.pod(id, Some(pod));
    planner
}
