//! The validation of the custom resources by the API server.

use serde_json::{Value, json};

use crate::shared::control_plane;

fn class(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
        "metadata": {"name": name}, "spec": spec,
    })
}

#[test]
fn what_a_topology_does_not_say_stays_absent() {
    let topology = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "NodeTopology",
        "metadata": {"name": "crds-unknown"},
        "spec": {"source": {"kind": "sysfs"}, "gpus": [{"index": 0}], "paths": [], "nics": []},
    });
    let stored = control_plane().kubectl().create(&topology).unwrap();
    assert_eq!(stored["spec"], topology["spec"]);
}

#[test]
fn classes_that_contradict_themselves_are_refused() {
    let cases = [
        (
            json!({"appliesTo": {"minGpus": 4, "maxGpus": 2}}),
            "maxGpus",
        ),
        (json!({"appliesTo": {"minGpus": 0}}), "minGpus"),
        (json!({"appliesTo": {"patterns": ["gossip"]}}), "patterns"),
        (json!({"minBandwidth": "fast"}), "minBandwidth"),
        (
            json!({"nodeSelector": {"matchLabels": {"pool ": "gpu"}}}),
            "matchLabels",
        ),
        (
            json!({"nodeSelector": {"matchLabels": {"pool": "x y"}}}),
            "matchLabels",
        ),
        (json!({"access": {"mode": "Secret"}}), "mode"),
        (json!({"placement": {"scope": "galaxy"}}), "scope"),
        (
            json!({"devices": {"resourceName": "nvidia.com/mig-1g.10gb"}}),
            "MIG",
        ),
        (json!({"environment": {"fabric": "RoCE"}}), "rdmaDevices"),
        (
            json!({"environment": {"fabric": "TCP", "mnnvl": "Required"}}),
            "mnnvl belongs to the fabric MNNVL",
        ),
        (
            json!({"environment": {"extra": {"NVIDIA_VISIBLE_DEVICES": "all"}}}),
            "visible devices",
        ),
    ];
    are_refused(&cases);
}

#[test]
fn fields_of_the_queue_belong_to_classes_that_queue() {
    are_refused(&[
        (
            json!({"placement": {"order": "Age"}}),
            "whenUnavailable Queue",
        ),
        (
            json!({"placement": {"waitingCostPercent": 50}}),
            "whenUnavailable Queue",
        ),
        (
            json!({"placement": {"whenUnavailable": "Queue", "waitingCostPercent": 0}}),
            "waitingCostPercent",
        ),
        (
            json!({"access": {"maxGpusPerProject": 8}}),
            "whenUnavailable Queue",
        ),
        (
            json!({"placement": {"spareNodes": 2}}),
            "spareNodes needs whenUnavailable Queue",
        ),
        (
            json!({"placement": {"whenUnavailable": "Queue", "queueTimeout": "3"}}),
            "queueTimeout",
        ),
    ]);
}

#[test]
fn nics_take_the_place_of_rdma_devices() {
    let class_of = |nics: Value, environment: Value| {
        json!({
            "placement": {"whenUnavailable": "Queue"}, "environment": environment,
            "devices": {"mapping": "Claim", "nics": nics},
        })
    };
    let nics = || json!({"deviceClassName": "rdma"});
    let roce = || json!({"fabric": "RoCE"});
    are_refused(&[
        (
            json!({"devices": {"nics": nics()}, "environment": roce()}),
            "devices.nics needs the mapping Claim",
        ),
        (
            class_of(nics(), json!({"fabric": "TCP"})),
            "devices.nics needs environment.fabric",
        ),
        (
            class_of(nics(), json!({"fabric": "RoCE", "rdmaDevices": ["mlx5_0"]})),
            "without rdmaDevices",
        ),
        (
            class_of(json!({"deviceClassName": "rdma", "perGpu": 0}), roce()),
            "perGpu",
        ),
        (class_of(json!({"perGpu": 1}), roce()), "deviceClassName"),
        (json!({"environment": {"gpuDirect": "PIX"}}), "gpuDirect"),
    ]);
    let class = class(
        "nics",
        class_of(nics(), json!({"fabric": "RoCE", "gpuDirect": "PIX"})),
    );
    let kubectl = control_plane().kubectl();
    kubectl.create(&class).unwrap();
    let made = kubectl.get(&["domainclass", "nics"]).unwrap();
    assert_eq!(made["spec"]["devices"]["nics"]["perGpu"], 1);
}

fn are_refused(cases: &[(Value, &str)]) {
    for (spec, part) in cases {
        let class = class("contradiction", spec.clone()).to_string();
        let said = control_plane()
            .kubectl()
            .refused(&["create", "-f", "-"], &class)
            .unwrap();
        assert!(said.contains(part), "{spec}: {said}");
    }
}

/// Uses the same lists as the webhook's own test of classes: both rules agree.
#[test]
fn lists_of_transports_keep_cuda() {
    let kubectl = control_plane().kubectl();
    for (index, (list, fits)) in [
        ("rc,cuda,sm", true),
        ("tcp,cuda_ipc2", true),
        ("^tcp,^cuda", true),
        ("^tcp,sm", true),
        ("rc,sm", false),
        ("", false),
        ("^tcp,cuda_ipc2", false),
        ("tcp,^cuda", false),
        ("x^cuda", false),
        ("^all", false),
    ]
    .into_iter()
    .enumerate()
    {
        let spec = json!({"environment": {"extra": {"UCX_TLS": list}}});
        let class = class(&format!("transports-{index}"), spec);
        if fits {
            kubectl.create(&class).unwrap();
            continue;
        }
        let said = kubectl.refused(&["create", "-f", "-"], &class.to_string());
        let said = said.unwrap();
        assert!(said.contains("UCX_TLS"), "{list}: {said}");
    }
}

/// Nodes share NVLink, whatever network between nodes the class names.
#[test]
fn mnnvl_can_be_disabled_with_each_fabric() {
    let spec = json!({"environment": {"fabric": "TCP", "mnnvl": "Disabled"}});
    let class = class("without-mnnvl", spec);
    control_plane().kubectl().create(&class).unwrap();
}

#[test]
fn a_class_name_that_is_not_a_label_value_is_refused() {
    let class = class(&"x".repeat(64), json!({})).to_string();
    let said = control_plane()
        .kubectl()
        .refused(&["create", "-f", "-"], &class)
        .unwrap();
    assert!(said.contains("63 characters"), "{said}");
}

#[test]
fn the_columns_of_a_class_show_the_main_fields() {
    let kubectl = control_plane().kubectl();
    let spec = json!({
        "minBandwidth": "400GBps", "appliesTo": {"minGpus": 999}, "access": {"mode": "Restricted"},
        "placement": {"whenUnavailable": "Queue"},
    });
    kubectl.create(&class("columns", spec)).unwrap();
    let table = kubectl.run(&["get", "domainclass", "columns"]).unwrap();
    let [header, row] = &table.lines().collect::<Vec<_>>()[..] else {
        panic!("{table}")
    };
    for column in ["ACCESS", "SCOPE", "MINBANDWIDTH", "QUEUE", "ISOLATED"] {
        assert!(header.contains(column), "{header}");
    }
    let values = [
        "columns",
        "Restricted",
        "nvlink-domain",
        "400GBps",
        "999",
        "Queue",
    ];
    for value in values {
        assert!(row.contains(value), "{row}");
    }
}

#[test]
fn a_topology_that_contradicts_itself_is_refused() {
    let edge =
        json!({"a": 1, "b": 0, "via": "direct", "links": 4, "bytesPerSecond": 80_000_000_000_u64});
    let topology = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "NodeTopology",
        "metadata": {"name": "contradiction"},
        "spec": {"source": {"kind": "sim"}, "gpus": [{"index": 0}, {"index": 1}], "edges": [edge]},
    });
    let said = control_plane()
        .kubectl()
        .refused(&["create", "-f", "-"], &topology.to_string())
        .unwrap();
    assert!(said.contains("lower GPU index"), "{said}");
}

/// A node with one GPU of a fabric has such a domain.
#[test]
fn a_domain_of_one_gpu_is_valid_only_if_it_spans_nodes() {
    let topology = |name: &str, domain: Value| {
        json!({
            "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "NodeTopology",
            "metadata": {"name": name},
            "spec": {"source": {"kind": "sim"}, "gpus": [{"index": 0}], "domains": [domain]},
        })
    };
    let kubectl = control_plane().kubectl();
    let fabric = json!({"clusterUuid": "7b5c", "clique": 1});
    let lone = json!({"id": "7b5c.1", "gpus": [0], "fabric": fabric});
    kubectl.create(&topology("lone-fabric", lone)).unwrap();
    let alone = topology("lone-local", json!({"id": "x.0", "gpus": [0]})).to_string();
    let said = kubectl.refused(&["create", "-f", "-"], &alone).unwrap();
    assert!(said.contains("two or more GPUs"), "{said}");
}
