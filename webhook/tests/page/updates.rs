//! What a page that is open gets.

use std::{sync::Arc, time::Duration};

use nvlink_webhook::{metrics::Outcome, page::Page, recent::Decision};
use serde_json::Value;

use crate::{cluster, get, markup};

/// Longer than a rendering is used again.
const LATER: Duration = Duration::from_millis(1100);

async fn changes(page: &Arc<Page>, cursor: &str) -> Value {
    let answer = get(page, &format!("/changes?since={cursor}")).await;
    serde_json::from_str(&answer.body).unwrap()
}

fn cursor(html: &str) -> String {
    let elements = markup::elements(html);
    let main = elements.iter().find(|one| one[""] == "main").unwrap();
    main["data-cursor"].clone()
}

fn rows(changes: &Value) -> Vec<&String> {
    changes["rows"].as_object().unwrap().keys().collect()
}

#[tokio::test]
async fn only_what_changed_is_sent() {
    let (page, recent) = cluster::page();
    cluster::fill(&page, &recent);
    let first = cursor(&get(&page, "/").await.body);
    let nothing = changes(&page, &first).await;
    assert!(rows(&nothing).is_empty(), "{nothing}");
    assert_eq!(nothing["decisions"], "");

    tokio::time::sleep(LATER).await;
    let spec = cluster::switched("h100-1", 8, None);
    cluster::set(&page, "h100-1", &spec, &[cluster::held("ci", "new", &[0])]);
    recent.add(|| Decision::new(Outcome::Denied, "ci", "later", "no"));
    let changed = changes(&page, nothing["cursor"].as_str().unwrap()).await;
    assert_eq!(rows(&changed), ["node-h100-1"]);
    let decisions = changed["decisions"].as_str().unwrap();
    assert!(decisions.contains("later") && !decisions.contains("train-1"));
    assert!(
        changed["summary"]
            .as_str()
            .unwrap()
            .contains("What still fits")
    );
    assert!(changed["queue"].as_str().unwrap().contains("ci/next"));
    // What a page gets is what it would have if it were loaded now.
    let html = get(&page, "/").await.body;
    let sent = [
        &changed["rows"]["node-h100-1"],
        &changed["summary"],
        &changed["queue"],
    ];
    for part in sent {
        assert!(html.contains(part.as_str().unwrap()), "{part}");
    }
    // A page that missed an answer gets the same again.
    let again = changes(&page, &first).await;
    assert_eq!(again["rows"], changed["rows"]);
}

#[tokio::test]
async fn the_page_is_loaded_again_when_nodes_come_or_go_or_another_replica_answers() {
    let (page, recent) = cluster::page();
    cluster::fill(&page, &recent);
    let first = cursor(&get(&page, "/").await.body);
    for unknown in ["", "x", "1.2.3", "1.2.3.4", &format!("{first}x")] {
        assert_eq!(changes(&page, unknown).await["reload"], true, "{unknown}");
    }
    let (other, recent) = cluster::page();
    cluster::fill(&other, &recent);
    assert_eq!(changes(&other, &first).await["reload"], true);
    tokio::time::sleep(LATER).await;
    page.mirror.remove_node("h100-10");
    assert_eq!(changes(&page, &first).await["reload"], true);
}

#[tokio::test]
async fn the_page_is_loaded_again_when_a_tray_comes_back() {
    let (page, recent) = cluster::page();
    cluster::fill(&page, &recent);
    let first = get(&page, "/").await.body;
    assert!(first.contains("is:away"));
    let mut third = cluster::tray("tray-3");
    for (tray, nodes) in [(1, "3 of 3 nodes, 12 of 24 GPUs, "), (2, "3 of 3 nodes, ")] {
        third.tray.as_mut().unwrap().index = tray;
        cluster::set(&page, "tray-3", &third, &[]);
        tokio::time::sleep(LATER).await;
        // If two nodes report the same tray, it is not known which one is away.
        let html = get(&page, "/").await.body;
        assert!(html.contains(nodes) && !html.contains("is:away"), "{html}");
    }
    assert_eq!(changes(&page, &cursor(&first)).await["reload"], true);
    // Its GPUs left the fabric, or its NodeTopology cannot be used any more: it is there.
    third.tray.as_mut().unwrap().index = 1;
    third.domains[0].fabric = None;
    cluster::set(&page, "tray-3", &third, &[]);
    tokio::time::sleep(LATER).await;
    let html = get(&page, "/").await.body;
    let two = "2 of 3 nodes, 8 of 24 GPUs, ";
    assert!(html.contains(two) && !html.contains("is:away"), "{html}");
    page.mirror
        .set_node("tray-3", Arc::new(Err("no".to_owned())));
    tokio::time::sleep(LATER).await;
    let html = get(&page, "/").await.body;
    assert!(html.contains(two) && !html.contains("is:away"), "{html}");
    page.mirror.remove_node("tray-3");
    tokio::time::sleep(LATER).await;
    assert!(get(&page, "/").await.body.contains("(tray 1 is away)"));
}
