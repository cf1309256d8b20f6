//! What the queue reads from the pods of each operator: `tests/gangs.yaml`.

use nvlink_api::class::Class;
use nvlink_queue::{Member, assemble, member::held};
use nvlink_topology::labels;
use serde::Deserialize;
use serde_json::{Value, json};

/// A pod, the object that its operator creates it from, and what the queue reads.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(default)]
    labels: Value,
    #[serde(default)]
    annotations: Value,
    /// apiVersion, kind and name of the controller.
    owner: Option<[String; 3]>,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    command: Vec<String>,
    object: Option<Value>,
    /// The object that must be read, as `Job train`; absent: none.
    needs: Option<String>,
    /// `alone`, or the gang's name, size, role and rank: `JobSet llm, 4, workers, 2`.
    gang: String,
    #[serde(default)]
    doubts: Vec<String>,
}

fn class() -> Class {
    let spec = json!({"placement": {"whenUnavailable": "Queue"}});
    Class::new("fast", &serde_json::from_value(spec).unwrap()).unwrap()
}

fn pod(case: &Case) -> Value {
    let mut pod = json!({
        "metadata": {
            "namespace": "team", "name": "pod", "uid": "u",
            "labels": case.labels, "annotations": case.annotations
        },
        "spec": case.spec,
    });
    if let Some([api, kind, name]) = &case.owner {
        pod["metadata"]["ownerReferences"] =
            json!([{"apiVersion": api, "kind": kind, "name": name, "controller": true}]);
    }
    for (key, value) in [(labels::CLASS, "fast"), (labels::PROJECT, "gitlab.42")] {
        pod["metadata"]["labels"][key] = json!(value);
    }
    pod["spec"]["containers"] = json!([{
        "name": "main", "command": case.command,
        "resources": {"limits": {"nvidia.com/gpu": "8"}}
    }]);
    pod
}

fn shown(member: &Member) -> String {
    let or = |number: Option<u32>| number.map_or("?".to_owned(), |number| number.to_string());
    match &member.gang {
        None => "alone".to_owned(),
        Some(gang) => format!(
            "{}, {}, {}, {}",
            gang.name,
            or(gang.size),
            if gang.role.is_empty() {
                "-"
            } else {
                &gang.role
            },
            or(gang.rank)
        ),
    }
}

#[test]
fn each_operator_says_which_pods_start_together() {
    let cases: Vec<Case> = serde_saphyr::from_str(include_str!("../gangs.yaml")).unwrap();
    assert!(cases.len() >= 30, "{}", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        let pod = pod(case);
        let needs = nvlink_queue::object(&pod).map(|object| object.to_string());
        if needs != case.needs {
            wrong.push(format!("{}: needs {needs:?}", case.name));
        }
        let member = nvlink_queue::read(&pod, &class(), case.object.as_ref()).unwrap();
        let gang = shown(&member);
        let doubts = member.gang.map(|gang| gang.doubts).unwrap_or_default();
        let doubts: Vec<_> = doubts.iter().map(ToString::to_string).collect();
        let as_told = doubts.len() == case.doubts.len()
            && doubts
                .iter()
                .zip(&case.doubts)
                .all(|(is, part)| is.contains(part));
        if gang != case.gang || !as_told {
            wrong.push(format!("{}: {gang} {doubts:?}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The kinds that the queue reads are those for which it asks for the right.
#[test]
fn each_object_is_one_that_the_queue_may_read() {
    let cases: Vec<Case> = serde_saphyr::from_str(include_str!("../gangs.yaml")).unwrap();
    let mut kinds: Vec<_> = cases
        .iter()
        .filter_map(|case| nvlink_queue::object(&pod(case)))
        .collect();
    for object in &kinds {
        let plural = format!("{}s", object.kind.to_lowercase());
        let known = nvlink_queue::OBJECTS.contains(&(object.group, plural.as_str()));
        assert!(known, "{} {plural}", object.group);
    }
    kinds.sort_by_key(|object| object.kind);
    kinds.dedup_by_key(|object| object.kind);
    // The other kinds of Kubeflow differ in nothing but their names.
    assert!(kinds.len() >= 8, "{kinds:?}");
}

fn member(name: &str, change: impl FnOnce(&mut Value)) -> Member {
    let mut pod = json!({
        "metadata": {
            "namespace": "team", "name": name, "uid": name,
            "labels": {labels::CLASS: "fast", labels::PROJECT: "team"},
            "annotations": {labels::GANG: "g", labels::GANG_SIZE: "3"}
        },
        "spec": {
            "schedulingGates": [{"name": labels::QUEUE_GATE}],
            "containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]
        },
    });
    change(&mut pod);
    nvlink_queue::read(&pod, &class(), None).unwrap()
}

fn ranked(name: &str, rank: &str) -> Member {
    member(name, |pod| {
        pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] = json!(rank);
    })
}

#[track_caller]
fn check(members: &[Member], order: &[&str], missing: Option<u32>, doubts: &[&str]) {
    let all: Vec<_> = members.iter().collect();
    let assembly = assemble(&all);
    let names = assembly.order.iter().map(|&at| members[at].name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), order);
    assert_eq!(assembly.missing, missing);
    let told: Vec<_> = assembly.doubts.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), doubts.len(), "{told:?}");
    for (told, part) in told.iter().zip(doubts) {
        assert!(told.contains(part), "{told}");
    }
}

#[test]
fn the_members_of_a_gang_are_put_in_order() {
    let all = ["c", "a", "b"].map(|name| ranked(name, &(3 - name.len()).to_string()));
    let [c, a, b] = all;
    check(
        &[c, a, b],
        &["a", "b", "c"],
        Some(0),
        &["pods a and b and c have the same rank 2"],
    );
    check(
        &[ranked("x", "2"), ranked("y", "0"), ranked("z", "1")],
        &["y", "z", "x"],
        Some(0),
        &[],
    );
    check(&[ranked("x", "1")], &["x"], Some(2), &[]);
    check(
        &[ranked("x", "1"), ranked("y", "3")],
        &["x", "y"],
        Some(1),
        &["rank 3 is not below 3"],
    );
    check(
        &[ranked("x", "1"), member("y", |_| ())],
        &["x", "y"],
        Some(1),
        &["pod y has no rank"],
    );
    let unranked = ["b", "a", "d", "c"].map(|name| member(name, |_| ()));
    check(
        &unranked,
        &["a", "b", "c", "d"],
        Some(0),
        &["has 4 pods, but its size is 3", "no pod has a rank"],
    );
}

#[test]
fn members_that_are_gone_or_disagree_are_told() {
    let failed = member("old", |pod| pod["status"]["phase"] = json!("Failed"));
    let deleted = member("older", |pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-08-01T10:00:00Z");
    });
    check(
        &[failed, ranked("new", "0"), deleted],
        &["new"],
        Some(2),
        &[],
    );
    let other = member("b", |pod| {
        pod["metadata"]["annotations"][labels::GANG_SIZE] = json!("2");
        pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] = json!("1");
    });
    check(
        &[ranked("a", "0"), other],
        &["a", "b"],
        None,
        &["different numbers of pods: [2, 3]"],
    );
    let held = member("held", |pod| {
        pod["spec"]["schedulingGates"] = json!([{"name": "example.com/x"}]);
    });
    check(&[ranked("a", "0"), held], &["a"], Some(2), &[]);
    let role = |name: &str, role: &str, rank: &str| {
        member(name, |pod| {
            pod["metadata"]["annotations"]["scheduling.run.ai/topology-role"] = json!(role);
            pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] = json!(rank);
        })
    };
    check(
        &[
            role("p-1", "prefill", "1"),
            role("p-0", "prefill", "0"),
            role("d-0", "decode", "0"),
        ],
        &["d-0", "p-0", "p-1"],
        Some(0),
        &[],
    );
}

#[test]
fn a_released_pod_stays_in_the_gang_that_started() {
    let gang = |gate: bool, gang: Option<&str>| {
        let read = member("a", |pod| {
            pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] = json!("llm");
            let placement = json!({"plan": "1-1", "at": "2026-08-01T10:00:00Z", "gang": gang});
            pod["metadata"]["annotations"] =
                json!({labels::QUEUE_PLACEMENT: placement.to_string()});
            if !gate {
                pod["spec"]["schedulingGates"] = json!([]);
            }
        });
        read.gang.map(|gang| gang.name)
    };
    let part = || Some("JobSet llm/workers".to_owned());
    assert_eq!(gang(false, Some("JobSet llm/workers")), part());
    assert_eq!(gang(false, Some("")), None, "it started alone");
    assert_eq!(gang(false, None), Some("JobSet llm".to_owned()));
    assert_eq!(gang(true, Some("JobSet llm/workers")), part());
    let object = json!({"kind": "JobSet", "spec": {"replicatedJobs": []}});
    let prepared = member("a", |pod| {
        let placement = json!({"plan": "1-1", "at": "2026-08-01T10:00:00Z", "gang": "gang old"});
        pod["metadata"]["annotations"][labels::QUEUE_PLACEMENT] = json!(placement.to_string());
    });
    assert_eq!(prepared.gang.unwrap().name, "gang old");
    let mut pod = json!({
        "metadata": {
            "namespace": "team", "name": "a", "labels": {labels::CLASS: "fast"},
            "annotations": {labels::GANG: "new", labels::QUEUE_PLACEMENT:
                r#"{"plan": "1-1", "at": "2026-08-01T10:00:00Z", "gang": "gang old"}"#}
        },
        "spec": {
            "schedulingGates": [{"name": labels::QUEUE_GATE}],
            "containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]
        },
    });
    let read = |pod: &Value| {
        nvlink_queue::read(pod, &class(), Some(&object))
            .unwrap()
            .gang
            .unwrap()
            .name
    };
    assert_eq!(read(&pod), "gang new");
    pod["spec"]["schedulingGates"] = json!([]);
    assert_eq!(read(&pod), "gang old");
}

#[test]
fn a_project_holds_the_gpus_of_its_pods_on_nodes() {
    let on = |name: &str, project: &str, phase: &str| {
        member(name, |pod| {
            pod["metadata"]["labels"][labels::PROJECT] = json!(project);
            pod["spec"]["schedulingGates"] = json!([]);
            pod["spec"]["nodeName"] = json!("n1");
            pod["status"]["phase"] = json!(phase);
        })
    };
    let members = [
        on("a", "p", "Running"),
        on("b", "p", "Pending"),
        on("c", "p", "Succeeded"),
        on("d", "q", "Running"),
        member("e", |_| ()),
    ];
    let held = held(&members);
    assert_eq!(
        held.into_iter().collect::<Vec<_>>(),
        [(("fast", "p"), 4), (("fast", "q"), 2)]
    );
}

#[test]
fn a_pod_says_what_the_queue_needs() {
    let decision = r#"{"class":"fast","gpus":2,"scope":"rack","pattern":"all-to-all"}"#;
    let read = member("a", |pod| {
        pod["spec"]["priority"] = json!(1000);
        pod["metadata"]["creationTimestamp"] = json!("2026-08-01T10:00:00Z");
        pod["metadata"]["annotations"][labels::DECISION] = json!(decision);
        pod["metadata"]["annotations"]["job.runner.gitlab.com/id"] = json!("1");
        pod["metadata"]["annotations"]["job.runner.gitlab.com/name"] = json!("train");
    });
    assert_eq!(
        [
            read.scope.to_string(),
            read.gang_scope.to_string(),
            read.pattern.to_string()
        ],
        ["node", "rack", "all-to-all"],
        "earlier versions wrote one scope"
    );
    let decision = r#"{"scope":"nvlink-domain","gangScope":"zone"}"#;
    let now = member("a", |pod| {
        pod["metadata"]["annotations"][labels::DECISION] = json!(decision);
    });
    let scopes = [now.scope.to_string(), now.gang_scope.to_string()];
    assert_eq!(scopes, ["nvlink-domain", "zone"]);
    assert_eq!((read.gpus, read.priority), (2, 1000));
    assert_eq!(read.timeout.map(|timeout| timeout.as_secs()), Some(150));
    let key = read.key();
    assert_eq!(
        (key.project.as_str(), key.job.as_str(), key.class.as_str()),
        ("team", "train", "fast")
    );
    let pod = json!({"metadata": {"labels": {labels::CLASS: "fast"}}, "spec": {"containers": []}});
    let unreadable = nvlink_queue::read(&pod, &class(), None).unwrap_err();
    assert!(
        unreadable
            .to_string()
            .contains("requests no nvidia.com/gpu")
    );
}

/// GitLab Runner deletes the pod at the end of a job; it never reaches an end of its own.
#[test]
fn runs_that_say_how_long_the_next_one_takes() {
    let run = |phase: &str, deleted: bool| {
        let read = member("a", |pod| {
            pod["spec"] = json!({
                "nodeName": "n1", "containers": pod["spec"]["containers"].take()
            });
            pod["status"] = json!({
                "phase": phase, "startTime": "2026-08-01T10:00:00Z", "containerStatuses": [
                    {"state": {"terminated": {"finishedAt": "2026-08-01T10:02:00Z"}}}
                ]
            });
            if deleted {
                pod["metadata"]["deletionTimestamp"] = json!("2026-08-01T10:03:30Z");
                pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
            }
        });
        read.ran().map(|ran| ran.as_secs())
    };
    assert_eq!(run("Succeeded", false), Some(120));
    assert_eq!(run("Succeeded", true), Some(120));
    assert_eq!(run("Failed", false), None);
    assert_eq!(run("Running", false), None);
    assert_eq!(run("Running", true), Some(180));
    assert_eq!(run("Pending", true), None);
}
