//! Random sequences of what happens to a cluster.

use nvlink_planner::{
    Availability, Class, Deadline, Estimate, Job, Millis, Name, NodeState, OnTimeout, Reason,
    Round, Settings, Waiting,
};
use nvlink_topology::{Fabric, Scope};
use proptest::prelude::*;

use crate::{
    cluster::{CLASS, With, job, name, pairs, switched},
    world::World,
};

/// Something that happens.
#[derive(Clone, Debug)]
enum Event {
    /// A job of this many pods and GPUs a pod arrives.
    Arrive(u32, u32, Scope, Option<u8>, i32),
    /// A pod ends or dies.
    Gone(usize),
    /// A pod dies, and its owner creates it again.
    Again(usize),
    /// The scheduler binds all pods that were released.
    Bind,
    /// A node is lost with its pods, or comes back.
    Node(usize),
    /// A node is drained, or no longer.
    Drain(usize),
    /// The clock jumps by so many minutes.
    Jump(i64),
    /// Time passes, seconds.
    Pass(i64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let scope = prop_oneof![
        Just(Scope::NvlinkDomain),
        Just(Scope::Node),
        Just(Scope::Rack),
        Just(Scope::Zone),
        Just(Scope::Cluster)
    ];
    let pods = prop_oneof![3 => Just(1u32), 4 => 2..9u32, 2 => 9..65u32];
    let arrive = (pods, 1..5u32, scope, prop::option::of(1..60u8), 0..2i32);
    let event = prop_oneof![
        6 => arrive.prop_map(|(pods, gpus, scope, runs, priority)| {
            // 64 GPUs are all there are.
            let gpus = gpus.min((64 / pods).max(1));
            Event::Arrive(pods, gpus, scope, runs, priority)
        }),
        5 => any::<usize>().prop_map(Event::Gone),
        2 => any::<usize>().prop_map(Event::Again),
        2 => Just(Event::Bind),
        1 => any::<usize>().prop_map(Event::Node),
        1 => any::<usize>().prop_map(Event::Drain),
        1 => (-60..61i64).prop_map(Event::Jump),
        3 => (1..600i64).prop_map(Event::Pass),
    ];
    prop::collection::vec(event, 1..24)
}

/// Returns ten nodes in two zones, three racks and one fabric: 72 GPUs, and 64 in one zone.
fn nodes() -> Vec<(Name, NodeState)> {
    let fabric = Fabric {
        cluster_uuid: "f00d".to_owned(),
        clique: 1,
    };
    let node = |at: usize| {
        let mut node = if at < 8 { switched() } else { pairs() };
        node.fabric = (at < 3).then(|| fabric.clone());
        node.rack = Some(name(format!("rack{}", at / 4)));
        node.zone = Some(name(if at < 8 { "zone0" } else { "zone1" }));
        (name(format!("n{at}")), node)
    };
    (0..10).map(node).collect()
}

struct Chaos {
    world: World,
    nodes: Vec<(Name, NodeState)>,
    jobs: usize,
}

impl Chaos {
    fn new(one_host: bool) -> Self {
        let mut world = World::new(Settings::default());
        let nodes = nodes();
        for (name, node) in &nodes {
            world.fed.node(name, node.clone());
        }
        world.fed.class(
            CLASS,
            Class {
                max_gpus_per_project: Some(64),
                one_host,
                ..Class::default()
            },
        );
        world.now = 1_000_000_000;
        Self {
            world,
            nodes,
            jobs: 0,
        }
    }

    fn happen(&mut self, event: &Event) {
        let world = &mut self.world;
        match *event {
            Event::Arrive(pods, gpus, scope, runs, priority) => {
                self.jobs += 1;
                let spread = Deadline {
                    at: world.now + 60_000,
                    then: OnTimeout::Spread,
                };
                let one = Job {
                    deadline: self.jobs.is_multiple_of(4).then_some(spread),
                    duration: runs.map(|runs| Estimate::exact(i64::from(runs) * 60_000)),
                    priority,
                    project: name(format!("project{}", self.jobs % 3)),
                    ..job(world.now, gpus, 0)
                };
                let one = one.of(pods, gpus).scope(scope);
                world.fed.job(&format!("job{:03}", self.jobs), one);
            }
            Event::Gone(which) => {
                if let Some(pod) = nth(world, which) {
                    world.end(&pod);
                }
            }
            Event::Again(which) => self.again(which),
            Event::Bind => bind(world),
            Event::Node(which) => self.lose_or_return(which),
            Event::Drain(which) => {
                let (name, _) = &self.nodes[which % self.nodes.len()];
                if let Some(mut node) = world.fed.nodes.get(name).cloned() {
                    node.availability = match node.availability {
                        Availability::Ready => Availability::Out,
                        _ => Availability::Ready,
                    };
                    world.fed.node(name, node);
                }
            }
            Event::Jump(minutes) => world.now += minutes * 60_000,
            Event::Pass(seconds) => world.now += seconds * 1_000,
        }
    }

    /// A pod dies and is created again, gated, under the same name.
    fn again(&mut self, which: usize) {
        let world = &mut self.world;
        let Some(pod) = nth(world, which) else { return };
        let state = world.fed.pods[&pod].clone();
        world.end(&pod);
        let id = state.job.unwrap();
        let Some(mut job) = world.fed.jobs.get(&id).cloned() else {
            return;
        };
        job.members.push(nvlink_planner::Member {
            rank: job
                .seats
                .iter()
                .find(|seat| seat.pod == pod)
                .map(|seat| seat.rank),
            pod,
            gpus: state.gpus,
            role: None,
            resources: Vec::new(),
        });
        world.fed.set_job(&id, Some(job));
    }

    fn lose_or_return(&mut self, which: usize) {
        let world = &mut self.world;
        let (name, state) = &self.nodes[which % self.nodes.len()];
        if !world.fed.nodes.contains_key(name) {
            world.fed.node(name, state.clone());
            return;
        }
        let pods = world.fed.pods.iter().filter(|(_, pod)| pod.node == *name);
        let pods: Vec<Name> = pods.map(|(id, _)| id.clone()).collect();
        pods.iter().for_each(|pod| world.end(pod));
        world.fed.node(name, None);
    }

    /// Everything that runs ends, again and again: the queue drains.
    fn drain(&mut self) {
        for (name, state) in &self.nodes {
            self.world.fed.node(name, state.clone());
        }
        for _ in 0..200 {
            let pods: Vec<Name> = self.world.fed.pods.keys().cloned().collect();
            pods.iter().for_each(|pod| self.world.end(pod));
            self.world.now += 1_000;
            let round = self.world.step();
            // A gang may be too large for its scope. Nobody else may wait any longer.
            let now = self.world.now;
            let may_wait = |one: &Waiting| {
                let spreads = one.reason == Reason::Spreads;
                one.reason.is_never() || spreads && one.deadline.is_some_and(|end| end.at > now)
            };
            if round.waiting.iter().all(may_wait) {
                return;
            }
        }
        let round = self.world.fed.round(self.world.now);
        panic!("these wait for ever: {:?}", round.waiting);
    }
}

fn nth(world: &World, which: usize) -> Option<Name> {
    let pods = world.fed.pods.keys();
    let n = pods.len();
    (n > 0).then(|| world.fed.pods.keys().nth(which % n).unwrap().clone())
}

fn bind(world: &mut World) {
    let unbound = world.fed.pods.iter().filter(|(_, pod)| !pod.bound);
    let unbound: Vec<_> = unbound.map(|(id, pod)| (id.clone(), pod.clone())).collect();
    for (id, mut pod) in unbound {
        pod.bound = true;
        world.fed.pod(&id, pod);
    }
}

fn assert_order(waiting: &[nvlink_planner::Waiting]) {
    for (at, one) in (1..).zip(waiting) {
        assert_eq!(one.position, at);
    }
}

/// Returns the jobs that wait.
fn jobs(round: &Round) -> Vec<&Name> {
    round.waiting.iter().map(|one| &one.job).collect()
}

fn run(events: &[Event], one_host: bool) {
    let mut chaos = Chaos::new(one_host);
    let mut before: Option<(Millis, Round)> = None;
    for event in events {
        chaos.happen(event);
        let world = &mut chaos.world;
        let mut fresh = world.fed.fresh();
        let settled = world.fed.is_settled(world.now);
        let round = world.step();
        assert_order(&round.waiting);
        assert_eq!(fresh.round(world.now), round, "after {before:?}");
        if let Some((_, before)) = before.filter(|_| settled) {
            assert_eq!(before.actions, round.actions);
            assert_eq!(jobs(&before), jobs(&round));
        }
        before = Some((world.now, round));
    }
    chaos.drain();
}

// No GPU twice, no gang in part, the same answer as a planner that was told the same state at once,
// and no deadlock.
proptest! {
    #![proptest_config(crate::cases(5_000))]

    #[test]
    fn whatever_happens(events in events()) {
        run(&events, false);
    }

    #[test]
    fn whatever_happens_to_gangs_on_one_host(events in events()) {
        run(&events, true);
    }
}
