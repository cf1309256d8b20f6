//! Classes with `environment.mnnvl: Managed`: the claims by which the pods of gangs get IMEX channels.

use nvlink_admission::decide::{Admitted, Refusal};
use nvlink_api::class::Class;
use nvlink_topology::labels;
use serde_json::{Value, json};

use crate::fixture::{admission, pod, subject, with};

const VARIABLE: &str = "NCCL_MNNVL_ENABLE";

fn admit(spec: &Value, pod: &Value) -> Result<Admitted, Refusal> {
    let admission = admission(&[]);
    let spec = serde_json::from_value(spec.clone()).unwrap();
    let class = Class::new("own", &spec).map_err(|error| error.to_string());
    admission.view.write().set_class("own", class);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(admission.admit(pod.clone(), "ci", &subject()))
}

fn managed(devices: &str) -> Value {
    json!({
        "placement": {"whenUnavailable": "Queue"},
        "environment": {"fabric": "MNNVL", "mnnvl": "Managed"},
        "devices": {"mapping": devices},
    })
}

fn member() -> Value {
    pod(
        4,
        json!({labels::CLASS: "own", labels::GANG: "g", labels::GANG_SIZE: "2"}),
    )
}

/// Returns the claims of the pod by their entries, those of its first container, and the entry of the
/// variable.
fn channel(pod: &Value) -> (Vec<(String, String)>, Vec<Value>, Option<Value>) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let list = |path: &str| {
        let found = pod.pointer(path).and_then(Value::as_array);
        found.cloned().unwrap_or_default()
    };
    let claims = list("/spec/resourceClaims");
    let claims = claims.iter();
    let claims = claims.map(|one| (text(&one["name"]), text(&one["resourceClaimName"])));
    let mut env = list("/spec/containers/0/env").into_iter();
    (
        claims.collect(),
        list("/spec/containers/0/resources/claims"),
        env.find(|one| one["name"] == VARIABLE),
    )
}

#[test]
fn each_pod_of_a_gang_gets_a_claim_for_its_channel() {
    for (mapping, number) in [("DevicePlugin", 1), ("Claim", 2)] {
        let spec = managed(mapping);
        let admitted = admit(&spec, &member()).unwrap();
        let (claims, used, variable) = channel(&admitted.pod);
        assert_eq!(claims.len(), number, "{claims:?}");
        let (entry, name) = claims.last().unwrap();
        assert_eq!(entry, labels::CHANNEL);
        assert!(name.starts_with(labels::CLAIM_PREFIX) && name.ends_with("-channel"));
        assert_eq!(used.last(), Some(&json!({"name": labels::CHANNEL})));
        let path = &variable.unwrap()["valueFrom"]["fieldRef"]["fieldPath"];
        let annotation = format!("metadata.annotations['{}']", labels::QUEUE_MNNVL);
        assert_eq!(path, &json!(annotation));
        assert!(!admitted.warnings.iter().any(|line| line.contains("IMEX")));
        // The API server may call again.
        let again = admit(&spec, &admitted.pod).unwrap();
        assert_eq!(again.pod, admitted.pod);
        assert_eq!(again.patch.0, []);
    }
}

#[test]
fn only_gangs_that_the_queue_starts_get_channels_from_it() {
    let spec = managed("DevicePlugin");
    let none = |spec: &Value, pod: &Value| {
        let (claims, used, variable) = channel(&admit(spec, pod).unwrap().pod);
        let ours = |name: &str| name == labels::CHANNEL;
        assert!(!claims.iter().any(|(name, _)| ours(name)), "{claims:?}");
        assert!(!used.iter().any(|one| one["name"] == labels::CHANNEL));
        variable
    };
    let alone = pod(4, json!({labels::CLASS: "own"}));
    assert_eq!(none(&spec, &alone), None);
    let mut auto = spec.clone();
    auto["environment"]["mnnvl"] = json!("Auto");
    assert_eq!(none(&auto, &member()), None);
    // The pod handles its channels itself.
    let variable = json!({"name": VARIABLE, "value": "0"});
    let settled = with(member(), "/spec/containers/0", "env", json!([variable]));
    assert_eq!(none(&spec, &settled), Some(variable));
    let own = json!([{"name": "channel", "resourceClaimName": "mine"}]);
    assert_eq!(
        none(&spec, &with(member(), "/spec", "resourceClaims", own)),
        None
    );
}

/// Each pod is a host, and the node has one channel: NCCL must not look for others.
#[test]
fn a_gang_on_one_node_uses_no_fabric() {
    let spec = managed("DevicePlugin");
    let mut pod = member();
    pod["metadata"]["annotations"][labels::GANG_SCOPE] = json!("node");
    let admitted = admit(&spec, &pod).unwrap();
    let (claims, _, variable) = channel(&admitted.pod);
    assert!(claims.is_empty(), "{claims:?}");
    assert_eq!(variable, Some(json!({"name": VARIABLE, "value": "0"})));
    assert!(!admitted.warnings.iter().any(|line| line.contains("IMEX")));
    let again = admit(&spec, &admitted.pod).unwrap();
    assert_eq!(again.patch.0, []);
}

#[test]
fn no_pod_names_the_channel_of_another_one() {
    let spec = managed("DevicePlugin");
    let first = admit(&spec, &member()).unwrap().pod;
    // A copy gets a claim of its own, also if it is of no gang.
    let mut copy = first.clone();
    copy["metadata"]["name"] = json!("copy");
    let annotations = copy["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.retain(|key, _| key == labels::CLASS);
    copy["metadata"]["labels"]
        .as_object_mut()
        .unwrap()
        .remove(labels::GANG);
    let copied = admit(&spec, &copy).unwrap().pod;
    assert_ne!(channel(&copied).0, channel(&first).0);
    // Nor in another entry, nor in a class that gives none.
    let named = |entry: &str| {
        let claim = json!([{"name": entry, "resourceClaimName": "nvlink-domains-a-channel"}]);
        with(member(), "/spec", "resourceClaims", claim)
    };
    let refused = |spec: &Value, pod: &Value| admit(spec, pod).unwrap_err().to_string();
    let text = refused(&spec, &named("mine"));
    assert!(text.contains("in another entry"), "{text}");
    let open = json!({"placement": {"whenUnavailable": "Queue"}});
    let text = refused(&open, &named(labels::CHANNEL));
    assert!(text.contains("only the webhook may name a claim"), "{text}");
}

#[test]
fn nics_come_with_each_gpu_and_none_are_named_by_hand() {
    let spec = json!({
        "placement": {"whenUnavailable": "Queue"}, "environment": {"fabric": "RoCE"},
        "devices": {"mapping": "Claim", "nics": {"deviceClassName": "rdma", "perGpu": 2}},
    });
    let mut two = member();
    let second = two["spec"]["containers"][0].clone();
    two["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(second);
    two["spec"]["containers"][1]["name"] = json!("second");
    let admitted = admit(&spec, &two).unwrap();
    let requests = |pod: &Value, container: usize| -> Vec<String> {
        let claims = &pod["spec"]["containers"][container]["resources"]["claims"];
        let claims = claims.as_array().unwrap().iter();
        let ours = claims.filter(|one| one["name"] == labels::CLAIM);
        ours.map(|one| one["request"].as_str().unwrap().to_owned())
            .collect()
    };
    let gpus = requests(&admitted.pod, 0).len() / 2;
    let of = |first: usize| -> Vec<String> {
        let ranks = || first..first + gpus;
        let all = ranks().map(|rank| format!("rank-{rank}"));
        all.chain(ranks().map(|rank| format!("nics-{rank}")))
            .collect()
    };
    assert_eq!(requests(&admitted.pod, 0), of(0));
    assert_eq!(requests(&admitted.pod, 1), of(gpus));
    // The API server may call again.
    let again = admit(&spec, &admitted.pod).unwrap();
    assert_eq!(again.patch.0, []);
    // A pod that names NICs of a claim, of its own or of another one.
    let mut forged = pod(2, json!({labels::CLASS: "own"}));
    forged["spec"]["containers"][0]["resources"]["claims"] =
        json!([{"name": labels::CLAIM, "request": "nics-0"}]);
    let refused = |spec: &Value, pod: &Value| admit(spec, pod).unwrap_err().to_string();
    assert!(refused(&spec, &forged).contains("which only the webhook writes"));
    let open = json!({"placement": {"whenUnavailable": "Queue"}});
    assert!(refused(&open, &forged).contains("only the webhook may name a claim"));
    // A container without GPUs.
    let mut beside = pod(2, json!({labels::CLASS: "own"}));
    let sidecar = json!({"name": "beside", "resources": {
        "claims": [{"name": labels::CLAIM, "request": "nics-0"}],
    }});
    beside["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(sidecar);
    assert!(refused(&spec, &beside).contains("which only the webhook writes"));
    let claiming = json!({
        "placement": {"whenUnavailable": "Queue"}, "devices": {"mapping": "Claim"},
    });
    assert!(refused(&claiming, &beside).contains("which only the webhook writes"));
    let mut on_host = pod(2, json!({labels::CLASS: "own"}));
    on_host["spec"]["hostNetwork"] = json!(true);
    assert!(refused(&spec, &on_host).contains("hostNetwork"));
    // 16 GPUs with two NICs each are more devices than a claim can have.
    let many = pod(16, json!({labels::CLASS: "own"}));
    let text = refused(&spec, &many);
    assert!(text.contains("at most 10 with their NICs"), "{text}");
}
