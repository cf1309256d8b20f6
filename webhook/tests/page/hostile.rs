//! Whatever names and documents say: the page stays a page, and the JSON stays JSON.

use std::sync::Arc;

use nvlink_cluster::{
    gpus::Hardwares,
    informer::Extent,
    mirror::{Pod, pod::Queued},
};
use nvlink_topology::{NodeTopologySpec, Tray};
use nvlink_webhook::{metrics::Outcome, page::Page, recent::Decision};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{cluster, markup};

/// Returns a page on which every foreign text is `name`.
fn named(name: &str) -> Arc<Page> {
    let (page, recent) = cluster::page();
    let mut spec = cluster::switched("n", 2, Some(1));
    for gpu in &mut spec.gpus {
        gpu.model = Some(name.to_owned());
        gpu.uuid = Some(name.to_owned());
    }
    spec.domains[0].id = name.to_owned();
    spec.tray = Some(Tray {
        chassis: name.to_owned(),
        index: 255,
        slot: 0,
    });
    let mut job = cluster::held(name, name, &[0]);
    job.container = name.to_owned();
    let marks =
        json!({"gpus": [{"index": 0, "faults": [name]}], "lost": [{"index": 2, "uuid": name}]});
    let marks = serde_json::from_value(marks).unwrap();
    let node = Hardwares::default().node(&spec, marks, Some(vec![job]));
    page.mirror.set_node(name, Arc::new(Ok(node)));
    page.mirror
        .set_node("unreadable", Arc::new(Err(name.to_owned())));
    let pod = Pod {
        class: Some(name.to_owned()),
        project: Some(name.to_owned()),
        ..Pod::default()
    };
    for (reason, owner, state) in [
        ("Insufficient", Some(name.to_owned()), "waits"),
        ("Impossible", None, "never starts"),
    ] {
        let queued = Queued {
            reason: format!("{reason}: {name}"),
            owner,
            ..Queued::default()
        };
        let waits = Pod {
            queued: Some(Box::new(queued)),
            ..pod.clone()
        };
        let key = (name.to_owned(), format!("{name} {state}"));
        page.mirror.set_pod(key, waits);
    }
    page.mirror.set_pod((name.to_owned(), name.to_owned()), pod);
    page.mirror.all_nodes(|_| true);
    page.mirror.all_pods(|_| true, Extent::OfClasses);
    recent.add(|| Decision {
        project: Some(name.to_owned()),
        ..Decision::new(Outcome::Denied, name, name, name).about(Some(name))
    });
    page
}

/// Text with what HTML, attributes and JSON treat specially.
fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[ -~]{1,8}",
        ".{1,4}",
        Just("\"><script>alert(1)</script>".to_owned()),
        Just("' onload='x".to_owned()),
        Just("&lt;&#x3c;".to_owned()),
        Just("</ol></main>\u{0}\u{1b}\u{202e}".to_owned()),
    ];
    prop::collection::vec(part, 1..4).prop_map(|parts| parts.concat())
}

/// Any document that can be parsed: indices that do not exist, and sets that overlap.
fn document() -> impl Strategy<Value = (Value, Value)> {
    let indices = || prop::collection::vec(prop_oneof![0..10_u32, any::<u32>()], 0..6);
    let link = (any::<u32>(), any::<bool>()).prop_map(|(n, up)| json!({"index": n, "up": up}));
    let links = prop::option::of(prop::collection::vec(link, 0..4));
    let gpu = (0..10_u32, text(), links).prop_map(|(index, model, links)| {
        let mut gpu = json!({"index": index, "model": model});
        if let Some(links) = links {
            gpu["links"] = json!(links);
        }
        gpu
    });
    let fabric = prop::option::of((text(), any::<u32>()));
    let domain = (text(), indices(), fabric).prop_map(|(id, gpus, fabric)| {
        let mut domain = json!({"id": id, "gpus": gpus});
        if let Some((uuid, clique)) = fabric {
            domain["fabric"] = json!({"clusterUuid": uuid, "clique": clique});
        }
        domain
    });
    let held = (text(), indices()).prop_map(
        |(pod, gpus)| json!({"namespace": "n", "pod": pod, "container": "c", "gpus": gpus}),
    );
    let spec = (
        prop::collection::vec(gpu, 0..8),
        prop::collection::vec(domain, 0..3),
    )
        .prop_map(
            |(gpus, domains)| json!({"source": {"kind": "file"}, "gpus": gpus, "domains": domains}),
        );
    (
        spec,
        prop::collection::vec(held, 0..40).prop_map(Value::from),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn names_are_only_text(name in text(), query in text()) {
        let harmless = named("x");
        let page = named(&name);
        let same = |html: &str, other: &str| {
            prop_assert_eq!(markup::skeleton(html), markup::skeleton(other));
            Ok(())
        };
        same(&page.html(""), &harmless.html(""))?;
        let node = |page: &Page, name: &str| page.node(name).unwrap_or_default();
        same(&node(&page, &name), &node(&harmless, "x"))?;
        markup::check(&page.html(&query)).map_err(TestCaseError::fail)?;
        let json: Value = serde_json::from_str(&page.json()).unwrap();
        let nodes = json["nodes"].as_array().unwrap();
        prop_assert!(nodes.iter().any(|node| node["name"] == name.as_str()));
        let changes: Value = serde_json::from_str(&page.changes(&query, &query)).unwrap();
        prop_assert_eq!(&changes["reload"], true);
    }

    #[test]
    fn any_document_gives_a_page(documents in prop::collection::vec(document(), 1..4)) {
        let (page, _) = cluster::page();
        for (n, (spec, held)) in documents.into_iter().enumerate() {
            let spec: NodeTopologySpec = serde_json::from_value(spec).unwrap();
            let held: Vec<_> = serde_json::from_value(held).unwrap();
            cluster::set(&page, &format!("n{n}"), &spec, &held);
        }
        page.mirror.all_nodes(|_| true);
        markup::check(&page.html("")).map_err(TestCaseError::fail)?;
        markup::check(&page.node("n0").unwrap()).map_err(TestCaseError::fail)?;
        let json: Value = serde_json::from_str(&page.json()).unwrap();
        let totals = &json["totals"];
        prop_assert!(totals["free"].as_u64() <= totals["gpus"].as_u64());
    }
}
