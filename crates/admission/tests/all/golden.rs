//! One readable story for each feature: `tests/golden/*.txt`.

use nvlink_topology::labels;

use crate::fixture::{
    admission, check_golden, class, pod,
    story::{self, METADATA, Shown, WHOLE},
    subject, with,
};
use serde_json::{Value, json};

/// The parts of a pod that hold a gang together.
const GANG: Shown = &["/metadata/labels/nvlink-domains.io~1gang", "/spec/affinity"];

#[test]
fn classes() {
    let story = |title: &str, namespace: &str, pod| story::story(title, namespace, pod, METADATA);
    let text = [
        // Everything that the webhook writes, once.
        story::story("named by the pod", "ci", pod(4, class("restricted")), WHOLE),
        story("the namespace's default", "defaulted", pod(1, json!(null))),
        story("claimed by appliesTo", "ci", pod(2, json!({}))),
        story("too many GPUs for appliesTo", "ci", pod(9, json!({}))),
        story("claimed by pattern", "ci", pod(1, json!({}))),
        story(
            "annotations without a class",
            "ci",
            pod(9, json!({labels::GANG: "g"})),
        ),
        story(
            "misspelt annotations",
            "ci",
            pod(9, json!({"nvlink-domains.io/clas": "any"})),
        ),
        story(
            "misspelt beside a class",
            "ci",
            pod(
                1,
                json!({labels::CLASS: "any", "nvlink-domains.io/patern": "none"}),
            ),
        ),
        story("a class that does not exist", "ci", pod(1, class("nope"))),
        story("a class that is broken", "ci", pod(1, class("broken"))),
        story(
            "a default class that does not exist",
            "lost",
            pod(2, json!({})),
        ),
        story("no room for the decision", "ci", {
            let large = json!({labels::CLASS: "any", "notes": "x".repeat(262_000)});
            pod(2, large)
        })
        .lines()
        .filter(|line| !line.contains("xxx"))
        .map(|line| format!("{line}\n"))
        .collect(),
        story("named, but no GPU", "ci", pod(0, class("any"))),
        story(
            "a bad quantity",
            "ci",
            with(
                pod(1, class("any")),
                "/spec/containers/0/resources/limits",
                "nvidia.com/gpu",
                json!("many"),
            ),
        ),
        story("larger than every domain", "ci", pod(16, class("any"))),
    ];
    check_golden("classes.txt", &text.concat());
}

#[test]
fn affinity() {
    let story = |title: &str, namespace: &str, pod| {
        story::story(
            title,
            namespace,
            pod,
            &["/spec/affinity", "/spec/tolerations"],
        )
    };
    let required = |terms: Value| {
        let affinity = json!({"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
            "preferredDuringSchedulingIgnoredDuringExecution": []
        }});
        with(pod(2, class("restricted")), "/spec", "affinity", affinity)
    };
    let own = json!({"key": "disk", "operator": "Exists"});
    let tolerated = json!([{"key": labels::CLASS, "value": "any", "effect": "NoSchedule"}]);
    let text = [
        story(
            "each term is narrowed",
            "ci",
            required(json!([
                {"matchExpressions": [own]},
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
            ])),
        ),
        story(
            "a term that matches nothing stays so",
            "ci",
            required(json!([{}, {"matchExpressions": [own]}, null])),
        ),
        story("no terms stay none", "ci", required(json!([]))),
        story(
            "existing expressions are not repeated",
            "ci",
            required(json!([
                {"matchExpressions": [{"key": labels::DOMAIN_SIZE, "operator": "Gt", "values": ["1"]}, own]}
            ])),
        ),
        story(
            "a null affinity is replaced",
            "ci",
            with(pod(2, class("any")), "/spec", "affinity", json!(null)),
        ),
        story(
            "one GPU needs no domain, but stays in the class",
            "ci",
            pod(1, class("restricted")),
        ),
        story(
            "a wider scope needs no domain",
            "ci",
            pod(4, json!({labels::CLASS: "any", labels::SCOPE: "node"})),
        ),
        story(
            "preferences of the user stay",
            "ci",
            with(
                pod(2, class("any")),
                "/spec",
                "affinity",
                json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "preference": {"matchExpressions": [own]}}
                ]}}),
            ),
        ),
        story("broken GPUs are avoided", "ci", pod(7, class("avoiding"))),
        story("too few healthy GPUs", "ci", pod(8, class("avoiding"))),
        story(
            "also one GPU must be healthy",
            "ci",
            pod(1, class("avoiding")),
        ),
        story(
            "several GPUs do not fit one GPU",
            "ci",
            pod(2, json!({labels::CLASS: "any", labels::SCOPE: "gpu"})),
        ),
        story(
            "tolerated already",
            "ci",
            with(pod(1, class("any")), "/spec", "tolerations", tolerated),
        ),
    ];
    check_golden("affinity.txt", &text.concat());
}

#[test]
fn gangs() {
    let story = |title: &str, namespace: &str, pod| story::story(title, namespace, pod, GANG);
    let gang = |class: &str, scope: Option<&str>| {
        let mut annotations =
            json!({labels::CLASS: class, labels::GANG: "job-7", labels::GANG_SIZE: "2"});
        if let Some(scope) = scope {
            annotations[labels::GANG_SCOPE] = json!(scope);
        }
        pod(8, annotations)
    };
    let half = |class: &str| {
        let mut pod = gang(class, None);
        pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = json!("4");
        pod
    };
    let text = [
        story("InfiniBand", "ci", gang("restricted", None)),
        story("RoCE, one rack", "ci", gang("roce", None)),
        story("TCP, one zone", "ci", gang("tcp", None)),
        story("one node", "ci", gang("any", Some("node"))),
        story("one fabric", "ci", gang("any", Some("nvlink-domain"))),
        story("as close as possible", "ci", gang("any", Some("cluster"))),
        story("no scope", "ci", gang("any", None)),
        story("one pod would do", "ci", half("any")),
        story("pods that are one host", "ci", half("one-host")),
        story(
            "each pod has one GPU",
            "ci",
            pod(
                1,
                json!({
                    labels::CLASS: "inference", labels::GANG: "g"
                }),
            ),
        ),
        story(
            "names of published recipes",
            "ci",
            pod(
                2,
                json!({
                    labels::CLASS: "roce",
                    "scheduling.run.ai/topology-policy": "nvlink-locality",
                    "scheduling.run.ai/pod-group": "not a label value!"
                }),
            ),
        ),
        story(
            "a gang of one",
            "ci",
            pod(
                2,
                json!({
                    labels::CLASS: "restricted", labels::GANG: "g", labels::GANG_SIZE: "1"
                }),
            ),
        ),
    ];
    check_golden("gangs.txt", &text.concat());
}

#[test]
fn gangs_that_cannot_be_placed() {
    let story = |title: &str, namespace: &str, pod| story::story(title, namespace, pod, GANG);
    let gang = |scope: &str, size: &str| {
        json!({
            labels::CLASS: "any", labels::GANG: "g", labels::GANG_SIZE: size, labels::GANG_SCOPE: scope
        })
    };
    let near = |selector: Value| {
        let term = json!({"labelSelector": selector, "topologyKey": "zone"});
        let affinity = json!({"podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [term]
        }});
        let mut pod = pod(2, gang("nvlink-domain", "4"));
        pod["metadata"]["labels"] = json!({"app": "train"});
        with(pod, "/spec", "affinity", affinity)
    };
    let shape = |gpus, shape: &str, mut annotations: Value| {
        annotations[labels::CLASS] = json!("any");
        annotations[labels::PATTERN] = json!(shape);
        pod(gpus, annotations)
    };
    let text = [
        story(
            "fits the largest domain",
            "ci",
            pod(4, gang("nvlink-domain", "2")),
        ),
        story(
            "larger than every domain",
            "ci",
            pod(8, gang("nvlink-domain", "3")),
        ),
        story("a wider scope", "ci", pod(8, gang("rack", "3"))),
        story(
            "near others",
            "ci",
            near(json!({"matchLabels": {"app": "cache"}})),
        ),
        story(
            "near pods that may be its own",
            "ci",
            near(json!({"matchExpressions": [
                {"key": "app", "operator": "Exists"}
            ]})),
        ),
        story("near nothing", "ci", near(json!(null))),
        story(
            "near itself",
            "ci",
            near(json!({"matchLabels": {"app": "train"}})),
        ),
        story("a shape too large", "ci", shape(2, "tp=4,pp=2", json!({}))),
        story(
            "a shape too small for the gang",
            "ci",
            shape(
                2,
                "tp=4",
                json!({labels::GANG: "g", labels::GANG_SIZE: "4"}),
            ),
        ),
        story(
            "a shape as large as the gang",
            "ci",
            shape(
                2,
                "tp=4,pp=2",
                json!({labels::GANG: "g", labels::GANG_SIZE: "4"}),
            ),
        ),
        story(
            "a gang of unknown size",
            "ci",
            shape(2, "tp=4,pp=2", json!({labels::GANG: "g"})),
        ),
        story(
            "a long name",
            "ci",
            shape(2, "tp=2", json!({labels::GANG: "long ".repeat(99)})),
        ),
    ];
    check_golden("gangs-refused.txt", &text.concat());
}

#[test]
fn environment() {
    let story = |title: &str, namespace: &str, pod| {
        story::story(
            title,
            namespace,
            pod,
            &[
                "/metadata/annotations",
                "/spec/containers",
                "/spec/initContainers",
            ],
        )
    };
    let gang = || pod(2, json!({labels::CLASS: "restricted", labels::GANG: "g"}));
    let set = json!([
        {"name": "CUDA_VISIBLE_DEVICES", "value": "1,0"},
        {"name": "NCCL_SOCKET_IFNAME", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "UCX_TLS"}
    ]);
    let many = json!([
        {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 2}}},
        {"name": "log"},
        {"name": "mig", "resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}},
        {"name": "claim", "resources": {"claims": [{"name": "gpu"}]}},
        {"name": "watcher", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]}
    ]);
    let init = json!([{"name": "fetch"}, {"name": "side", "restartPolicy": "Always"}]);
    let mixed = with(
        with(pod(0, class("any")), "/spec", "containers", many),
        "/spec",
        "initContainers",
        init,
    );
    let text = [
        story(
            "variables that the user set stay",
            "ci",
            with(gang(), "/spec/containers/0", "env", set),
        ),
        story(
            "envFrom may set anything",
            "ci",
            with(
                gang(),
                "/spec/containers/0",
                "envFrom",
                json!([{"configMapRef": {"name": "c"}}]),
            ),
        ),
        story(
            "envFrom with a prefix may set some",
            "ci",
            with(
                gang(),
                "/spec/containers/0",
                "envFrom",
                json!([{"prefix": "NCCL_", "secretRef": {"name": "c"}}]),
            ),
        ),
        story("containers with and without GPUs", "ci", mixed.clone()),
        story(
            "opted out",
            "ci",
            with(
                mixed,
                "/metadata",
                "annotations",
                json!({labels::CLASS: "any", labels::ENVIRONMENT: "none"}),
            ),
        ),
    ];
    check_golden("environment.txt", &text.concat());
}

#[test]
fn identity() {
    let story = |title: &str, namespace: &str, pod| story::story(title, namespace, pod, METADATA);
    let labelled = |key: &str, value: &str| {
        with(
            pod(2, class("any")),
            "/metadata",
            "labels",
            json!({key: value}),
        )
    };
    let text = [
        story(
            "the right label may exist already",
            "ci",
            labelled(labels::CLASS, "any"),
        ),
        story("another class", "ci", labelled(labels::CLASS, "restricted")),
        story(
            "a gang's label, and no gang",
            "ci",
            labelled(labels::GANG, "job-7"),
        ),
        story("a class's label, and no class", "ci", {
            let own = json!({labels::CLASS: "restricted"});
            with(pod(9, json!({})), "/metadata", "labels", own)
        }),
        story("a project's label, and no class", "ci", {
            let own = json!({labels::PROJECT: "rich"});
            with(pod(9, json!({})), "/metadata", "labels", own)
        }),
        story("labels of a pod without GPUs", "ci", {
            let own = json!({labels::PROJECT: "rich"});
            with(pod(0, json!({})), "/metadata", "labels", own)
        }),
        story("another project", "ci", labelled(labels::PROJECT, "rich")),
        story(
            "not a pod",
            "ci",
            with(pod(2, class("any")), "/spec", "tolerations", json!("all")),
        ),
        story(
            "unknown fields pass through",
            "ci",
            with(
                pod(2, class("any")),
                "/spec",
                "quantum",
                json!({"a": [null, 1.5]}),
            ),
        ),
    ];
    check_golden("identity.txt", &text.concat());
}

#[test]
fn restricted_classes_are_refused_or_passed_over() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let admission = admission(&[]);
    let claiming = json!({"access": {"mode": "Restricted"}, "appliesTo": {"precedence": 100}});
    let claiming =
        nvlink_api::class::Class::new("greedy", &serde_json::from_value(claiming).unwrap());
    admission
        .view
        .write()
        .set_class("greedy", claiming.map_err(|error| error.to_string()));
    let admit =
        |namespace: &str, pod| runtime.block_on(admission.admit(pod, namespace, &subject()));

    let refusal = admit("ci", pod(2, class("restricted"))).unwrap_err();
    check_golden("denial.txt", &format!("{refusal}\n"));
    let refusal = admit("closed", pod(2, json!({}))).unwrap_err();
    assert!(
        refusal
            .message
            .contains("the default class of namespace closed"),
        "{refusal}"
    );
    let record = admit("ci", pod(2, json!({}))).unwrap().record.unwrap();
    assert_eq!(
        record.class, "claiming",
        "a claiming class that the pod may not use is passed over"
    );
}
