//! Whatever fails, no pod is lost or released twice, no GPU is given to two pods, and gangs start
//! whole.

mod boundaries;
mod clock;
mod ledger;
mod load;
mod stage;
mod team;

use std::{
    thread,
    time::{Duration, Instant},
};

use nvlink_tests::{Kubectl, Node, Replica, node, wait_until};
use serde_json::json;

use self::{
    ledger::Ledger,
    load::{Desk, Load, Outcome, disturb},
    stage::{Stage, pod},
};
use super::{cluster::SOON, leaders::signal};

/// The order of the load. Another one is taken from the environment.
const SEED: u64 = 15;
const SEED_VARIABLE: &str = "NVLINK_TEST_SEED";
/// So many pods are released after a fault until the queue counts as recovered.
const RECOVERED: usize = 5;
/// A recovery that takes longer than a killed leader's Lease lasts is shown with the logs.
const SLOW: Duration = Duration::from_secs(20);
/// The scheduler tries a pod again after five minutes at the latest
/// (`podMaxInUnschedulablePodsDuration`), also if it missed why the pod fits now.
const SCHEDULED: Duration = Duration::from_secs(420);
/// A pod that was released to a node which then was deleted.
const STRANDED: &str = "stranded";

/// What a fault did.
struct Figure {
    fault: &'static str,
    lasted: Duration,
    /// From the end of the fault to the next release.
    recovered: Duration,
    /// The longest time without a release since the fault began.
    paused: Duration,
}

struct Chaos<'a> {
    stage: &'a mut Stage,
    ledger: &'a Ledger,
    desk: &'a Desk,
    leaders: Vec<Replica>,
    figures: Vec<Figure>,
}

#[test]
fn nothing_is_lost_whatever_fails() {
    let seed = std::env::var(SEED_VARIABLE).map_or(SEED, |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let mut stage = Stage::start(&["n1", "n2", "n3"], "20s");
    let ledger = Ledger::open(&stage.plane);
    let desk = Desk::default();
    let leaders = vec![stage.leader(), stage.leader()];
    strand(&stage, &ledger);
    // What the load needs of the stage, while faults change it.
    let load = Load::new(&stage.plane, &ledger, seed);
    let other = team::Team::new(&stage.plane);
    let outcome = thread::scope(|scope| {
        let load = scope.spawn(|| load.run(&desk));
        scope.spawn(|| disturb(&other, &ledger, &desk));
        let mut chaos = Chaos {
            stage: &mut stage,
            ledger: &ledger,
            desk: &desk,
            leaders,
            figures: Vec::new(),
        };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| chaos.play()));
        desk.end();
        let outcome = load.join().unwrap();
        if let Err(panic) = done {
            for leader in &chaos.leaders {
                println!("{}", leader.process.log());
            }
            println!("scheduler: {:?}", chaos.stage.plane.check_scheduler());
            std::panic::resume_unwind(panic);
        }
        chaos.report(&outcome);
        outcome
    });
    assert!(outcome.gangs > 5 && outcome.deleted > 5, "{outcome:?}");
    assert_ended_well(&ledger);
}

/// Releases a pod that no scheduler can bind to a node, and deletes the node.
fn strand(stage: &Stage, ledger: &Ledger) {
    let all = stage.plane.kubectl();
    node::create(all, &[Node::new("n4", 8).pool("spare")]).unwrap();
    let mut pod = pod(STRANDED, 1, None, None);
    node::in_pool(&mut pod["spec"], "spare");
    // No scheduler binds it before its node is lost.
    pod["spec"]["schedulerName"] = json!("nobody");
    stage.team.create(&pod).unwrap();
    wait_until("the pod to be released", SOON, || {
        let pod = ledger.pod(STRANDED);
        Ok(pod.and_then(|pod| pod.place))
    })
    .unwrap();
    all.run(&["delete", "node", "n4"]).unwrap();
}

impl Chaos<'_> {
    fn play(&mut self) {
        self.desk.order(|orders| orders.deletions = 30);
        self.fault("no fault", |it| it.wait_for_releases(10));
        self.fault("conflicts on each write", |it| {
            it.desk.order(|orders| orders.noise = true);
            it.wait_for_releases(15);
            it.desk.order(|orders| orders.noise = false);
        });
        self.fault("pods deleted all the time", |it| {
            it.desk.order(|orders| orders.deletions = 600);
            it.wait_for_releases(15);
            it.desk.order(|orders| orders.deletions = 30);
        });
        self.fault("leader killed", |it| {
            let at = it.leader();
            it.leaders.remove(at);
        });
        self.leaders.push(self.stage.leader());
        self.fault("leader stopped, and continued", |it| {
            let at = it.leader();
            let term = it.stage.term();
            signal(&it.leaders[at], "-STOP");
            it.stage.led_after(term);
            signal(&it.leaders[at], "-CONT");
        });
        self.break_the_cluster();
        self.desk.order(|orders| {
            orders.closed = true;
            orders.noise = false;
            orders.deletions = 0;
        });
        self.drain();
    }

    fn break_the_cluster(&mut self) {
        self.fault("API server killed", |it| {
            it.stage.plane.restart_api_server().unwrap();
        });
        self.fault("etcd killed", |it| {
            it.stage.plane.restart_etcd().unwrap();
        });
        self.fault("exporter killed, its report deleted", |it| {
            it.stage.forget("n1");
            it.wait_for_releases(5);
            it.stage.describe("n1");
        });
        self.fault("node not ready", |it| {
            ready(it.stage.plane.kubectl(), "n2", false);
            it.wait_for_releases(5);
            ready(it.stage.plane.kubectl(), "n2", true);
        });
        self.fault("node deleted, and created again", |it| {
            it.replace_node("n3")
        });
        self.fault("all at once", |it| {
            it.desk.order(|orders| {
                orders.noise = true;
                orders.deletions = 600;
            });
            let at = it.leader();
            it.leaders.remove(at);
            it.stage.plane.restart_etcd().unwrap();
            it.stage.plane.restart_api_server().unwrap();
        });
    }

    /// Runs something that fails, and measures how the queue recovers.
    fn fault(&mut self, fault: &'static str, act: impl FnOnce(&mut Self)) {
        println!("{fault}");
        let begin = Instant::now();
        act(self);
        let end = Instant::now();
        wait_until(&format!("releases after: {fault}"), SOON, || {
            self.ledger.check();
            Ok((self.ledger.releases(end).len() >= RECOVERED).then_some(()))
        })
        .unwrap();
        let releases = self.ledger.releases(begin);
        let mut last = begin;
        let mut paused = Duration::ZERO;
        for at in releases {
            paused = paused.max(at - last);
            last = at;
        }
        let next = self.ledger.releases(end)[0];
        if next - end > SLOW {
            println!("{:?} from {:?}: {:#?}", next - end, end, self.ledger.pods());
            for leader in &self.leaders {
                println!("{}", leader.process.log());
            }
        }
        self.figures.push(Figure {
            fault,
            lasted: end - begin,
            recovered: next - end,
            paused,
        });
    }

    fn wait_for_releases(&self, count: usize) {
        let since = Instant::now();
        wait_until(&format!("{count} releases"), SOON, || {
            self.ledger.check();
            Ok((self.ledger.releases(since).len() >= count).then_some(()))
        })
        .unwrap();
    }

    /// Returns which of the replicas leads, by its identity.
    fn leader(&self) -> usize {
        wait_until("a leader", SOON, || {
            let lease = ["lease", "nvlink-webhook", "-n", "default"];
            let lease = self.stage.plane.kubectl().get(&lease)?;
            let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
            let holds = |one: &Replica| !holder.is_empty() && one.process.log().contains(holder);
            Ok(self.leaders.iter().position(holds))
        })
        .unwrap()
    }

    fn replace_node(&mut self, name: &str) {
        let all = self.stage.plane.kubectl();
        all.run(&["delete", "node", name]).unwrap();
        self.desk.order(|orders| {
            orders.lost.insert(name.to_owned());
        });
        self.stage.forget(name);
        self.wait_for_releases(5);
        self.desk.order(|orders| {
            orders.lost.remove(name);
        });
        self.stage.create_node(name);
        self.stage.describe(name);
    }

    /// Waits until no pod waits, and then until all have ended.
    fn drain(&mut self) {
        let begin = Instant::now();
        let mut gates = None;
        wait_until("all pods to end", SCHEDULED, || {
            self.ledger.check();
            let pods = self.ledger.pods();
            if gates.is_none() && !pods.iter().any(ledger::Seen::waits) {
                gates = Some(begin.elapsed());
            }
            let left = pods.iter().filter(|pod| !pod.has_ended());
            let left: Vec<_> = left.map(ledger::Seen::state).collect();
            anyhow::ensure!(left.is_empty(), "{} are left: {left:#?}", left.len());
            Ok(Some(()))
        })
        .unwrap();
        let gates = gates.unwrap_or_default();
        println!("after the faults, the last gate was gone in {gates:.1?}");
    }

    fn report(&self, outcome: &Outcome) {
        println!(
            "{:<36} {:>8} {:>10} {:>8}",
            "fault", "lasted", "recovered", "paused"
        );
        for Figure {
            fault,
            lasted,
            recovered,
            paused,
        } in &self.figures
        {
            let [lasted, recovered, paused] =
                [lasted, recovered, paused].map(|it| format!("{:.1}s", it.as_secs_f64()));
            println!("{fault:<36} {lasted:>8} {recovered:>10} {paused:>8}");
        }
        println!("{outcome:?}");
    }
}

/// Sets whether a node is ready, with the taint that comes with it.
fn ready(all: &Kubectl, node: &str, ready: bool) {
    let (status, taint) = match ready {
        true => ("True", "node.kubernetes.io/not-ready:NoSchedule-"),
        false => ("Unknown", "node.kubernetes.io/not-ready:NoSchedule"),
    };
    let condition = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
    let patch = ["patch", "node", node, "--subresource=status", "-p"];
    all.run(&[&patch[..], &[&condition.to_string()]].concat())
        .unwrap();
    all.run(&["taint", "node", node, taint]).unwrap();
}

/// Asserts that all pods have succeeded, or failed for a reason of the queue.
fn assert_ended_well(ledger: &Ledger) {
    ledger.check();
    let pods = ledger.pods();
    let failed: Vec<_> = pods.iter().filter(|pod| pod.phase == "Failed").collect();
    for pod in &failed {
        let reason = match pod.name.as_str() {
            STRANDED => "QueueNodeLost",
            _ => "QueueTimeout",
        };
        assert_eq!(pod.reason.as_deref(), Some(reason), "{pod:?}");
        assert!(pod.gang.is_none(), "only jobs may wait so briefly: {pod:?}");
    }
    assert!(failed.iter().any(|pod| pod.name == STRANDED));
    println!("{} pods ended, {} rejected", pods.len(), failed.len());
}
