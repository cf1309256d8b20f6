//! The API server's clock is set while pods wait: nobody has waited longer because of it.

use nvlink_tests::{
    FaultyApi,
    programs::{self, WEBHOOK},
    wait_until,
};

use super::{
    boundaries::says_why,
    ledger::Ledger,
    stage::{BRIEF, Stage, pod},
    team::Team,
};
use crate::queue::cluster::SOON;

const HOUR: i64 = 3_600;

#[test]
fn a_clock_that_is_set_rejects_nobody() {
    let stage = Stage::start(&["n1"], "5m");
    let ledger = Ledger::open(&stage.plane);
    let team = Team::new(&stage.plane);
    let api = FaultyApi::start(&stage.plane).unwrap();
    let program = programs::path(WEBHOOK).unwrap();
    let leader = stage.leader_of(&program, &api.kubeconfig);
    let bound = |name: &str| {
        let bound = wait_until(&format!("{name} to be bound"), SOON, || {
            Ok(ledger.pod(name).and_then(|pod| pod.node))
        });
        bound.unwrap_or_else(|error| panic!("{error:#}\n{}", leader.process.log()));
    };
    team.create(&pod("holds", 8, None, None));
    bound("holds");
    team.set_phase("holds", "Running");

    let mut waiting = vec!["waits-0".to_owned(), "waits-1".to_owned()];
    for name in &waiting {
        team.create(&pod(name, 2, None, Some(BRIEF)));
    }
    for (jumps, ahead) in [0, HOUR, 0, -HOUR].into_iter().enumerate() {
        api.set_ahead(ahead);
        wait_until("the leader to hear the time", SOON, || {
            let heard = leader.process.log().matches("clock was set").count();
            Ok((heard == jumps).then_some(()))
        })
        .unwrap();
        // It shows that the leader has looked at the queue since. The real API server stamps it, so
        // its class lets it wait for longer than an hour.
        let name = format!("probe-{jumps}");
        team.create(&pod(&name, 1, None, None));
        wait_until("the pod to say why it waits", SOON, || {
            Ok(says_why(&stage, &name).then_some(()))
        })
        .unwrap();
        waiting.push(name);
        for name in &waiting {
            let pod = ledger.pod(name).unwrap();
            assert!(pod.waits(), "{pod:?}\n{}", leader.process.log());
        }
    }
    team.set_phase("holds", "Succeeded");
    waiting.iter().for_each(|name| bound(name));
    ledger.check();
}
