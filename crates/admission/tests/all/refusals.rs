//! Refusals and their texts: ways around a class, the host's devices, CI identity.
//! `tests/golden/ways-around.txt`, `privileges.txt`, `ci.txt`.

use nvlink_admission::authorize::{Subject, User};
use nvlink_topology::labels;

use crate::fixture::{
    check_golden, class, pod,
    story::{self, story, story_by, story_of},
    subject, with,
};
use serde_json::json;

#[test]
fn ways_around_a_restricted_class() {
    let closed = json!({
        "access": {"mode": "Restricted"},
        "nodeSelector": {"matchLabels": {"pool": "gold"}}
    });
    let tell = |title: &str, pod| story_of(title, &closed, pod, story::METADATA);
    let plain = || pod(1, json!({}));
    let spec = |key: &str, value| with(plain(), "/spec", key, value);
    let main = |key: &str, value| with(plain(), "/spec/containers/0", key, value);
    let visible = |value: &str| json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]);
    let required = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [
            {"key": "pool", "operator": "In", "values": ["gold"]}
        ]}]
    }}});
    let text = [
        tell("naming it", pod(1, class("own"))),
        tell(
            "tolerating its taint, and every other",
            spec("tolerations", json!([{"operator": "Exists"}])),
        ),
        tell("a node by name", spec("nodeName", json!("gold-1"))),
        tell(
            "its nodes by selector",
            spec("nodeSelector", json!({"pool": "gold"})),
        ),
        tell("its nodes by affinity", spec("affinity", required)),
        tell("a container selects GPUs", main("env", visible("all"))),
        tell("a ConfigMap selects GPUs", {
            let source = json!([{"prefix": "NVIDIA_", "configMapRef": {"name": "c"}}]);
            main("envFrom", source)
        }),
        tell("a container hides GPUs", main("env", visible("void"))),
        tell("NVIDIA's runtime, and no GPU", {
            with(
                pod(0, json!({})),
                "/spec",
                "runtimeClassName",
                json!("nvidia"),
            )
        }),
        tell(
            "a forged decision annotation",
            pod(1, json!({labels::DECISION: "{}"})),
        ),
    ];
    check_golden("ways-around.txt", &text.concat());
    let open = |title: &str, pod| story(title, "ci", pod, story::METADATA);
    let named = |key: &str, value| with(pod(1, class("restricted")), "/spec", key, value);
    let text = [
        open("a privileged container", {
            let context = json!({"privileged": true});
            let named = pod(1, class("restricted"));
            with(named, "/spec/containers/0", "securityContext", context)
        }),
        open(
            "the host's devices",
            named(
                "volumes",
                json!([{"name": "d", "hostPath": {"path": "/dev"}}]),
            ),
        ),
        open(
            "other host paths",
            named(
                "volumes",
                json!([{"name": "d", "hostPath": {"path": "/data"}}]),
            ),
        ),
    ];
    check_golden("privileges.txt", &text.concat());
}

#[test]
fn ci_projects() {
    let account = |name: &str| json!({"namespace": "ci", "serviceAccount": name});
    let gitlab = json!({"access": {"mode": "Restricted", "ciProjects": [{
        "provider": "gitlab", "projectIds": [42], "rootNamespaceIds": [7],
        "runners": [account("runner")]
    }]}});
    let tekton = json!({"access": {"mode": "Restricted", "ciProjects": [{
        "provider": "tekton", "identities": [account("builder")], "runners": [account("tekton")]
    }]}});
    let by = |name: &str, runs_as: &str| Subject {
        user: User {
            username: format!("system:serviceaccount:ci:{name}"),
            ..User::default()
        },
        service_account: runs_as.to_owned(),
    };
    let job = |id: &str, group: &str| {
        let mut job = pod(1, class("own"));
        job["metadata"]["labels"] = json!({
            "project.runner.gitlab.com/id": id,
            "project.runner.gitlab.com/root-namespace-id": group
        });
        job
    };
    let runner = by("runner", "default");
    let tell = |who, title, spec, pod| story_by(who, title, spec, pod, story::LABELS);
    let named = || pod(1, class("own"));
    let text = [
        tell(&runner, "a listed project", &gitlab, job("42", "1")),
        tell(
            &runner,
            "a project of a listed group",
            &gitlab,
            job("99", "7"),
        ),
        tell(
            &runner,
            "a project that is not listed",
            &gitlab,
            job("43", "1"),
        ),
        tell(
            &subject(),
            "the labels of a listed project, from another user",
            &gitlab,
            job("42", "7"),
        ),
        tell(
            &by("tekton", "builder"),
            "a listed account",
            &tekton,
            named(),
        ),
        tell(
            &by("tekton", "default"),
            "another account",
            &tekton,
            named(),
        ),
    ];
    check_golden("ci.txt", &text.concat());
}
