//! The page of the cluster, through its routes.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod cluster;
mod hostile;
mod markup;
mod updates;

use std::{fs, sync::Arc};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderMap, Method, Request, StatusCode, header},
};
use nvlink_cluster::{informer::Extent, mirror::pod::Queued};
use nvlink_runtime::web::Web;
use nvlink_webhook::page::{Page, server};
use serde_json::Value;
use tower::ServiceExt;

#[path = "../../../crates/admission/tests/all/fixture/mod.rs"]
mod fixture;

use fixture::check_golden;

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

pub(crate) async fn ask(router: Router, request: Request<Body>) -> Answer {
    let response = router.oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    Answer {
        status: parts.status,
        headers: parts.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    }
}

pub(crate) async fn get(page: &Arc<Page>, path: &str) -> Answer {
    let request = Request::get(path).body(Body::empty()).unwrap();
    ask(server::router(Arc::clone(page)), request).await
}

/// Returns a page with something of everything.
fn filled() -> Arc<Page> {
    let (page, recent) = cluster::page();
    cluster::fill(&page, &recent);
    page
}

/// Replaces what differs from run to run and from version to version.
fn masked(text: &str) -> String {
    let mut text = text.replace(env!("CARGO_PKG_VERSION"), "VERSION");
    for (start, end) in [("?v=", "\""), ("data-cursor=\"", "\"")] {
        let parts: Vec<&str> = text.split(start).collect();
        let rest = parts[1..].iter().map(|part| {
            let (_, rest) = part.split_once(end).unwrap();
            format!("{start}X{end}{rest}")
        });
        text = parts[0].to_owned() + &rest.collect::<String>();
    }
    text
}

#[tokio::test]
async fn the_page_and_the_document_of_a_cluster() {
    let page = filled();
    let html = get(&page, "/").await;
    assert_eq!(html.status, StatusCode::OK);
    check_golden("cluster-page.html", &masked(&html.body));
    let node = get(&page, "/node?name=h100-2").await;
    check_golden("cluster-node.html", &masked(&node.body));
    let json = get(&page, "/api/v1/cluster").await;
    let json: Value = serde_json::from_str(&json.body).unwrap();
    let pretty = serde_json::to_string_pretty(&json).unwrap();
    check_golden("cluster-page.json", &format!("{pretty}\n"));
    for text in [&html.body, &node.body] {
        markup::check(text).unwrap();
    }
}

/// A newer exporter may publish what this webhook cannot read.
#[tokio::test]
async fn a_node_that_cannot_be_read_keeps_its_gpus() {
    let page = filled();
    let reasons = ["spec.gpus: unknown word", "spec.edges: unknown word"];
    for reason in reasons {
        let broken = Arc::new(Err(reason.to_owned()));
        page.mirror.set_node("h100-2", broken);
    }
    let html = get(&page, "/node?name=h100-2").await.body;
    for shown in [
        reasons[1],
        "GPU-h100-2-3",
        "as the node published them before",
    ] {
        assert!(html.contains(shown), "{shown}: {html}");
    }
    assert!(!html.contains("train-1"), "jobs may be others now: {html}");
    markup::check(&html).unwrap();
    let page = filled();
    page.mirror
        .set_node("h100-2", Arc::new(Err(reasons[0].to_owned())));
    cluster::set(&page, "h100-2", &cluster::pairs("h100-2"), &[]);
    let html = get(&page, "/node?name=h100-2").await.body;
    assert!(!html.contains("published them before"), "{html}");
}

#[tokio::test]
async fn a_page_without_nodes() {
    let (page, _) = cluster::page();
    let before = get(&page, "/").await.body;
    assert!(before.contains("no data yet"), "{before}");
    assert!(before.contains("have not been read yet"), "{before}");
    let (page, _) = cluster::page();
    page.mirror.all_nodes(|_| true);
    page.mirror.all_pods(|_| true, Extent::OfClasses);
    let empty = get(&page, "/").await.body;
    assert!(empty.contains("There are no NodeTopologies"), "{empty}");
    assert!(empty.contains("Nothing needs attention"), "{empty}");
    markup::check(&empty).unwrap();
}

#[tokio::test]
async fn a_watch_that_fails_is_shown() {
    let page = filled();
    page.mirror.nodes_follow(false);
    page.mirror.pods_follow(false);
    let html = get(&page, "/").await.body;
    assert!(html.contains("shows the last known state"), "{html}");
    assert!(html.contains("Classes and projects of pods"), "{html}");
    assert!(html.contains("<title>✕ "), "{html}");
}

#[tokio::test]
async fn the_search_finds_waiting_jobs_and_all_their_pods() {
    let page = filled();
    for (query, found) in [
        ("", "next other gang-a"),
        ("reason:insufficient", "next other"),
        ("class:high+is:waiting", "next gang-a"),
        ("pod:ci/gang-b", "gang-b"),
        ("pod:ci/train", ""),
    ] {
        let html = get(&page, &format!("/?q={query}")).await.body;
        let (_, queue) = html.split_once("<div id=\"waiting\">").unwrap();
        let (queue, _) = queue.split_once("</section>").unwrap();
        let names = queue.split("<b>ci/").skip(1);
        let names: Vec<&str> = names.map(|rest| rest.split_once('<').unwrap().0).collect();
        assert_eq!(names.join(" "), found, "{query}");
        // The job of two pods is found as a whole.
        assert_eq!(queue.contains("</b> and 1 more"), found.contains("gang"));
    }
}

fn shows(reason: &str, position: Option<u32>) -> Queued {
    Queued {
        reason: reason.to_owned(),
        position,
        ..Queued::default()
    }
}

#[tokio::test]
async fn jobs_that_cannot_start_need_attention() {
    let (page, _) = cluster::page();
    cluster::set(&page, "h100-1", &cluster::switched("h100-1", 8, None), &[]);
    let never = "Impossible: no node of its class can run it";
    cluster::waits(&page, "big", "high", None, shows(never, Some(1)));
    for pod in ["gang-a", "gang-b"] {
        cluster::waits(&page, pod, "high", Some("job"), shows(never, Some(2)));
    }
    let refused = "Refused: the API server refuses it: <quota>";
    cluster::waits(&page, "held", "high", None, shows(refused, Some(3)));
    let class = "Unaccepted: its class cannot be used: spec.gpus";
    cluster::waits(&page, "odd", "low", None, shows(class, None));
    let full = "Insufficient: it needs 8 GPUs in one NVLink domain, and none is free";
    cluster::waits(&page, "next", "low", None, shows(full, Some(1)));
    page.mirror.all_nodes(|_| true);
    page.mirror.all_pods(|_| true, Extent::OfClasses);
    let html = get(&page, "/").await.body;
    markup::check(&html).unwrap();
    for part in [
        "✕ 3 items need attention",
        "Impossible: <a href=\"/?q=pod%3Aci%2Fbig\">ci/big</a>, <a href=\"/?q=pod%3Aci%2Fgang-a\">ci/gang-a</a> \
         cannot start: no node of its class can run it<",
        "ci/held</a> cannot start: the API server refuses it: &lt;quota&gt;<",
        "ci/odd</a> cannot start: its class cannot be used: spec.gpus<",
        "<title>▲ NVLink cluster",
    ] {
        assert!(html.contains(part), "{part}: {html}");
    }
    assert!(!html.contains("Nothing needs attention"), "{html}");
    assert_eq!(
        html.matches("data-label=\"Expected start\">never<").count(),
        2
    );
    let found = get(&page, "/?q=is:stuck").await.body;
    assert_eq!(
        found.matches("<tr role=\"row\" data-find").count(),
        4,
        "{found}"
    );
    // A page that is open gets it, too.
    let main = markup::elements(&html);
    let main = main.iter().find(|one| one[""] == "main").unwrap();
    let changes = get(&page, &format!("/changes?since={}", main["data-cursor"])).await;
    let changes: Value = serde_json::from_str(&changes.body).unwrap();
    assert!(changes["summary"].as_str().unwrap().contains("ci/big</a>"));
    assert_eq!(changes["mark"], "▲ ");
}

#[tokio::test]
async fn the_jobs_that_need_attention_are_bounded() {
    let (page, _) = cluster::page();
    for number in 10..60_u32 {
        let name = format!("p{number}");
        let same = "Impossible: no node of its class can run it";
        let other = format!("Refused: pod {name} is refused");
        let reason = if number < 30 { same } else { &other };
        cluster::waits(&page, &name, "high", None, shows(reason, Some(number)));
    }
    page.mirror.all_nodes(|_| true);
    page.mirror.all_pods(|_| true, Extent::OfClasses);
    let html = get(&page, "/").await.body;
    for part in [
        "✕ 9 items need attention",
        "ci/p17</a> and <a href=\"/?q=reason%3AImpossible\">12 more</a> cannot start",
        "<a href=\"/?q=is%3Astuck\">23 more jobs</a> cannot start",
    ] {
        assert!(html.contains(part), "{part}: {html}");
    }
    let found = get(&page, "/?q=reason:Impossible").await.body;
    assert_eq!(
        found.matches("<tr role=\"row\" data-find").count(),
        20,
        "{found}"
    );
}

#[tokio::test]
async fn the_list_of_waiting_jobs_is_bounded() {
    let (page, _) = cluster::page();
    for number in 1..=5000_u32 {
        let queued = Queued {
            reason: "Insufficient: none is free".to_owned(),
            position: Some(number),
            ..Queued::default()
        };
        cluster::waits(&page, &format!("p{number}"), "high", None, queued);
    }
    page.mirror.all_nodes(|_| true);
    page.mirror.all_pods(|_| true, Extent::OfClasses);
    let html = get(&page, "/").await.body;
    assert_eq!(html.matches("<tr role=\"row\" data-find").count(), 100);
    for part in [
        "ci/p1<",
        "ci/p100<",
        "4900 jobs more",
        "5000 pods wait for 40000 GPUs",
    ] {
        assert!(html.contains(part), "{part}: {html}");
    }
    let json = get(&page, "/api/v1/cluster").await.body;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["queue"]["moreJobs"], 4900);
    assert_eq!(json["queue"]["jobs"].as_array().unwrap().len(), 100);
    let html = get(&page, "/?q=pod:ci/p4999").await.body;
    assert!(
        html.contains("ci/p4999<") && !html.contains("ci/p1<"),
        "{html}"
    );
}

/// Returns the ids of the elements of a kind that are shown.
fn shown(html: &str, kind: &str) -> Vec<String> {
    let elements = markup::elements(html);
    let shown = elements.iter().filter(|one| !one.contains_key("hidden"));
    let ids = shown.filter_map(|one| one.get("id"));
    ids.filter(|id| id.starts_with(kind)).cloned().collect()
}

#[tokio::test]
async fn gpus_that_are_not_there_are_found_by_the_board_and_by_siblings() {
    let (page, _) = cluster::page();
    let machine = |node: &str, gpus| {
        let mut spec = cluster::switched(node, gpus, None);
        spec.gpus
            .iter_mut()
            .for_each(|gpu| gpu.virtual_machine = true);
        cluster::set(&page, node, &spec, &[]);
    };
    for node in ["a", "b", "c", "f"] {
        machine(node, 8);
    }
    // The size of a virtual machine, and no size of one.
    machine("d", 4);
    machine("e", 7);
    cluster::set(&page, "metal", &cluster::switched("metal", 6, None), &[]);
    page.mirror.all_nodes(|_| true);
    page.mirror.all_pods(|_| true, Extent::OfClasses);
    let html = get(&page, "/").await.body;
    let line = html
        .lines()
        .find(|line| line.contains("GPUs that are not there"));
    let line = line.unwrap();
    assert!(line.contains("7 of 8 GPUs as on its siblings"), "{line}");
    assert!(line.contains("6 of 8 GPUs of its board"), "{line}");
    let found = get(&page, "/?q=is:lacking").await.body;
    assert_eq!(shown(&found, "node-"), ["node-e", "node-metal"]);
    let json = get(&page, "/api/v1/cluster").await.body;
    let json: Value = serde_json::from_str(&json).unwrap();
    let nodes = json["nodes"].as_array().unwrap();
    let of = |name: &str| nodes.iter().find(|node| node["name"] == name).unwrap();
    assert_eq!(
        (&of("e")["siblingsGpus"], &of("metal")["missingGpus"]),
        (&8.into(), &2.into())
    );
    assert_eq!(json["totals"]["brokenNodes"], 2);
}

#[tokio::test]
async fn a_tray_that_no_node_reports_has_its_place_in_the_rack() {
    let page = filled();
    let html = get(&page, "/").await.body;
    assert!(html.contains("2 of 3 nodes (tray 1 is away), 8 of 24 GPUs, "));
    let at = |text: &str| html.find(text).unwrap_or_else(|| panic!("no {text}"));
    let places = [
        at("id=\"node-tray-1\""),
        at("data-find=\"tray:1 domain:11111111-2222-3333-4444-555555555555.7 is:away\""),
        at("id=\"node-tray-2\""),
    ];
    assert!(places.is_sorted(), "{places:?}");
    let json: Value = serde_json::from_str(&get(&page, "/api/v1/cluster").await.body).unwrap();
    let groups = json["groups"].as_array().unwrap();
    let away: Vec<&Value> = groups.iter().map(|group| &group["awayTrays"]).collect();
    assert_eq!(
        away.iter()
            .filter(|away| ***away == serde_json::json!([1]))
            .count(),
        1,
        "{away:?}"
    );
    let found = get(&page, "/?q=is:away").await.body;
    assert_eq!(shown(&found, "node-"), [""; 0]);
    assert!(found.contains("<div class=\"row\" role=\"row\" data-find=\"tray:1 domain:11111111-2222-3333-4444-555555555555.7 is:away\""));
}

#[tokio::test]
async fn the_search_finds_pods_projects_nodes_and_states() {
    let page = filled();
    for (query, nodes, decisions) in [
        ("", "a6000 h100-1 h100-2 h100-10 tray-1 tray-2 odd", "3 2 1"),
        ("H100-1", "h100-1 h100-10", ""),
        ("pod%3Aci/train-1", "h100-2", "1"),
        ("project:gitlab.42", "h100-2", "1"),
        ("class:high", "h100-2", "2 1"),
        ("GPU-h100-10-3", "h100-10", ""),
        ("rack:r1", "h100-1", ""),
        ("is:broken", "h100-2 tray-2", ""),
        ("is:slow", "h100-10", ""),
        ("is:degraded", "tray-1 tray-2", ""),
        ("is:poor+ci/", "a6000", ""),
        ("is:unknown", "tray-2", ""),
        ("tray:2", "tray-2", ""),
        ("is:unreadable", "odd", ""),
        ("is:denied", "", "2"),
        ("a6000+h100", "", ""),
    ] {
        let html = get(&page, &format!("/?q={query}")).await.body;
        let found = shown(&html, "node-").join(" ");
        let mut expected: Vec<_> = nodes.split_whitespace().collect();
        expected.sort_unstable();
        let mut sorted: Vec<_> = found.split_whitespace().collect();
        sorted.sort_unstable();
        let expected: Vec<_> = expected.iter().map(|node| format!("node-{node}")).collect();
        assert_eq!(sorted, expected, "{query}");
        let expected = decisions.split_whitespace();
        let expected: Vec<_> = expected.map(|one| format!("decision-{one}")).collect();
        assert_eq!(shown(&html, "decision-"), expected, "{query}");
        let mut groups = shown(&html, "group-");
        groups.retain(|id| !id.ends_with("-sum"));
        assert_eq!(groups.is_empty(), nodes.is_empty(), "{query}: {groups:?}");
    }
}

#[tokio::test]
async fn answers_and_their_headers() {
    let page = filled();
    let html = get(&page, "/").await;
    assert_eq!(
        html.headers[header::CONTENT_TYPE],
        "text/html; charset=utf-8"
    );
    assert_eq!(html.headers[header::CACHE_CONTROL], "no-store");
    let policy = html.headers[header::CONTENT_SECURITY_POLICY]
        .to_str()
        .unwrap();
    assert!(policy.starts_with("default-src 'none'; "), "{policy}");
    for (path, status) in [
        ("/page.css?v=1", StatusCode::OK),
        ("/page.js", StatusCode::OK),
        ("/nothing", StatusCode::NOT_FOUND),
        ("/node?name=nobody", StatusCode::NOT_FOUND),
        ("/node", StatusCode::NOT_FOUND),
        ("/metrics", StatusCode::NOT_FOUND),
    ] {
        assert_eq!(get(&page, path).await.status, status, "{path}");
    }
    for path in [
        "/",
        "/node?name=h100-1",
        "/changes",
        "/api/v1/cluster",
        "/page.js",
    ] {
        for (method, status) in [
            (Method::HEAD, StatusCode::OK),
            (Method::POST, StatusCode::METHOD_NOT_ALLOWED),
            (Method::PUT, StatusCode::METHOD_NOT_ALLOWED),
            (Method::DELETE, StatusCode::METHOD_NOT_ALLOWED),
        ] {
            let request = Request::builder().method(&method).uri(path);
            let request = request.body(Body::empty()).unwrap();
            let answer = ask(server::router(Arc::clone(&page)), request).await;
            assert_eq!(answer.status, status, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn the_document_is_sent_once_to_those_who_keep_it() {
    let page = filled();
    let first = get(&page, "/api/v1/cluster").await;
    let tag = &first.headers[header::ETAG];
    let again = |tag: &str| {
        let request = Request::get("/api/v1/cluster").header(header::IF_NONE_MATCH, tag);
        let request = request.body(Body::empty()).unwrap();
        ask(server::router(Arc::clone(&page)), request)
    };
    let same = again(tag.to_str().unwrap()).await;
    assert_eq!(same.status, StatusCode::NOT_MODIFIED);
    assert!(same.body.is_empty());
    let other = again("\"other\"").await;
    assert_eq!((other.status, other.body), (StatusCode::OK, first.body));
}

#[tokio::test]
async fn the_web_configuration_protects_every_path() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("web.yml");
    // The password is `secret`; the cost of the hash is the lowest.
    let hash = "$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";
    fs::write(&file, format!("basic_auth_users: {{ada: \"{hash}\"}}\n")).unwrap();
    let web = Web::load(&file).unwrap();
    let router = web.protect(server::router(filled()));
    for path in [
        "/",
        "/node?name=h100-1",
        "/changes",
        "/api/v1/cluster",
        "/page.css",
        "/x",
    ] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let answer = ask(router.clone(), request).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
        assert!(!answer.body.contains("h100"), "{path}: {}", answer.body);
        let wrong = Request::get(path).header(header::AUTHORIZATION, "Basic YWRhOndyb25n");
        let answer = ask(router.clone(), wrong.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
    }
    let right = Request::get("/").header(header::AUTHORIZATION, "Basic YWRhOnNlY3JldA==");
    let answer = ask(router, right.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status, StatusCode::OK);
}
