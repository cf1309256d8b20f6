//! The routes, without sockets.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod support;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    body::{Body, to_bytes},
    http::{Request, StatusCode, header},
};
use nvlink_exporter::{
    server::{self, Site},
    snapshot::{Health, Latest, Snapshot},
};
use tower::ServiceExt;

struct Answer {
    status: StatusCode,
    kind: String,
    body: String,
}

async fn ask(latest: &Arc<Latest>, path: &str, accept: &str) -> Answer {
    let request = Request::get(path)
        .header(header::ACCEPT, accept)
        .body(Body::empty())
        .unwrap();
    let response = server::router(Site::new(Arc::clone(latest)))
        .oneshot(request)
        .await
        .unwrap();
    let status = response.status();
    let kind = response
        .headers()
        .get(header::CONTENT_TYPE)
        .map(|kind| kind.to_str().unwrap());
    let kind = kind.unwrap_or_default().to_owned();
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    Answer {
        status,
        kind,
        body: String::from_utf8(body.to_vec()).unwrap(),
    }
}

fn good() -> Snapshot {
    support::snapshot(
        "sim:h200-degraded",
        support::reading("sim:h200-degraded"),
        Instant::now(),
    )
}

fn bad() -> Snapshot {
    let health = Health {
        source: "file:x".into(),
        error: Some("x: line 3: <cut>".into()),
        duration: Duration::ZERO,
        finished: Instant::now(),
    };
    Snapshot {
        data: None,
        loads: Vec::new(),
        health,
    }
}

#[tokio::test]
async fn before_the_first_collection() {
    let latest = Arc::new(Latest::default());
    assert_eq!(ask(&latest, "/livez", "").await.status, StatusCode::OK);
    assert_eq!(
        ask(&latest, "/readyz", "").await.status,
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(
        ask(&latest, "/api/v1/topology", "").await.status,
        StatusCode::SERVICE_UNAVAILABLE
    );
    let page = ask(&latest, "/", "").await;
    assert!(page.status == StatusCode::OK && page.body.contains("No collection has ended yet"));
    let metrics = ask(&latest, "/metrics", "").await;
    assert_eq!(metrics.status, StatusCode::OK);
    assert!(metrics.body.contains("nvlink_exporter_build_info"));
    assert!(!metrics.body.contains("nvlink_exporter_collector_success"));
}

#[tokio::test]
async fn after_a_good_one() {
    let latest = Arc::new(Latest::default());
    latest.publish(good());
    assert_eq!(ask(&latest, "/readyz", "").await.status, StatusCode::OK);
    let document = ask(&latest, "/api/v1/topology", "").await;
    assert_eq!(document.kind, "application/json");
    let document: nvlink_topology::NodeTopology = serde_json::from_str(&document.body).unwrap();
    assert_eq!(document.spec.gpus.len(), 8);
    let page = ask(&latest, "/", "").await;
    assert_eq!(page.kind, "text/html; charset=utf-8");
    assert!(page.body.contains("<svg") && page.body.contains("16/18, links missing"));
    assert!(!page.body.contains("<script"));
    // The last line keeps its distance from the last table.
    assert!(page.body.contains("main + p { margin: 2rem") && page.body.contains("</main>\n<p>"));
    assert_eq!(
        ask(&latest, "/nothing", "").await.status,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn metrics_in_both_formats() {
    let latest = Arc::new(Latest::default());
    latest.publish(good());
    let old = ask(&latest, "/metrics", "text/plain;version=0.0.4").await;
    assert_eq!(old.kind, "text/plain; version=0.0.4; charset=utf-8");
    assert!(
        old.body
            .contains("nvlink_exporter_collector_success{collector=\"topology\"} 1\n")
    );
    assert!(!old.body.contains("# EOF"));
    let open = ask(
        &latest,
        "/metrics",
        "application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1",
    )
    .await;
    assert_eq!(
        open.kind,
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    );
    assert!(open.body.ends_with("# EOF\n"));
}

#[tokio::test]
async fn a_failed_collection_shows_no_stale_data() {
    let latest = Arc::new(Latest::default());
    latest.publish(good());
    latest.publish(bad());
    let metrics = ask(&latest, "/metrics", "").await.body;
    assert!(metrics.contains("nvlink_exporter_collector_success{collector=\"topology\"} 0\n"));
    assert!(!metrics.contains("nvlink_gpu_info") && !metrics.contains("source_info"));
    let document = ask(&latest, "/api/v1/topology", "").await;
    assert_eq!(document.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(document.body.contains("line 3"));
    let page = ask(&latest, "/", "").await.body;
    assert!(page.contains("line 3: &lt;cut&gt;") && !page.contains("<svg"));
    // The metrics that say so must still be scraped.
    assert_eq!(ask(&latest, "/readyz", "").await.status, StatusCode::OK);
}
