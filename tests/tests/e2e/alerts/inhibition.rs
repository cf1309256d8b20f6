//! What `alerts/alertmanager.yaml` keeps silent, on a real Alertmanager.

use std::time::Instant;

use nvlink_tests::{Kubelet, http, kubelet::Container, wait_until};
use serde_json::{Value, json};

use super::watch::{SOON, Wanted, Watch, set, start};

const LINK: &str = r#"[{"link-down": {"gpu": 3, "link": 7}}]"#;
const LINK_AND_FABRIC: &str = r#"[{"link-down": {"gpu": 3, "link": 7}}, {"fabric-down": {}}]"#;

/// Waits until Alertmanager holds the alert back.
fn wait_until_inhibited(watch: &Watch, (node, alert): Wanted<'_>) {
    wait_until("the inhibition", SOON, || {
        let silent = watch.alertmanager.inhibited()?;
        let mut silent = silent.iter();
        let found = silent.any(|labels| labels["alertname"] == alert && labels["node"] == node);
        Ok(found.then_some(()))
    })
    .unwrap();
}

#[test]
fn a_fabric_that_is_down_silences_the_links_of_its_node_only() {
    let kubelet = Kubelet::start().unwrap();
    let socket = kubelet.socket().to_str().unwrap().to_owned();
    let dark = &start("dark", "dgx-h100", &["--kubelet-socket", &socket]);
    let other = &start("other", "dgx-h100", &[]);
    // Without a pod, a fabric that is down wakes nobody.
    let text = http::text(&dark.url("/api/v1/topology")).unwrap();
    let topology: Value = serde_json::from_str(&text).unwrap();
    let uuid = topology["spec"]["gpus"][0]["uuid"].as_str().unwrap();
    let container = Container::named("main").holding("nvidia.com/gpu", &[uuid]);
    kubelet.run_pod("ci", "train", [container]);
    let watch = Watch::start(&[("dark", &dark.address), ("other", &other.address)]);
    let held = r#"node:nvlink_gpus_allocated:count{node="dark"} == 1"#;
    let known = watch
        .prometheus
        .wait_for(held, SOON, |found| !found.is_empty());
    known.unwrap();
    let begin = Instant::now();
    set(dark, LINK_AND_FABRIC);
    set(other, LINK);
    let delivered = [("dark", "NvlinkFabricDown"), ("other", "NvlinkLinkDown")];
    watch.wait_until_firing(begin, &delivered);
    let silent = ("dark", "NvlinkLinkDown");
    wait_until_inhibited(&watch, silent);
    assert!(
        watch.received(silent).is_empty(),
        "{:#?}",
        watch.received(silent)
    );
    // The link stays broken when the fabric is back, and is news then.
    set(dark, LINK);
    watch.wait_until_resolved(&delivered[..1]);
    watch.wait_until_firing(begin, &[silent]);
}

#[test]
fn a_fabric_that_is_down_does_not_silence_network_cards() {
    let lit = start("lit", "dgx-h100", &[]);
    let watch = Watch::start(&[("lit", &lit.address)]);
    let raise = |alert: Value| watch.alertmanager.raise(&alert).unwrap();
    let of = |name: &str, severity: &str| json!({"alertname": name, "node": "dark", "severity": severity});
    raise(of("NvlinkFabricDown", "critical"));
    let mut link = of("NvlinkLinkDown", "warning");
    link["gpu"] = json!("3");
    raise(link);
    let mut card = of("NvlinkLinkDown", "warning");
    card["nic"] = json!("mlx5_0");
    card["reason"] = json!("nic");
    raise(card);
    wait_until_inhibited(&watch, ("dark", "NvlinkLinkDown"));
    wait_until("the message of the card", SOON, || {
        let told = watch.received(("dark", "NvlinkLinkDown"));
        assert!(
            told.iter().all(|note| note.label("nic") == "mlx5_0"),
            "{told:#?}"
        );
        Ok((!told.is_empty()).then_some(()))
    })
    .unwrap();
}

#[test]
fn a_node_that_is_down_silences_its_exporter_only() {
    let nodes = ["gone", "here"];
    let exporters = nodes.map(|node| start(node, "dgx-h100", &[]));
    let [gone, here] = &exporters;
    let watch = Watch::start(&[("gone", &gone.address), ("here", &here.address)]);
    // As kubernetes-mixin does, from kube-state-metrics.
    let node = json!({"alertname": "KubeNodeNotReady", "node": "gone", "severity": "warning"});
    watch.alertmanager.raise(&node).unwrap();
    let begin = Instant::now();
    drop(exporters);
    watch.wait_until_firing(
        begin,
        &[
            ("gone", "KubeNodeNotReady"),
            ("here", "NvlinkExporterFailing"),
        ],
    );
    let silent = ("gone", "NvlinkExporterFailing");
    wait_until_inhibited(&watch, silent);
    assert!(
        watch.received(silent).is_empty(),
        "{:#?}",
        watch.received(silent)
    );
}
