//! What waiting pods show, and when it is written.

mod words;

use std::sync::Arc;

use nvlink_admission::decide::Settings;
use nvlink_api::class::Class;
use nvlink_planner::{Eta, Millis, Reason, Waiting};
use nvlink_queue::{
    board::{Board, Task},
    feed::Feed,
    notice::{About, LATER, Notice, Post, SOON, Shown, Urgency},
};
use nvlink_topology::{Scope, labels};

use serde_json::{Value, json};

/// 2026-08-01T13:53:20Z.
const NOW: Millis = 1_785_592_400_000;
const MINUTE: Millis = 60_000;

fn about(scope: Scope) -> About<'static> {
    About {
        class: "training",
        project: "gitlab.42",
        reach: scope,
        grows: false,
        spares: false,
    }
}

fn at(start: Millis) -> Option<Eta> {
    Some(Eta {
        mean: start,
        upper: start + MINUTE,
        at_least: false,
    })
}

fn notice(reason: Reason, position: u32, eta: Option<Eta>) -> Notice {
    Notice {
        reason,
        obstacle: None,
        position: Some(position),
        eta,
        deadline: None,
        since: None,
        unseen: None,
        grows: false,
        asks: false,
    }
}

fn full(free: u32, position: u32, start: Millis) -> Notice {
    notice(Reason::Insufficient { asked: 4, free }, position, at(start))
}

#[test]
fn only_what_a_reader_notices_is_a_change() {
    let start = NOW + 60 * MINUTE;
    let before = full(2, 20, start);
    let eta = |eta| notice(before.reason.clone(), 20, eta);
    for (after, urgency) in [
        (before.clone(), None),
        (full(2, 19, start), None),
        (full(2, 18, start), Some(Urgency::Soon)),
        (full(2, 22, start), Some(Urgency::Soon)),
        (full(2, 20, start + 5 * MINUTE), None),
        (full(2, 20, start + 8 * MINUTE), Some(Urgency::Soon)),
        (full(2, 20, start - 8 * MINUTE), Some(Urgency::Soon)),
        (full(3, 20, start), Some(Urgency::Later)),
        (eta(None), Some(Urgency::Soon)),
        (
            eta(at(start).map(|eta| Eta {
                at_least: true,
                ..eta
            })),
            Some(Urgency::Soon),
        ),
        (
            notice(Reason::Behind { ahead: 19 }, 20, at(start)),
            Some(Urgency::Now),
        ),
    ] {
        assert_eq!(after.after(&before, NOW), urgency, "{after:?}");
    }
    // Near the front each step counts, and near the start each minute.
    let near = full(2, 2, NOW + 3 * MINUTE);
    assert_eq!(
        full(2, 1, NOW + 3 * MINUTE).after(&near, NOW),
        Some(Urgency::Soon)
    );
    assert_eq!(full(2, 2, NOW + 4 * MINUTE).after(&near, NOW), None);
    assert_eq!(
        full(2, 2, NOW + 5 * MINUTE).after(&near, NOW),
        Some(Urgency::Soon)
    );
}

fn pod(name: &str) -> Value {
    json!({
        "metadata": {
            "namespace": "team", "name": name, "uid": format!("uid-{name}"),
            "resourceVersion": "7", "creationTimestamp": "2026-08-01T13:50:00Z",
            "labels": {labels::CLASS: "fast"}, "annotations": {}
        },
        "spec": {
            "schedulingGates": [{"name": labels::QUEUE_GATE}],
            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "4"}}}]
        },
        "status": {"phase": "Pending"}
    })
}

/// Applies a strategic merge patch of a pod's status, as the API server does.
fn apply(pod: &mut Value, patch: &Value) {
    let mut rest = patch.clone();
    rest["metadata"]["resourceVersion"] = json!("8");
    let condition = rest["status"]["conditions"][0].take();
    rest["status"] = json!({});
    json_patch::merge(pod, &rest);
    let conditions = pod["status"]["conditions"].as_array().cloned();
    let mut conditions = conditions.unwrap_or_default();
    match conditions
        .iter_mut()
        .find(|one| one["type"] == condition["type"])
    {
        Some(one) => json_patch::merge(one, &condition),
        None => conditions.push(condition),
    }
    pod["status"]["conditions"] = json!(conditions);
}

#[test]
fn what_is_written_is_read_again() {
    let mut pod = pod("a");
    let wanted = full(2, 3, NOW + 12 * MINUTE);
    let about = about(Scope::NvlinkDomain);
    assert_eq!(
        wanted.after_shown(&Shown::of(&pod), about, NOW),
        Some(Urgency::Now)
    );
    let patch = Post::waits(&wanted, about, NOW).patch(&pod, false, NOW);
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    apply(&mut pod, &patch);
    assert_eq!(wanted.after_shown(&Shown::of(&pod), about, NOW), None);
    let condition = pod["status"]["conditions"][0].clone();
    assert_eq!(condition["lastTransitionTime"], "2026-08-01T13:53:20Z");
    assert_eq!(condition["reason"], "Insufficient");
    let next = full(2, 2, NOW + 12 * MINUTE);
    assert_eq!(
        next.after_shown(&Shown::of(&pod), about, NOW),
        Some(Urgency::Soon)
    );
    // The condition keeps the time since which the pod waits.
    let patch = Post::waits(&next, about, NOW + MINUTE).patch(&pod, true, NOW + MINUTE);
    apply(&mut pod, &patch);
    let condition = &pod["status"]["conditions"][0];
    assert_eq!(condition["lastTransitionTime"], "2026-08-01T13:53:20Z");
    let left = Post::Left("released to node n1: it was its turn".to_owned());
    let patch = left.patch(&pod, true, NOW + 2 * MINUTE);
    assert_eq!(patch["metadata"].get("resourceVersion"), None);
    apply(&mut pod, &patch);
    assert_eq!(Shown::of(&pod), Shown::default());
    let condition = &pod["status"]["conditions"][0];
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("False"), &json!("Released"))
    );
    assert_eq!(condition["lastTransitionTime"], "2026-08-01T13:55:20Z");
}

fn feed(pods: impl IntoIterator<Item = Value>) -> Feed {
    let spec = json!({"placement": {"whenUnavailable": "Queue"}});
    let class = Class::new("fast", &serde_json::from_value(spec).unwrap()).unwrap();
    let mut feed = Feed::new(Settings::default());
    feed.class("fast", Some(Ok(Arc::new(class))));
    pods.into_iter().for_each(|pod| feed.pod(pod));
    feed
}

fn waiting(name: &str, notice: &Notice) -> Waiting {
    Waiting {
        job: format!("team/{name}").as_str().into(),
        position: notice.position.unwrap(),
        class_position: notice.position.unwrap(),
        eta: notice.eta,
        deadline: notice.deadline,
        reason: notice.reason.clone(),
    }
}

fn names(tasks: &[Task]) -> Vec<&str> {
    tasks.iter().map(|task| &*task.pod).collect()
}

#[test]
fn a_pod_is_written_when_it_begins_to_wait_and_when_that_changes() {
    let feed = feed([pod("a")]);
    let mut board = Board::default();
    let start = NOW + 60 * MINUTE;
    let look = |board: &mut Board, notice: &Notice, now| {
        let tasks = board.look(&[waiting("a", notice)], &feed, false, now);
        tasks.into_iter().next()
    };
    let a = "team/a".into();
    let first = look(&mut board, &full(2, 3, start), NOW).unwrap();
    let (said, warning) = first.event.unwrap();
    assert!(!warning, "{said}");
    assert!(said.contains("position 3 of class fast"), "{said}");
    // Its end is not known, then it is.
    assert_eq!(look(&mut board, &full(2, 2, start), NOW + 1000), None);
    board.posted(&a, true, NOW + 1000);
    assert_eq!(look(&mut board, &full(2, 2, start), NOW + 2000), None);
    assert_eq!(board.next(), Some(NOW + 1000 + SOON));
    let second = look(&mut board, &full(2, 2, start), NOW + 1000 + SOON).unwrap();
    assert_eq!(second.event, None);
    board.posted(&a, true, NOW + 20_000);
    assert_eq!(look(&mut board, &full(3, 2, start), NOW + 40_000), None);
    assert!(look(&mut board, &full(3, 2, start), NOW + 20_000 + LATER).is_some());
    board.posted(&a, true, NOW + 80_000);
    // Another reason is news; the next one so soon after it is shown, but is no Event.
    let behind = notice(Reason::Behind { ahead: 1 }, 2, at(start));
    let third = look(&mut board, &behind, NOW + 81_000).unwrap();
    assert!(third.event.is_some());
    board.posted(&a, true, NOW + 82_000);
    let fourth = look(&mut board, &full(3, 2, start), NOW + 83_000).unwrap();
    assert_eq!(fourth.event, None);
    assert_eq!(board.first(&a, "uid-a"), Some(start));
    assert_eq!(board.first(&a, "another"), None);
}

#[test]
fn a_write_that_failed_is_tried_again() {
    let feed = feed([pod("a")]);
    let mut board = Board::default();
    let round = [waiting("a", &full(2, 3, NOW + MINUTE))];
    assert_eq!(board.look(&round, &feed, false, NOW).len(), 1);
    board.posted(&"team/a".into(), false, NOW);
    assert_eq!(board.look(&round, &feed, false, NOW + 1000), []);
    let again = board.look(&round, &feed, false, board.next().unwrap());
    assert!(again[0].event.is_some());
}

#[test]
fn writes_are_few_and_fewer_while_pods_are_released() {
    let all: Vec<String> = (0..300).map(|number| format!("p{number:03}")).collect();
    let feed = feed(all.iter().map(|name| pod(name)));
    let round: Vec<_> = all
        .iter()
        .zip(1..)
        .map(|(name, position)| waiting(name, &full(0, position, NOW)))
        .collect();
    let mut board = Board::default();
    let few = board.look(&round, &feed, true, NOW);
    assert_eq!(
        names(&few),
        [
            "team/p000",
            "team/p001",
            "team/p002",
            "team/p003",
            "team/p004"
        ]
    );
    assert_eq!(board.look(&round, &feed, false, NOW + 100), [], "too early");
    let next = board.next().unwrap();
    assert_eq!(board.look(&round, &feed, false, next).len(), 45);
    // None of them has ended.
    assert_eq!(board.look(&round, &feed, false, next + 1000), []);
    // In the end all are written, once.
    let (mut now, mut written) = (next + 1000, 0);
    let open: Vec<_> = all[..50]
        .iter()
        .map(|name| format!("team/{name}"))
        .collect();
    for pod in open {
        board.posted(&pod.as_str().into(), true, now);
        written += 1;
    }
    while let Some(at) = board.next().filter(|at| *at < now + 60_000) {
        now = at.max(now + 500);
        for task in board.look(&round, &feed, false, now) {
            board.posted(&task.pod, true, now);
            written += 1;
        }
    }
    assert_eq!(written, 300);
}

#[test]
fn a_later_leader_goes_on_with_what_is_shown() {
    let about = About {
        class: "fast",
        project: "team",
        reach: Scope::NvlinkDomain,
        grows: false,
        spares: false,
    };
    let shown = full(2, 3, NOW + 60 * MINUTE);
    let mut a = pod("a");
    let patch = Post::waits(&shown, about, NOW).patch(&a, false, NOW);
    apply(&mut a, &patch);
    let feed = feed([a]);
    let mut board = Board::default();
    assert_eq!(board.look(&[waiting("a", &shown)], &feed, false, NOW), []);
    let another = notice(Reason::Silent, 3, None);
    let tasks = board.look(&[waiting("a", &another)], &feed, false, NOW + 120_000);
    assert_eq!(names(&tasks), ["team/a"]);
    assert!(tasks[0].event.is_some());
    assert_eq!(board.first(&"team/a".into(), "uid-a"), shown.start());
}

#[test]
fn a_pod_that_waits_no_more_says_so() {
    let mut a = pod("a");
    let shown = full(2, 3, NOW + MINUTE);
    let patch = Post::waits(&shown, about(Scope::Node), NOW).patch(&a, false, NOW);
    apply(&mut a, &patch);
    a["spec"]["schedulingGates"] = json!([]);
    let mut feed = feed([a.clone()]);
    let mut board = Board::default();
    let tasks = board.look(&[], &feed, false, NOW);
    let condition = &tasks[0].patch["status"]["conditions"][0];
    assert_eq!(
        condition["message"],
        "somebody else removed the queue's gate"
    );
    board.posted(&tasks[0].pod, true, NOW);
    assert_eq!(
        board.look(&[], &feed, false, NOW + 600),
        [],
        "the watch does not show it yet"
    );
    apply(&mut a, &tasks[0].patch);
    feed.pod(a);
    assert_eq!(board.look(&[], &feed, false, NOW + 60_000), []);
    assert_eq!(board.next(), None);
}

#[test]
fn a_pod_of_a_scheduler_that_binds_nothing_says_so_until_it_does() {
    let mut waits = pod("a");
    waits["spec"]["schedulerName"] = json!("volcanno");
    let mut feed = feed([waits]);
    let mut board = Board::default();
    let shown = [waiting("a", &full(2, 1, NOW + 60 * MINUTE))];
    let task = board.look(&shown, &feed, false, NOW).remove(0);
    let (said, warning) = task.event.unwrap();
    let part = "; no pod was bound by its scheduler \"volcanno\" (schedulerName) so far: see whether it runs";
    assert!(warning && said.ends_with(part), "{said}");
    board.posted(&"team/a".into(), true, NOW);
    feed.pod(json!({
        "metadata": {"namespace": "team", "name": "b", "uid": "b"},
        "spec": {"nodeName": "n1", "schedulerName": "volcanno", "containers": []},
        "status": {"phase": "Running"},
    }));
    let task = board.look(&shown, &feed, false, NOW + MINUTE).remove(0);
    assert!(
        !task.patch.to_string().contains("volcanno"),
        "{}",
        task.patch
    );
}

#[test]
fn a_pod_whose_class_cannot_be_used_says_so_until_it_can_be() {
    let mut feed = feed([pod("a")]);
    let mut board = Board::default();
    let full = [waiting("a", &full(2, 3, NOW + MINUTE))];
    let mut a = pod("a");
    apply(&mut a, &board.look(&full, &feed, false, NOW)[0].patch);
    board.posted(&"team/a".into(), true, NOW);
    feed.pod(a.clone());
    let unknown = "its spec cannot be parsed: placement: unknown field";
    feed.class("fast", Some(Err(unknown.to_owned())));
    let tasks = board.look(&[], &feed, false, NOW + MINUTE);
    assert_eq!(names(&tasks), ["team/a"]);
    let why =
        format!("its class fast cannot be used, so it waits until that is corrected: {unknown}");
    assert_eq!(tasks[0].event.as_ref(), Some(&(why.clone(), true)));
    apply(&mut a, &tasks[0].patch);
    assert_eq!(a["status"]["conditions"][0]["reason"], "Unaccepted");
    assert_eq!(a["status"]["conditions"][0]["message"], why);
    let shown = Shown::of(&a);
    assert_eq!(shown.reason, Some(format!("Unaccepted: {why}")));
    assert_eq!((shown.position, shown.eta), (None, None));
    board.posted(&"team/a".into(), true, NOW + MINUTE);
    feed.pod(a.clone());
    assert_eq!(board.look(&[], &feed, false, NOW + 2 * MINUTE), [], "once");
    let mut later = Board::default();
    assert_eq!(
        later.look(&[], &feed, false, NOW),
        [],
        "a later leader knows it"
    );

    let spec = json!({"placement": {"whenUnavailable": "Queue"}});
    let class = Class::new("fast", &serde_json::from_value(spec).unwrap()).unwrap();
    feed.class("fast", Some(Ok(Arc::new(class))));
    let tasks = board.look(&full, &feed, false, NOW + 3 * MINUTE);
    apply(&mut a, &tasks[0].patch);
    assert_eq!(a["status"]["conditions"][0]["reason"], "Insufficient");
}
