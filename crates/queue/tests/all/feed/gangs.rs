//! Gangs: which pods are together, when they are complete, and when they have their turn.

use nvlink_planner::Why;
use nvlink_queue::notice::{About, Notice};

use super::*;

/// Returns a waiting pod of two GPUs in a gang that its author named.
fn named(name: &str, version: u64, size: u32) -> Value {
    let mut pod = pod(name, 2, version);
    pod["metadata"]["annotations"] =
        json!({labels::GANG: "g", labels::GANG_SIZE: size.to_string()});
    pod
}

#[test]
fn a_name_reaches_no_pods_of_other_projects_and_classes() {
    let mut queue = Queue::new();
    let spec = json!({"placement": {"whenUnavailable": "Queue"}});
    let other = Class::new("other", &serde_json::from_value(spec).unwrap()).unwrap();
    queue.feed.class("other", Some(Ok(Arc::new(other))));
    let labelled = |name: &str, version, key: &str, value: &str| {
        let mut pod = named(name, version, 2);
        pod["metadata"]["labels"][key] = json!(value);
        pod
    };
    queue.feed.pod(named("a", 1, 2));
    queue
        .feed
        .pod(labelled("b", 2, labels::PROJECT, "gitlab.7"));
    queue.feed.pod(labelled("c", 3, labels::CLASS, "other"));
    assert!(queue.released(NOW).is_empty(), "each lacks a member");
    queue
        .feed
        .pod(labelled("d", 4, labels::PROJECT, "gitlab.7"));
    assert_eq!(queue.released(NOW), ["team/b", "team/d"]);
}

#[test]
fn members_that_disagree_wait_and_say_so() {
    let mut queue = Queue::new();
    queue.feed.pod(named("a", 1, 2));
    queue.feed.pod(named("b", 2, 3));
    assert!(queue.released(NOW).is_empty());
    let waiting = queue.planner.round(NOW).waiting.remove(0);
    assert_eq!(waiting.reason, Reason::Incomplete);
    let notice = Notice::new(&waiting, queue.feed.obstacle(&waiting.job));
    let member = queue.feed.member(&id("team", "a")).unwrap();
    let message = notice.message(About::from(member), NOW);
    assert!(
        message.contains("its pods say different numbers of pods: [2, 3]"),
        "{message}"
    );
    queue.feed.pod(named("b", 3, 2));
    assert_eq!(queue.released(NOW), ["team/a", "team/b"]);
    assert_eq!(queue.feed.obstacle(&waiting.job), None);
}

#[test]
fn a_gang_has_its_turn_by_its_last_and_least_pod() {
    let at = |mut pod: Value, created: &str, priority: i32| {
        pod["metadata"]["creationTimestamp"] = json!(created);
        pod["spec"]["priority"] = json!(priority);
        pod
    };
    let (early, late) = ("2026-08-01T08:00:00Z", "2026-08-01T10:00:00Z");
    for (gang, single) in [
        ([(early, 0), (late, 0)], ("2026-08-01T09:00:00Z", 0)),
        ([(early, 1000), (early, 0)], (late, 10)),
    ] {
        let mut queue = Queue::new();
        for (name, version, (created, priority)) in [("a", 1, gang[0]), ("b", 2, gang[1])] {
            queue
                .feed
                .pod(at(named(name, version, 2), created, priority));
        }
        queue.feed.pod(at(pod("c", 4, 3), single.0, single.1));
        assert_eq!(queue.released(NOW), ["team/c"], "{gang:?}");
        queue.feed.gone(&id("team", "c"));
        assert_eq!(queue.released(NOW), ["team/a", "team/b"]);
    }
}

#[test]
fn a_member_that_others_hold_back_is_missing() {
    let mut queue = Queue::new();
    queue.feed.pod(named("a", 1, 2));
    let mut gated = named("b", 2, 2);
    gated["spec"]["schedulingGates"] = json!([{"name": "example.com/x"}]);
    queue.feed.pod(gated);
    assert!(queue.released(NOW).is_empty());
    queue.feed.pod(named("b", 3, 2));
    assert_eq!(queue.released(NOW), ["team/a", "team/b"]);
}

/// Returns a worker of a JobSet.
fn worker(name: &str, version: u64, index: u32) -> Value {
    let mut pod = pod(name, 2, version);
    pod["metadata"]["labels"] = json!({
        labels::CLASS: "line",
        "jobset.sigs.k8s.io/jobset-name": "llm",
        "jobset.sigs.k8s.io/replicatedjob-name": "workers",
        "jobset.sigs.k8s.io/job-index": "0",
        "batch.kubernetes.io/job-completion-index": index.to_string(),
    });
    pod
}

/// Returns a JobSet whose workers start after another job.
fn jobset(workers: u32) -> Value {
    let limits = json!({"nvidia.com/gpu": 2});
    let pod = json!({"spec": {"containers": [{"resources": {"limits": limits}}]}});
    json!({
        "kind": "JobSet", "status": {"restarts": 0},
        "spec": {"replicatedJobs": [
            {"name": "prepare", "template": {"spec": {"template": pod}}},
            {
                "name": "workers", "dependsOn": [{"name": "prepare", "status": "Complete"}],
                "template": {"spec": {"parallelism": workers, "template": pod}},
            },
        ]},
    })
}

#[test]
fn a_recreated_member_of_a_role_rejoins_under_a_new_leader() {
    let mut queue = Queue::new();
    for (name, index) in [("a", 0), ("b", 1)] {
        let mut running = worker(name, 1, index);
        let mut placement = placed(&[2 * index, 2 * index + 1], index);
        placement.gang = Some("JobSet llm/workers".to_owned());
        running["metadata"]["annotations"] =
            json!({labels::QUEUE_PLACEMENT: serde_json::to_string(&placement).unwrap()});
        running["spec"]["schedulingGates"] = json!([]);
        running["spec"]["nodeName"] = json!("n1");
        running["status"]["phase"] = json!("Running");
        queue.feed.pod(running);
    }
    assert!(queue.released(NOW).is_empty());
    assert!(queue.feed.wanted().is_empty());
    queue.feed.gone(&id("team", "b"));
    queue.feed.pod(worker("b", 2, 1));
    let wanted = queue.feed.wanted();
    assert_eq!(wanted.len(), 1, "{wanted:?}");
    let place = wanted.first().unwrap().clone();
    assert!(queue.released(NOW).is_empty(), "its role is not known yet");
    queue.feed.object(place, Some(jobset(2)));
    let releases = queue.releases(NOW);
    let [release] = &releases[..] else {
        panic!("{releases:?}")
    };
    assert_eq!(release.why, Why::Rejoin);
    assert_eq!(&*release.seats[0].pod, "team/b");
    assert_eq!((release.seats.len(), release.seats[0].rank), (1, 1));
}

#[test]
fn the_object_of_an_incomplete_gang_is_read_again() {
    let mut queue = Queue::new();
    queue.feed.pod(worker("a", 1, 0));
    let place = queue.feed.wanted().pop_first().unwrap();
    queue.feed.object(place.clone(), Some(jobset(3)));
    assert!(queue.released(NOW).is_empty());
    let (none, due) = queue.feed.outdated(NOW);
    let due = due.unwrap();
    assert!(none.is_empty() && due > NOW);
    let read = [place.clone()].into();
    assert_eq!(queue.feed.outdated(due).0, read);
    assert_eq!(queue.feed.outdated(due).0, [].into(), "once");

    // Another member comes, and shows nothing new the second time.
    queue.feed.pod(worker("b", 2, 1));
    assert!(queue.released(due).is_empty());
    let (none, soon) = queue.feed.outdated(due);
    let soon = soon.unwrap();
    assert!(none.is_empty() && soon < due + (due - NOW));
    assert_eq!(queue.feed.outdated(soon).0, read);
    queue.feed.pod(worker("b", 3, 1));
    assert!(queue.released(soon).is_empty());
    assert_eq!(queue.feed.outdated(soon).1, Some(soon + (due - NOW)));

    // What is known stays, and the same object is no news.
    queue.feed.object(place.clone(), None);
    let mut same = jobset(3);
    same["status"] = json!({"restarts": 1});
    queue.feed.object(place.clone(), Some(same));
    assert!(!queue.feed.has_changed() && !queue.feed.needs(&place));

    queue.feed.object(place.clone(), Some(jobset(2)));
    assert_eq!(queue.released(soon), ["team/a", "team/b"]);
    assert_eq!(queue.feed.outdated(soon + due), ([].into(), None));
}

#[test]
fn few_objects_are_read_again_at_a_time() {
    let mut queue = Queue::new();
    for number in 0..100 {
        let mut pod = worker(&format!("p{number}"), 1, 0);
        let set = format!("llm-{number}");
        pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] = json!(set);
        queue.feed.pod(pod);
    }
    for place in queue.feed.wanted() {
        queue.feed.object(place, Some(jobset(2)));
    }
    queue.released(NOW);
    let (mut read, mut now) = (std::collections::BTreeSet::new(), NOW);
    while read.len() < 100 {
        let (some, next) = queue.feed.outdated(now);
        assert!(some.len() <= 16, "{}", some.len());
        read.extend(some);
        now = next.filter(|next| *next > now).unwrap();
    }
    assert!(now - NOW <= 60_000, "each once a minute: {}", now - NOW);
}
