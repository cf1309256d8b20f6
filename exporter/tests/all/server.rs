//! The routes, without sockets.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    http::{Request, StatusCode, header},
};
use nvlink_exporter::{
    metrics::{Group, Groups},
    placement::{self, Judged, Keys, PatternFrom, Placements},
    server::{self, Site},
    snapshot::{Health, Latest, Snapshot},
    statistics::Statistics,
};
use nvlink_history::{marks::Record, remotes::Remotes};
use nvlink_runtime::supervise::Weight;
use nvlink_topology::{Allocation, Pattern};
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
    crate::support::snapshot(
        "sim:h200-degraded",
        crate::support::reading("sim:h200-degraded"),
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
        totals: Vec::new(),
        remotes: Remotes::default(),
        xids: Default::default(),
        record: Record::default(),
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
    assert!(page.status == StatusCode::OK && page.body.contains("No collection has finished yet"));
    let metrics = ask(&latest, "/metrics", "").await;
    assert_eq!(metrics.status, StatusCode::OK);
    assert!(metrics.body.contains("nvlink_exporter_build_info"));
    let success = "nvlink_exporter_collector_success{collector=\"topology\"} 0\n";
    assert!(metrics.body.contains(success), "{}", metrics.body);
    let age = "\nnvlink_exporter_snapshot_age_seconds ";
    assert!(metrics.body.contains(age), "{}", metrics.body);
    let duration = "\nnvlink_exporter_collection_duration_seconds{";
    assert!(!metrics.body.contains(duration), "{}", metrics.body);
}

#[tokio::test]
async fn data_that_are_stale_on_arrival_are_not_served() {
    let latest = Arc::new(Latest::new("node-a".to_owned(), Duration::from_secs(3)));
    let mut slow = good();
    slow.health.duration = Duration::from_secs(4);
    latest.publish(slow);
    for path in ["/readyz", "/api/v1/topology"] {
        let answer = ask(&latest, path, "").await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
    }
    let metrics = ask(&latest, "/metrics", "").await.body;
    assert!(!metrics.contains("nvlink_link_up"), "{metrics}");
    assert!(metrics.contains("collector_success{collector=\"topology\"} 0\n"));
}

#[tokio::test]
async fn after_a_good_collection() {
    let latest = Arc::new(Latest::default());
    latest.publish(good());
    assert_eq!(ask(&latest, "/readyz", "").await.status, StatusCode::OK);
    let document = ask(&latest, "/api/v1/topology", "").await;
    assert_eq!(document.kind, "application/json");
    let document: nvlink_topology::NodeTopology = serde_json::from_str(&document.body).unwrap();
    assert_eq!(document.spec.gpus.len(), 8);
    let page = ask(&latest, "/", "").await;
    assert_eq!(page.kind, "text/html; charset=utf-8");
    assert!(page.body.contains("NVIDIA H200"), "{}", page.body);
    assert!(page.body.contains("href=\"/metrics\""));
    assert_eq!(
        ask(&latest, "/nothing", "").await.status,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn metrics_are_openmetrics_whatever_is_accepted() {
    const OPEN: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let latest = Arc::new(Latest::default());
    latest.publish(good());
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    for (accept, kind) in [
        ("", OPEN),
        ("text/plain;version=0.0.4", OPEN),
        (
            "application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1",
            OPEN,
        ),
        // A browser would save any other type to a file.
        (browser, "text/plain; charset=utf-8"),
    ] {
        let answer = ask(&latest, "/metrics", accept).await;
        assert_eq!(answer.kind, kind, "{accept}");
        let success = "nvlink_exporter_collector_success{collector=\"topology\"} 1\n";
        assert!(answer.body.contains(success), "{accept}");
        assert!(answer.body.ends_with("# EOF\n"), "{accept}");
    }
}

/// Returns the text of a scrape, without copying it.
async fn scrape(router: &Router, query: &str) -> Bytes {
    let request = Request::builder().uri(format!("/metrics{query}"));
    let request = request.body(Body::empty()).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    to_bytes(response.into_body(), usize::MAX).await.unwrap()
}

#[tokio::test]
async fn scrapes_of_a_moment_share_one_text() {
    let latest = Arc::new(Latest::default());
    latest.publish(good());
    let router = server::router(Site::new(Arc::clone(&latest)));
    let (mut shared, mut texts) = (false, Vec::new());
    // The texts of some pairs may differ because time passes between them, but not all.
    for _ in 0..20 {
        let (a, b) = (scrape(&router, "").await, scrape(&router, "").await);
        shared |= a.as_ptr() == b.as_ptr();
        texts.extend([a, b]);
    }
    assert!(shared, "no two scrapes share a text");
    let part = scrape(&router, "?collect[]=gpu").await;
    assert!(part.len() < texts[0].len() / 2);
    latest.publish(bad());
    let failed = String::from_utf8(scrape(&router, "").await.to_vec()).unwrap();
    assert!(!failed.contains("nvlink_gpu_info"), "{failed}");
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
    assert!(page.contains("line 3: &lt;cut&gt;"), "{page}");
    // The metrics that report the failure must still be scraped.
    assert_eq!(ask(&latest, "/readyz", "").await.status, StatusCode::OK);
}

/// Returns status and body of a request to `site`.
async fn request(site: Site, method: &str, path: &str) -> (StatusCode, String) {
    let request = Request::builder().method(method).uri(path);
    let request = request.body(Body::empty()).unwrap();
    let response = server::router(site).oneshot(request).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

fn site() -> Site {
    let latest = Arc::new(Latest::default());
    latest.publish(good());
    Site::new(latest)
}

#[tokio::test]
async fn an_unknown_path_points_to_the_page() {
    let (status, body) = request(site(), "GET", "/nonsense").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(body.contains("see / for links"), "{body}");
}

#[tokio::test]
async fn methods() {
    for path in ["/", "/metrics", "/livez", "/readyz", "/api/v1/topology"] {
        let (status, body) = request(site(), "HEAD", path).await;
        assert_eq!((status, &*body), (StatusCode::OK, ""), "{path}");
        let (status, _) = request(site(), "POST", path).await;
        assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{path}");
    }
}

#[tokio::test]
async fn the_metrics_may_have_another_path() {
    let at = |path: &str| Site {
        metrics_path: path.to_owned(),
        ..site()
    };
    let (status, body) = request(at("/nvlink"), "GET", "/nvlink").await;
    assert!(status.is_success() && body.contains("nvlink_gpu_info"));
    assert_eq!(
        request(at("/nvlink"), "GET", "/metrics").await.0,
        StatusCode::NOT_FOUND
    );
    let (_, page) = request(at("/nvlink"), "GET", "/").await;
    assert!(page.contains("href=\"/nvlink\"") && !page.contains("href=\"/metrics\""));
    // Without a page.
    let (_, body) = request(at("/"), "GET", "/").await;
    assert!(body.starts_with("# HELP"));
}

/// Returns the names of the families in a scrape.
fn families(text: &str) -> Vec<&str> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.filter_map(|text| text.split(' ').next()).collect()
}

#[tokio::test]
async fn collectors_are_chosen_by_flag_and_by_scrape() {
    let ask = async |groups: Groups, query: &str| {
        let site = Site { groups, ..site() };
        request(site, "GET", &format!("/metrics{query}")).await
    };
    let (_, body) = ask(Groups::ALL, "").await;
    let all = families(&body).len();
    let (_, body) = ask(Groups::ALL.without(Group::Peer), "").await;
    assert_eq!(families(&body).len(), all - 2);
    assert!(!body.contains("nvlink_peer"));

    let own = |name: &&str| name.starts_with("nvlink_exporter_");
    let (_, body) = ask(Groups::ALL, "?collect[]=link&collect%5B%5D=domain&x=y").await;
    let (own, others): (Vec<_>, Vec<_>) = families(&body).into_iter().partition(own);
    let expected = [
        "nvlink_link_up",
        "nvlink_link_speed_bytes_per_second",
        "nvlink_domain_gpus",
    ];
    assert_eq!(others, expected);
    assert!(own.contains(&"nvlink_exporter_build_info"));
    let (_, body) = ask(Groups::ALL, "?exclude[]=peer").await;
    assert_eq!(families(&body).len(), all - 2);

    for (groups, query, reason) in [
        (
            Groups::ALL,
            "?collect[]=links",
            "there is no collector \"links\"",
        ),
        (Groups::ALL, "?collect[]=exporter", "there is no collector"),
        (
            Groups::NONE,
            "?collect[]=link",
            "the collector \"link\" is switched off",
        ),
        (
            Groups::ALL,
            "?collect[]=link&exclude[]=peer",
            "cannot be combined",
        ),
    ] {
        let (status, body) = ask(groups, query).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(body.contains(reason), "{query}: {body}");
    }
}

/// Returns a job on the GPUs 2 and 5 of eight, judged when all of them answered.
fn judged_on(snapshot: &Snapshot) -> Placements {
    let spec = &snapshot.data.as_ref().unwrap().topology.spec;
    let allocation = Allocation {
        namespace: "ci".into(),
        pod: "job".into(),
        container: "main".into(),
        gpus: vec![2, 5],
        free_when_placed: Some(vec![2, 3, 5]),
        ..Allocation::default()
    };
    Placements {
        on: Keys::of(&spec.gpus),
        status: Some(nvlink_topology::NodeTopologyStatus {
            allocations: vec![allocation.clone()],
        }),
        judged: vec![Judged {
            allocation,
            lost: Vec::new(),
            model: None,
            path: None,
            class: None,
            project: None,
            gang: None,
            pattern: Pattern::default(),
            pattern_from: PatternFrom::Default,
            domains: Some(1),
            bottleneck_bytes_per_second: None,
            quality_node: Some(1.0),
            quality_free: None,
        }],
        health: Some(placement::Health::default()),
        ..Placements::default()
    }
}

/// Returns a snapshot without GPU 2, in which the GPUs behind it have moved up.
fn without_gpu_2() -> Snapshot {
    let mut snapshot = good();
    let spec = &mut snapshot.data.as_mut().unwrap().topology.spec;
    spec.gpus.remove(2);
    (0..)
        .zip(&mut spec.gpus)
        .for_each(|(index, gpu)| gpu.index = index);
    spec.edges.retain(|edge| edge.b < 7);
    spec.paths.retain(|path| path.b < 7);
    spec.domains[0].gpus = (0..7).collect();
    snapshot
}

#[tokio::test]
async fn a_job_keeps_its_gpus_when_their_indices_move() {
    let latest = Arc::new(Latest::default());
    let whole = good();
    latest.place(judged_on(&whole));
    let gpus = whole.data.as_ref().unwrap().topology.spec.gpus.iter();
    let uuids: Vec<String> = gpus.filter_map(|gpu| gpu.uuid.clone()).collect();
    let held = async || {
        let metrics = ask(&latest, "/metrics", "").await.body;
        let lines = metrics.lines();
        let held = lines.filter(|line| line.starts_with("nvlink_allocation_info{"));
        let gpu = |line: &str| {
            let (gpu, rest) = line.split_once(",UUID=\"").unwrap();
            let index: u32 = gpu.rsplit('"').nth(1).unwrap().parse().unwrap();
            (index, rest.split('"').next().unwrap().to_owned())
        };
        held.map(gpu).collect::<Vec<_>>()
    };
    let (two, five) = (uuids[2].clone(), uuids[5].clone());
    latest.publish(whole);
    assert_eq!(held().await, [(2, two.clone()), (5, five.clone())]);

    latest.publish(without_gpu_2());
    assert_eq!(held().await, [(4, five.clone()), (2, two.clone())]);
    let document = ask(&latest, "/api/v1/topology", "").await.body;
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    let allocation = &document["status"]["allocations"][0];
    assert_eq!(allocation["gpus"], serde_json::json!([4]));
    assert_eq!(allocation["freeWhenPlaced"], serde_json::json!([2, 4]));
    let metrics = ask(&latest, "/metrics", "").await.body;
    assert!(metrics.contains("nvlink_largest_free_set_gpus{node=\"node-a\"} 6\n"));

    // Allocations that were judged in the meantime record the loss; then the GPU comes back.
    let placements = latest.view(Instant::now()).placements.unwrap();
    latest.place(Placements::clone(&placements));
    latest.publish(good());
    assert_eq!(held().await, [(2, two), (5, five)]);
}

#[tokio::test]
async fn the_process_is_live_while_its_parts_are() {
    let statistics = Statistics::default();
    let latest = Arc::new(Latest::default().with(statistics.clone()));
    assert_eq!(ask(&latest, "/livez", "").await.status, StatusCode::OK);
    let failed = async { Err("out of order") };
    statistics.supervisor.require("the publisher", failed);
    statistics.supervisor.failed().await;
    statistics
        .supervisor
        .keep("the collector", Weight::Vital, || async {});
    let until = Instant::now() + Duration::from_secs(30);
    let restarted = "nvlink_exporter_part_restarts_total{part=\"the collector\"} 1\n";
    // Scrapes of one second share one text.
    while !ask(&latest, "/metrics", "").await.body.contains(restarted) {
        assert!(Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let answer = ask(&latest, "/livez", "").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.body, "the publisher failed: out of order\n");
}
