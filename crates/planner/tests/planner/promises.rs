//! What the order promises: nobody is passed for ever, and nobody waits who could start.

use nvlink_planner::{Job, Millis, Name, NodeState, Settings};
use nvlink_topology::Scope;
use proptest::prelude::*;

use crate::{
    cluster::{With, dgx1v, job, name, pairs, switched},
    world::World,
};

/// For how long a job may be passed for each node that it needs.
const DAYS: Millis = 48 * 3_600_000;

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

/// The same, but an hour for each second.
fn long_jobs(most: usize) -> impl Strategy<Value = Vec<(Name, Job)>> {
    jobs(most).prop_map(|mut jobs| {
        for (_, job) in &mut jobs {
            job.created *= 3_600;
            if let Some(duration) = &mut job.duration {
                duration.mean *= 3_600;
            }
        }
        jobs
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

    /// A job that has waited for two days for each node that it needs, with nobody ahead of it,
    /// starts at the latest when the pods have ended that had started by then.
    #[test]
    fn nobody_is_passed_for_ever(nodes in nodes(), jobs in long_jobs(40)) {
        let mut world = world(&nodes, Settings::default());
        world.replay(&jobs);
        let largest = nodes.iter().map(|node| node.capacity).max().unwrap_or(1);
        for (at, (id, job)) in jobs.iter().enumerate() {
            let Some(&start) = world.started.get(id) else { continue };
            let gpus: u32 = job.members.iter().map(|member| member.gpus).sum();
            let patient = job.created + DAYS * i64::from(gpus.div_ceil(largest));
            let ahead = jobs[..at].iter().filter_map(|(id, _)| world.started.get(id));
            let first = ahead.copied().max().unwrap_or(0).max(patient);
            let runs = |(id, job): &(Name, Job)| {
                let start = *world.started.get(id)?;
                (start <= first).then_some(start + job.duration?.mean)
            };
            let ends = jobs.iter().filter_map(runs).max().unwrap_or(0).max(first);
            prop_assert!(start <= ends, "{} at {}, not by {}", id, start, ends);
        }
    }

    /// Against all placements that there are: nobody waits who could start, as long as no place is
    /// kept for a job.
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
        for one in world.fed.round(0).waiting {
            let choices = choices(&world, &one.job);
            prop_assert!(choices.is_empty(), "{} could have {:?}", one.job, choices[0]);
        }
    }
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
