//! The page while the node cannot be read, and where not all of the node is known.

use std::time::{Duration, Instant, SystemTime};

use crate::support::{PAIRS, reading, snapshot};
use nvlink_exporter::{
    page,
    snapshot::{Latest, Snapshot},
};
use nvlink_source::Reading;
use nvlink_topology::{Allocation, NodeTopologyStatus};

/// Returns the page 45 s after `now`, at 10:00:45 UTC.
fn later(latest: &Latest, now: Instant) -> String {
    let mut view = latest.view(now + Duration::from_secs(45));
    // 2026-08-01T10:00:45Z
    view.clock.wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_785_578_445);
    page::render(&view, "/metrics")
}

/// Returns a collection that failed.
fn failed(now: Instant) -> Snapshot {
    let mut failed = snapshot("file:x", reading("sim:dgx1-v100"), now);
    failed.data = None;
    failed.totals.clear();
    failed.health.error = Some("x: line 3: <cut>".to_owned());
    failed
}

fn page_of(reading: Reading) -> String {
    let latest = Latest::default();
    let now = Instant::now();
    latest.publish(snapshot("file:x", reading, now));
    page::render(&latest.view(now), "/metrics")
}

#[test]
fn an_error_keeps_the_name_and_the_last_graph_of_a_page() {
    let latest = Latest::default();
    let now = Instant::now();
    let mut good = reading("sim:dgx1-v100");
    let held = Allocation {
        pod: "train".to_owned(),
        gpus: vec![0],
        ..Allocation::default()
    };
    let allocations = vec![held];
    good.topology.status = Some(NodeTopologyStatus { allocations });
    latest.publish(snapshot("sim:dgx1-v100", good, now));
    // While the source hangs, and after it has failed.
    for error in ["no collection has finished since", "x: line 3: &lt;cut&gt;"] {
        let html = later(&latest, now);
        assert!(html.contains("<title>✕ node-a · NVLink</title>"), "{html}");
        assert!(html.contains("<h1>node-a</h1>"), "{html}");
        let (above, graph) = html
            .split_once("<div class=\"past\" id=\"graph\">")
            .unwrap();
        let since = "✕ No current data since 10:00:00 UTC on 2026-08-01</h2>";
        assert!(above.contains(since) && above.contains(error), "{above}");
        assert_eq!(
            graph.matches("<details class=\"gpu\"").count(),
            8,
            "{graph}"
        );
        assert!(graph.contains("<svg class=\"ring\"") && graph.contains("6/6 up"));
        assert_eq!(html.matches("id=\"node\"").count(), 1, "{html}");
        for absent in ["Nothing needs attention", "#job-", "ci/train", "job A"] {
            assert!(!html.contains(absent), "{absent}: {html}");
        }
        latest.publish(failed(now + Duration::from_secs(40)));
    }
}

#[test]
fn a_page_without_any_graph_has_the_name_of_the_node() {
    let latest = Latest::new("gpu-7".to_owned(), Duration::from_secs(30));
    let now = Instant::now();
    let before = later(&latest, now);
    assert!(before.contains("<h1>gpu-7</h1>"), "{before}");
    latest.publish(failed(now));
    let html = later(&latest, now);
    for part in [
        "<h1>gpu-7</h1>",
        "✕ No collection has succeeded since the start, at 10:00:00 UTC on 2026-08-01</h2>",
        "x: line 3: &lt;cut&gt;",
        " id=\"node\"",
    ] {
        assert!(html.contains(part), "{part}: {html}");
    }
    assert!(!html.contains("id=\"graph\""), "{html}");
}

#[test]
fn a_page_names_what_is_not_known_of_links() {
    let read = || nvlink_source::file::parse("topo.txt", PAIRS.as_bytes(), Some("node-a")).unwrap();
    let html = page_of(read());
    let known = "<span class=\"sum\">4 links, state and load not known</span>";
    assert_eq!(html.matches(known).count(), 4, "{html}");
    // A GPU without an edge.
    let mut apart = read();
    apart.topology.spec.edges.retain(|edge| edge.a != 0);
    let html = page_of(apart);
    assert_eq!(html.matches(known).count(), 2, "{html}");
    assert_eq!(html.matches("NVLink not known</span>").count(), 2, "{html}");
    // Each of eight GPUs has the same links to all others, over switches.
    let mut switched = reading("sim:dgx-h100");
    for gpu in &mut switched.topology.spec.gpus {
        gpu.links = None;
    }
    let html = page_of(switched);
    let known = "<span class=\"sum\">18 links, state and load not known</span>";
    assert_eq!(html.matches(known).count(), 8, "{html}");
    // The numbers of a drawing are explained without them.
    let mut mesh = reading("sim:dgx1-v100");
    for gpu in &mut mesh.topology.spec.gpus {
        gpu.links = None;
    }
    let html = page_of(mesh);
    let known = "<span class=\"sum\">6 links, state and load not known</span>";
    assert_eq!(html.matches(known).count(), 8, "{html}");
    assert!(html.contains("<b>2</b>— links of a pair"), "{html}");
}
