//! The queue without a cluster: what happened goes in, effects come out.

use std::time::Duration;

use nvlink_api::class::Class;
use nvlink_cluster::{
    gpus::{Hardwares, Marks},
    kinds::NodeObject,
};
use nvlink_runtime::lease::Candidate;
use nvlink_topology::{NodeTopologySpec, labels};
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde_json::{Value, json};

use super::{effect::Effect, state::State, *};
use crate::{
    clock::Heard,
    events::Storage,
    execute::{Move, Outcome},
    feed::node::Node,
    placeholders::Answer,
    placement::id,
};

const NOW: i64 = 1_785_578_400_000;

/// Returns the queue of a class, with one node of two GPUs, before it heard the time.
fn state() -> State {
    state_of(json!({"queueTimeout": "1h"}), None)
}

/// The same of a class with this `placement`, and with placeholder pods in a namespace.
fn state_of(mut placement: Value, placeholders: Option<&str>) -> State {
    let term = Term {
        until: Instant::now(),
        number: 7,
    };
    let mut state = State::new(
        &Settings::default(),
        placeholders.map(str::to_owned),
        &Arc::default(),
        &term,
        &Arc::default(),
    );
    placement["whenUnavailable"] = json!("Queue");
    let spec = json!({"placement": placement});
    let class = Class::new("line", &serde_json::from_value(spec).unwrap()).unwrap();
    let status = json!({
        "allocatable": {"nvidia.com/gpu": "2"},
        "conditions": [{"type": "Ready", "status": "True"}],
    });
    let node = Node::of(&NodeObject {
        status,
        ..NodeObject::default()
    });
    let spec = json!({
        "source": {"kind": "sim"},
        "gpus": [{"index": 0, "uuid": "GPU-0"}, {"index": 1, "uuid": "GPU-1"}],
        "edges": [{"a": 0, "b": 1, "via": "switch", "links": 18, "bytesPerSecond": 450_000_000_000_u64}],
    });
    let mut spec: NodeTopologySpec = serde_json::from_value(spec).unwrap();
    spec.complete("n1").unwrap();
    let published = Hardwares::default().node(&spec, Marks::default(), None);
    let published = Some(Arc::new(Ok(published)));
    let events = vec![
        Event::Class("line".to_owned(), Some(Ok(Arc::new(class)))),
        Event::AllClasses(["line".to_owned()].into()),
        Event::Node("n1".to_owned(), Some(node)),
        Event::AllNodes(["n1".to_owned()].into()),
        Event::Topology("n1".to_owned(), published),
        Event::AllTopologies(["n1".to_owned()].into()),
        Event::AllPods(Default::default()),
        Event::AllSlices(Default::default()),
        Event::AllClaims(Default::default()),
        Event::AllDeviceClasses(Default::default()),
        Storage::AllClaims(Default::default()).into(),
        Storage::AllVolumes(Default::default()).into(),
        Storage::AllClasses(Default::default()).into(),
    ];
    let ready = state.apply(happened(events));
    assert!(!ready, "nothing can be said before the time is known");
    state
}

fn happened(events: Vec<Event>) -> Happened {
    Happened {
        events,
        ..Happened::default()
    }
}

fn ended(done: Done) -> Happened {
    Happened {
        done: vec![done],
        ..Happened::default()
    }
}

fn heard(state: &mut State) -> bool {
    let heard = Heard {
        server: NOW,
        took: Duration::ZERO,
    };
    state.apply(ended(Done::Time(Some(heard))))
}

fn pod(name: &str, gpus: u32) -> Value {
    json!({
        "metadata": {
            "namespace": "team", "name": name, "uid": format!("uid of {name}"),
            "resourceVersion": "1", "creationTimestamp": "2026-08-01T10:00:00Z",
            "labels": {labels::CLASS: "line"}, "annotations": {},
        },
        "spec": {
            "schedulingGates": [{"name": labels::QUEUE_GATE}],
            "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": gpus}}}],
        },
        "status": {"phase": "Pending"},
    })
}

fn appears(state: &mut State, pod: Value) {
    assert!(state.apply(happened(vec![Event::Pod(Box::new(pod))])));
    state.step();
}

/// Returns the names of the effects, and what is released.
fn taken(state: &mut State) -> (Vec<&'static str>, Vec<Move>) {
    let (mut names, mut moves) = (Vec::new(), Vec::new());
    for effect in state.effects() {
        names.push(match effect {
            Effect::Release(all) => {
                moves.extend(all);
                "release"
            }
            Effect::ClaimAgain(_) => "claim again",
            Effect::Fail(..) => "fail",
            Effect::Show(_) => "show",
            Effect::Tell(_) => "tell",
            Effect::Placeholder(_) => "placeholder",
            Effect::Read(..) | Effect::Pause(..) => "read",
            Effect::AskTime(_) => "ask",
        });
    }
    (names, moves)
}

async fn passes(seconds: u64) {
    tokio::time::advance(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_step_decides_what_to_do_and_how_it_ended_comes_back() {
    let mut state = state();
    assert_eq!(taken(&mut state).0, ["ask"]);
    assert!(heard(&mut state));
    state.step();
    let (names, _) = taken(&mut state);
    assert_eq!(names, ["ask"], "for the time again, and nobody waits");
    appears(&mut state, pod("a", 2));
    let (names, moves) = taken(&mut state);
    assert_eq!(names, ["release"]);
    assert_eq!(moves[0].pod.0, id("team", "a"));
    assert_eq!(moves[0].placement.node.as_deref(), Some("n1"));
    assert_eq!(moves[0].placement.plan, "7-1");
    passes(31).await;
    assert!(!state.is_idle(), "a pod is being written");

    // What is being written counts: the next pod waits, and says so.
    appears(&mut state, pod("b", 2));
    assert_eq!(taken(&mut state).0, ["show"]);

    // The API server refuses the write: the other pod comes first.
    let id = moves.into_iter().next().unwrap().pod;
    let refused = Outcome::Refused("no".to_owned());
    let refused = ended(Done::Written(vec![(id, refused)]));
    assert!(state.apply(refused));
    assert_eq!(state.moving, 0);
    state.step();
    let (_, moves) = taken(&mut state);
    let released: Vec<&str> = moves.iter().map(|one| &*one.pod.0).collect();
    assert_eq!(released, ["team/b"]);
}

#[tokio::test(start_paused = true)]
async fn pods_whose_class_cannot_be_used_are_counted() {
    let mut state = state();
    heard(&mut state);
    appears(&mut state, pod("a", 8));
    let mut registry = Registry::default();
    state
        .metrics
        .register(&mut registry, &mut Registry::default());
    let counted = |state: &State| {
        state.metrics.age();
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let lines = text
            .lines()
            .filter(|line| line.starts_with("queue_waiting") || line.starts_with("queue_wanted"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let lines = |reason: &str| {
        [
            format!(r#"queue_waiting_pods{{class="line",reason="{reason}"}} 1"#),
            r#"queue_waiting_gpus{class="line"} 8"#.to_owned(),
        ]
    };
    let shape = r#"queue_wanted_gpus{class="line",gpus_per_pod="8",scope="nvlink-domain"} 8"#;
    let [pods, gpus] = lines("impossible");
    assert_eq!(counted(&state), [pods, gpus, shape.to_owned()]);
    passes(1).await;
    let broken = Event::Class("line".to_owned(), Some(Err("a typo".to_owned())));
    assert!(state.apply(happened(vec![broken])));
    state.step();
    assert_eq!(counted(&state), lines("unaccepted"));
    let (names, _) = taken(&mut state);
    assert_eq!(names.last(), Some(&"show"));
    passes(31).await;
    assert!(!state.is_idle(), "its pod waits");
}

#[tokio::test(start_paused = true)]
async fn pods_from_the_future_wait_no_longer_than_others() {
    let mut state = state();
    heard(&mut state);
    // The clock was an hour and more ahead when it stamped them, and nobody led when it was set back.
    let events = [("a", "2026-08-02T11:00:00Z"), ("b", "2026-08-02T11:10:00Z")];
    let events = events.map(|(name, created)| {
        let mut pod = pod(name, 8);
        pod["metadata"]["creationTimestamp"] = json!(created);
        Event::Pod(Box::new(pod))
    });
    assert!(state.apply(happened(events.into())));
    let mut failed = Vec::new();
    state.step();
    for minutes in [49, 2, 8, 2] {
        passes(60 * minutes).await;
        state.step();
        let effects = state.effects().into_iter();
        let pods = effects.filter_map(|effect| match effect {
            Effect::Fail(pods, _) => Some(pods),
            _ => None,
        });
        let names = pods.flatten().map(|((pod, _), _)| pod.to_string());
        failed.push(names.collect::<Vec<_>>());
    }
    // They may wait for an hour: the latest of them was created now, the other ten minutes before.
    let none = Vec::new;
    let one = |name: &str| vec![name.to_owned()];
    assert_eq!(failed, [none(), one("team/a"), none(), one("team/b")]);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_changes_nothing_is_no_reason_for_a_step() {
    let mut state = state();
    heard(&mut state);
    state.step();
    let irrelevant = || happened(vec![Event::Load("team/other".into(), None)]);
    assert!(!state.apply(irrelevant()));
    let due = Happened {
        due: true,
        ..irrelevant()
    };
    assert!(state.apply(due), "it is time to look again");
}

/// While the watches say things that matter to nobody, a look that is due is not put off.
#[tokio::test(start_paused = true)]
async fn events_put_off_no_look() {
    let config = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
    let client = Client::try_from(config).unwrap();
    let leadership = Candidate::new(client.clone(), "n", "lease", "me".to_owned()).leadership();
    let term = Term {
        until: Instant::now(),
        number: 7,
    };
    let mut executor = Executor::new(&client, &leadership, &term, &Arc::default());
    let (sender, mut events) = tokio::sync::mpsc::unbounded_channel();
    let due = Instant::now() + Duration::from_secs(10);
    passes(10).await;
    sender.send(Event::Load("team/other".into(), None)).unwrap();
    let mut looks = 0;
    for _ in 0..100 {
        let happened = wait(&mut events, &mut executor, due).await.unwrap();
        looks += usize::from(happened.due);
        sender.send(Event::Load("team/other".into(), None)).unwrap();
    }
    assert!(looks > 10, "{looks} of 100 looks were due");
}

/// Returns the UIDs of the waiting pods whose placeholders are created.
fn requested(state: &mut State) -> Vec<String> {
    let requests = state
        .effects()
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::Placeholder(request) => Some((request.uid, request.object.is_some())),
            _ => None,
        });
    let created = requests.filter(|(_, created)| *created);
    created.map(|(uid, _)| uid).collect()
}

#[tokio::test(start_paused = true)]
async fn nodes_are_requested_for_the_first_jobs_that_the_class_allows() {
    let mut state = state_of(json!({"maxPlaceholderPods": 1}), Some("nvlink"));
    heard(&mut state);
    // A gang that is too large for the class keeps no other job from asking.
    for name in ["gang-0", "gang-1"] {
        let mut pod = pod(name, 4);
        pod["metadata"]["annotations"] = json!({labels::GANG: "gang", labels::GANG_SIZE: "2"});
        appears(&mut state, pod);
    }
    for name in ["b", "c"] {
        appears(&mut state, pod(name, 4));
    }
    assert!(
        requested(&mut state).is_empty(),
        "most start within seconds"
    );
    passes(11).await;
    state.step();
    assert_eq!(requested(&mut state), ["uid of b"]);
    passes(1).await;
    state.step();
    assert!(requested(&mut state).is_empty(), "one is being created");

    let metadata = json!({
        "namespace": "nvlink", "name": "nvlink-placeholder-uid of b",
        "creationTimestamp": "2026-08-01T10:00:12Z", "labels": {labels::PLACEHOLDER: "line"},
    });
    let there = Answer::There(Box::new(json!({"metadata": metadata})));
    let uid = "uid of b".to_owned();
    state.apply(ended(Done::Placeholder(uid, there)));
    // While its deletion is not answered, the queue rests.
    passes(3_600).await;
    state.step();
    let deletions = state.effects().into_iter().filter(
        |effect| matches!(effect, Effect::Placeholder(request) if request.object.is_none()),
    );
    assert_eq!(deletions.count(), 1);
    for _ in 0..3 {
        assert!(state.due() > Instant::now());
        passes(1).await;
        state.step();
    }
}
