//! What a new pod of a job of several pods is told by the hardware of its class.

use nvlink_admission::{
    admit::Admission,
    decide::Settings,
    view::{Free, SharedView, View},
};
use nvlink_api::class::Class;
use nvlink_topology::labels;

use crate::fixture::{pod, subject};
use serde_json::{Value, json};

/// Machines of the class `own`.
#[derive(Clone, Copy)]
enum Machines {
    /// HGX nodes, each a domain of 8 GPUs.
    Hgx(u32),
    /// The same, all in use.
    Busy(u32),
    /// Two nodes of 4 GPUs in one fabric.
    Rack,
}

fn view(spec: Value, machines: Machines) -> View {
    let mut view = View::default();
    let spec = serde_json::from_value(spec).unwrap();
    let class = Class::new("own", &spec).map_err(|error| error.to_string());
    view.set_class("own", class);
    let (nodes, gpus) = match machines {
        Machines::Hgx(nodes) | Machines::Busy(nodes) => (nodes, "8"),
        Machines::Rack => (2, "4"),
    };
    for node in (0..nodes).map(|node| format!("n{node}")) {
        let domain = match machines {
            Machines::Rack => "rack",
            _ => node.as_str(),
        };
        let labels = [
            (labels::DOMAIN_SIZE, gpus),
            (labels::HEALTHY_DOMAIN_SIZE, gpus),
            (labels::BANDWIDTH, "450"),
            (labels::DOMAIN, domain),
        ];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        view.set_node(&node, labels.into());
        if let Machines::Busy(_) = machines {
            let none = Free { all: 0, healthy: 0 };
            view.set_free(&node, Some(none));
        }
    }
    view
}

/// Returns what the author of `pod` is told besides the decision and about channels, if `machines`
/// are those of its class.
fn told(spec: &Value, machines: Machines, pod: &Value) -> Vec<String> {
    let admission = Admission {
        view: SharedView::new(view(spec.clone(), machines)),
        authorizer: nvlink_admission::authorize::ListedAuthorizer::new(std::iter::empty()),
        settings: Settings::default(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let admitted = runtime.block_on(admission.admit(pod.clone(), "ci", &subject()));
    let mut warnings = admitted.unwrap().warnings;
    assert!(warnings.remove(0).starts_with("class \"own\""));
    warnings.retain(|line| !line.contains("IMEX channel") && !line.contains("waits in the queue"));
    warnings
}

/// Returns a pod of a gang of `pods`.
fn gang(pods: u32, gpus: u32, more: &Value) -> Value {
    let mut annotations = json!({
        labels::CLASS: "own", labels::GANG: "g", labels::GANG_SIZE: pods.to_string(),
    });
    for (key, value) in more.as_object().unwrap() {
        annotations[key] = value.clone();
    }
    pod(gpus, annotations)
}

/// Returns the worker of a PyTorchJob of `pods`, as Kubeflow's training operator 1.9 creates it.
fn replica(pods: u32, gpus: u32) -> Value {
    let mut pod = pod(gpus, json!({labels::CLASS: "own"}));
    pod["metadata"]["labels"] = json!({
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        "training.kubeflow.org/job-name": "ddp",
        "training.kubeflow.org/replica-type": "worker",
    });
    pod["spec"]["containers"][0]["env"] =
        json!([{"name": "PET_NNODES", "value": pods.to_string()}]);
    pod
}

const QUEUE: &str = r#"{"placement": {"whenUnavailable": "Queue"}}"#;

fn queue() -> Value {
    serde_json::from_str(QUEUE).unwrap()
}

#[test]
fn pods_are_separate_hosts_where_one_pod_would_do() {
    let halves = "2 pods of 4 GPUs do not reach each other over NVLink, also on one node; one pod of 8 GPUs does (docs/gangs.md)";
    let none = json!({});
    for spec in [json!({}), queue()] {
        for machines in [Machines::Hgx(2), Machines::Busy(2)] {
            for pod in [gang(2, 4, &none), replica(2, 4)] {
                let said = told(&spec, machines, &pod);
                let said: Vec<_> = said
                    .iter()
                    .filter(|line| !line.contains("in use"))
                    .collect();
                assert_eq!(said, [halves]);
            }
        }
    }
    let ones = told(&none, Machines::Hgx(1), &gang(8, 1, &none));
    let start = "8 pods of 1 GPU do not reach each other over NVLink";
    assert!(ones.len() == 1 && ones[0].starts_with(start), "{ones:?}");
}

#[test]
fn only_pods_that_one_pod_could_replace_are_told_that_they_are_separate_hosts() {
    let none = json!({});
    let silent = json!({labels::PATTERN: "none"});
    let shared = json!({"placement": {"sharedHost": true}});
    let two = Machines::Hgx(2);
    let nothing: [&str; 0] = [];
    assert_eq!(told(&none, two, &gang(2, 4, &silent)), nothing);
    assert_eq!(told(&shared, two, &gang(2, 4, &none)), nothing);
    assert_eq!(told(&none, two, &gang(2, 8, &none)), nothing);
    assert_eq!(told(&none, two, &replica(2, 8)), nothing);
    // A fabric joins them, unless NCCL may not use it.
    let pairs = gang(2, 2, &none);
    assert_eq!(told(&none, Machines::Rack, &pairs), nothing);
    for spec in [
        json!({"environment": {"fabric": "TCP", "mnnvl": "Disabled"}}),
        json!({"environment": {"extra": {"NCCL_MNNVL_ENABLE": "0"}}}),
    ] {
        let said = told(&spec, Machines::Rack, &pairs);
        let start = "2 pods of 2 GPUs do not reach each other over NVLink";
        assert!(said.len() == 1 && said[0].starts_with(start), "{said:?}");
    }
}

/// Also while all nodes are in use, and also of jobs whose size only their operator says.
#[test]
fn what_can_never_start_is_said_whoever_holds_the_gpus() {
    let within = |scope: &str| json!({labels::GANG_SCOPE: scope});
    for machines in [Machines::Hgx(2), Machines::Busy(2)] {
        for (spec, end) in [
            (
                json!({}),
                "its pods will stay Pending, no domain can hold them",
            ),
            (
                queue(),
                "its pods will stay Pending, the queue can never start them",
            ),
        ] {
            let many = format!(
                "the gang needs 3 pods of 8 GPU(s); all nodes of class \"own\" together hold 2 pods: {end}"
            );
            assert_eq!(
                told(&spec, machines, &gang(3, 8, &json!({}))),
                [many.as_str()]
            );
            assert_eq!(told(&spec, machines, &replica(3, 8)), [many.as_str()]);
            let node = format!(
                "the gang needs 16 GPUs in one node of class \"own\"; the largest has 8: {end}"
            );
            assert_eq!(told(&spec, machines, &gang(2, 8, &within("node"))), [node]);
        }
        let fabric = "the gang needs 8 GPUs in one NVLink fabric over several nodes of class \"own\"; there is none: its pods will stay Pending, the queue can never start them; one pod of 8 GPUs can start (docs/gangs.md)";
        let apart = gang(2, 4, &within("nvlink-domain"));
        assert_eq!(told(&queue(), machines, &apart), [fabric]);
    }
    let off = json!({
        "environment": {"fabric": "TCP", "mnnvl": "Disabled"},
        "placement": {"whenUnavailable": "Queue"},
    });
    let said = told(&off, Machines::Rack, &gang(2, 4, &within("nvlink-domain")));
    let start = "the gang needs 8 GPUs in one NVLink fabric of class \"own\"; there is none: ";
    assert!(said.len() == 1 && said[0].starts_with(start), "{said:?}");
}

#[test]
fn what_the_queue_starts_outside_its_scope_is_not_called_impossible() {
    let placement = |more: &str| {
        let placement = format!(r#"{{"placement": {{"whenUnavailable": "Queue", {more}}}}}"#);
        serde_json::from_str::<Value>(&placement).unwrap()
    };
    let spread = placement(r#""queueTimeout": "10m", "onQueueTimeout": "Spread""#);
    let node = gang(2, 8, &json!({labels::GANG_SCOPE: "node"}));
    let said = told(&spread, Machines::Hgx(2), &node);
    let end = "the largest has 8: its pods start farther apart when their time in the queue ends";
    assert!(said.len() == 1 && said[0].ends_with(end), "{said:?}");
    let large = pod(16, json!({labels::CLASS: "own"}));
    let nothing: [&str; 0] = [];
    assert_eq!(told(&spread, Machines::Hgx(2), &large), nothing);
    // What waiting costs leads no pod outside its scope.
    let weighs = placement(r#""waitingCostPercent": 100"#);
    let said = told(&weighs, Machines::Hgx(2), &large);
    let end = "the largest is 8: the pod will stay Pending, no node can hold it";
    assert!(said.len() == 1 && said[0].ends_with(end), "{said:?}");
}

/// Without the queue, the scheduler prefers the nearest level.
#[test]
fn pods_prefer_each_level_of_the_network_to_all_that_are_wider() {
    let settings = Settings {
        network_labels: ["example.com/leaf", "example.com/spine"]
            .map(str::to_owned)
            .into(),
        ..Settings::default()
    };
    let levels = |scope: &str| {
        let admission = Admission {
            view: SharedView::new(view(json!({}), Machines::Hgx(2))),
            authorizer: nvlink_admission::authorize::ListedAuthorizer::new(std::iter::empty()),
            settings: settings.clone(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let mut pod = gang(2, 8, &json!({labels::GANG_SCOPE: scope}));
        let admitted = runtime.block_on(admission.admit(pod.clone(), "ci", &subject()));
        json_patch::patch(&mut pod, &admitted.unwrap().patch).unwrap();
        let terms = &pod["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
        let of = |term: &Value| {
            let key = term["podAffinityTerm"]["topologyKey"].as_str().unwrap();
            format!("{key} {}", term["weight"])
        };
        terms.as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    let wide = [
        "nvlink-domains.io/domain 100",
        "topology.kubernetes.io/rack 50",
        "example.com/leaf 25",
        "example.com/spine 12",
        "topology.kubernetes.io/zone 6",
    ];
    assert_eq!(levels("cluster"), wide);
    assert_eq!(levels("zone"), wide[..4]);
    assert_eq!(levels("rack"), wide[..1]);
}
