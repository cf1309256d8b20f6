//! The clusters that the reviews are sent to.

use std::sync::Arc;

use nvlink_admission::{
    admit::Admission,
    authorize::ListedAuthorizer,
    decide::Settings,
    view::{Labels, SharedView, View},
};
use nvlink_api::class::{Broken, Class};
use nvlink_topology::labels;
use nvlink_webhook::metrics::Metrics;
use serde_json::{Value, json};

/// A class of each kind, by name.
fn specs() -> Value {
    let infiniband = json!({
        "fabric": "Infiniband", "networkInterface": "eth0", "gpuDirect": "SYS",
        "rdmaDevices": ["mlx5_0", "mlx5_1"], "extra": {"NCCL_DEBUG": "WARN", "TP": "2"}
    });
    let roce = json!({
        "fabric": "RoCE", "networkInterface": "eth0", "rdmaDevices": ["mlx5_2"],
        "roce": {"trafficClass": 106, "gidIndex": 3}
    });
    json!({
        "any": {},
        "claiming": {"appliesTo": {"minGpus": 2, "maxGpus": 8, "precedence": 1}},
        "inference": {"appliesTo": {"patterns": ["none"]}, "placement": {"scope": "gpu"}},
        "restricted": {
            "access": {"mode": "Restricted"}, "environment": infiniband,
            "nodeSelector": {"matchLabels": {"pool": "gold"}}, "minBandwidth": "400GBps"
        },
        "roce": {"placement": {"scope": "rack"}, "environment": roce},
        "tcp": {
            "placement": {"scope": "zone"},
            "environment": {"fabric": "TCP", "networkInterface": "eth0"}
        },
        "pcie": {"environment": {"fabric": "PCIe", "peerToPeer": "SYS"}},
        "kueue": {
            "scheduler": {"integration": "Kueue"},
            "nodeSelector": {"matchLabels": {"pool": "kueue"}}
        },
        "kai": {"scheduler": {"integration": "KAI", "topology": "racks", "queue": "ml"}},
        "queueing": {"placement": {"whenUnavailable": "Queue", "queueTimeout": "150s"}},
        "leaving": {
            "placement": {
                "whenUnavailable": "Queue", "onQueueTimeout": "Spread", "waitingCostPercent": 50
            },
            "access": {"maxGpusPerProject": 16}
        },
        "volcano": {"scheduler": {"integration": "Volcano", "highestTier": 1}}
    })
}

/// A webhook whose list says who may use what.
pub(crate) type Webhook = nvlink_webhook::admission::server::Webhook<ListedAuthorizer>;

fn view() -> View {
    let mut view = View::default();
    let list: Value = serde_json::from_str(include_str!(
        "../../../crates/admission/tests/cases/access.json"
    ))
    .unwrap();
    let all = [specs(), list["classes"].clone()];
    for (name, spec) in all.iter().flat_map(|specs| specs.as_object().unwrap()) {
        let spec = serde_json::from_value(spec.clone()).unwrap();
        let class = Class::new(name, &spec).map_err(|error| error.to_string());
        view.set_class(name, class);
    }
    let odd = Broken::new("broken", &json!({}), "it is odd".to_owned());
    view.set_read_class("broken", Err(Box::new(odd)));
    for (name, size, bandwidth) in [("h100", 8, 450), ("a6000", 2, 56), ("l40s", 1, 0)] {
        let labels = [
            (labels::DOMAIN_SIZE, size.to_string()),
            (labels::BANDWIDTH, bandwidth.to_string()),
            (labels::DOMAIN, name.to_owned()),
        ];
        let labels: Labels = labels.map(|(key, value)| (key.to_owned(), value)).into();
        view.set_node(name, labels);
    }
    view.set_default_class("defaulted", Some("any"));
    view.set_default_class("lost", Some("gone"));
    view.set_default_class("closed", Some("restricted"));
    view
}

/// The same cluster for somebody who may use everything, some classes, nothing.
pub(crate) fn webhooks() -> Vec<Webhook> {
    let allowed: [&[&str]; 3] = [&["*"], &["restricted", "case-gold"], &[]];
    let webhook = |allowed: &[&str]| Webhook {
        admission: Admission {
            view: SharedView::new(view()),
            authorizer: ListedAuthorizer::new(allowed.iter().map(|&name| name.to_owned())),
            settings: Settings::default(),
        },
        metrics: Arc::new(Metrics::default()),
        recent: Default::default(),
    };
    allowed.map(webhook).into()
}
