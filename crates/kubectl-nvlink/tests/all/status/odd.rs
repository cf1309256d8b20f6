//! Names and objects that nobody would choose.

use kubectl_nvlink::status::{Kind, Objects, Query, State, explain};
use nvlink_topology::labels;
use serde_json::{Value, json};

use super::{
    check,
    cluster::{NOW, busy, class, node, pod, running, switched, waiting, with},
    explained, now, report,
};

#[test]
fn long_names_are_cut_in_the_middle() {
    let long = |what: &str| format!("{what}-{}-end", "x".repeat(60 - what.len()));
    let name = "runner-t3-project-1234-concurrent-0-".repeat(6) + "tail";
    let held_by = "runner-t3-project-1234-concurrent-1-".repeat(6) + "tail";
    let held = json!({"namespace": "team", "pod": held_by, "container": "c", "gpus": [0, 1]});
    let class_name = long("class")[..63].to_owned();
    let mut job = waiting(pod("team", &name, &class_name, 8, "2026-08-01T09:00:00Z"));
    job["metadata"]["labels"][labels::PROJECT] = json!(long("project"));
    let runs = |name: &str| running(pod("team", name, &class_name, 2, NOW), &long("node"), NOW);
    let objects = Objects {
        classes: Kind::of([class(&class_name, "p", json!({}))]),
        nodes: Kind::of([node(&long("node"), "p")]),
        topologies: Kind::of([switched(&long("node"), &[held])]),
        pods: Kind::of([job, runs("other"), runs(&held_by)]),
        ..Objects::default()
    };
    let all = report(&objects, &Query::default());
    check("long.txt", &all.text(Some(80)));
    let wide = all.text(None);
    assert!(
        wide.contains(&name) && wide.contains(&long("node")),
        "{wide}"
    );
    for width in [1, 20, 40, 60, 120] {
        let widest = all.text(Some(width));
        let widest = widest.lines().map(|line| line.chars().count()).max();
        // Titles and numbers are never cut.
        assert!(widest.unwrap() <= width.max(80), "{width}: {widest:?}");
    }
    // Words are never broken, so that a name can be copied.
    let text = explained(&objects, "team", &name).text(Some(80));
    assert!(text.contains(&name), "{text}");
}

const EVIL: &str = "\x1b[2J\x1b]0;owned\x07\r\n\u{202e}evil";

/// Returns a cluster whose objects have hostile text wherever text may be.
fn hostile() -> Objects {
    let evil = EVIL;
    let mut objects = busy();
    let mut job = waiting(pod(evil, evil, evil, 8, NOW));
    job["metadata"]["labels"][labels::PROJECT] = json!(evil);
    let gates = [labels::QUEUE_GATE, evil].map(|name| json!({"name": name}));
    job["spec"]["schedulingGates"] = json!(gates);
    let job = with(job, "queue-reason", evil);
    let mut gone = pod(evil, "failed", "high", 8, NOW);
    gone["status"] = json!({"phase": "Failed", "reason": evil, "message": evil});
    let placed = json!({"node": evil, "why": evil, "gpus": [0, evil]}).to_string();
    let placed = with(
        pod(evil, "placed", "high", 8, NOW),
        "queue-placement",
        &placed,
    );
    let pods = Kind::of([job, gone, placed]);
    objects.pods.objects.extend(pods.objects);
    objects
        .classes
        .objects
        .extend(Kind::of([class(evil, evil, json!({}))]).objects);
    let mut topology = switched(
        "evil",
        &[json!({"namespace": evil, "pod": evil, "container": "c", "gpus": [0]})],
    );
    topology["spec"]["domains"][0]["id"] = json!(evil);
    objects
        .topologies
        .objects
        .extend(Kind::of([topology, json!({"metadata": {"name": evil}, "spec": evil})]).objects);
    objects
        .nodes
        .objects
        .extend(Kind::of([node("evil", evil)]).objects);
    objects
}

/// No text of the cluster reaches the terminal with control characters.
#[test]
fn hostile_text_cannot_move_the_cursor() {
    let (evil, mut objects) = (EVIL, hostile());
    for hidden in [None, Some(evil)] {
        if let Some(why) = hidden {
            objects.nodes = Kind::hidden(why);
        }
        let mut texts = vec![
            report(&objects, &Query::default()).text(Some(80)),
            report(
                &objects,
                &Query {
                    namespace: Some(evil.to_owned()),
                    ..Query::default()
                },
            )
            .text(None),
        ];
        for name in [evil, "failed", "placed"] {
            texts.push(explained(&objects, evil, name).text(Some(80)));
        }
        for text in texts {
            let odd = |c: &char| (c.is_control() && *c != '\n') || *c == '\u{202e}';
            assert_eq!(text.chars().find(odd), None, "{text}");
        }
        let json = serde_json::to_string_pretty(&report(&objects, &Query::default())).unwrap();
        assert!(!json.contains('\x1b'), "{json}");
    }
}

/// Objects of any shape give a report.
#[test]
fn objects_of_any_shape_do_not_end_the_program() {
    let shapes = [
        json!(null),
        json!(7),
        json!([]),
        json!({}),
        json!("x"),
        json!({"gpus": -1}),
    ];
    for shape in shapes {
        let mut objects = busy();
        let kinds = [
            &mut objects.classes,
            &mut objects.topologies,
            &mut objects.nodes,
            &mut objects.pods,
        ];
        for kind in kinds {
            for object in kind.objects.values_mut() {
                for field in ["spec", "status"] {
                    object[field] = shape.clone();
                }
            }
            let odd = Value::Array(vec![shape.clone()]);
            kind.objects.insert((String::new(), "odd".to_owned()), odd);
        }
        let text = report(&objects, &Query::default()).text(Some(80));
        assert!(!text.is_empty(), "{shape}");
        let mut state = State::new(&objects, now());
        explain(&mut state, "ml", "train").unwrap();
    }
}
