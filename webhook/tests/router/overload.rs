//! Reviews that come late, or that there is no room for.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, to_bytes},
    http::{Request, StatusCode},
    response::Response,
};
use futures::StreamExt;
use nvlink_admission::{
    admit::Admission,
    authorize::{Authorizer, Grant, Subject, User},
    decide::Settings,
};
use nvlink_api::crd::access::GrantedIn;
use nvlink_runtime::connections::Peer;
use nvlink_topology::labels;
use nvlink_webhook::{
    admission::server::{PATH, SMALL, WAITING_ROOM, Webhook, admission_router},
    metrics::Metrics,
};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::fixture::{admission, pod, review};

/// Returns a body that starts with `head` and then never continues.
fn stuck(head: &str) -> Body {
    let head = futures::stream::iter([Ok::<_, std::io::Error>(head.to_owned())]);
    Body::from_stream(head.chain(futures::stream::pending()))
}

/// Returns a function that posts a body with a query to a router.
pub(crate) fn poster<A: Authorizer + 'static>(
    admission: Admission<A>,
    metrics: &Arc<Metrics>,
) -> impl Fn(&str, Body) -> Answering + use<A> {
    let post = poster_of_peers(admission, metrics);
    move |query, body| post(1, query, body)
}

type Answering = tower::util::Oneshot<axum::Router, Request<Body>>;

/// The same for several peers, identified by numbers.
fn poster_of_peers<A: Authorizer + 'static>(
    admission: Admission<A>,
    metrics: &Arc<Metrics>,
) -> impl Fn(u8, &str, Body) -> Answering + use<A> {
    let webhook = Webhook {
        admission,
        metrics: Arc::clone(metrics),
        recent: Default::default(),
    };
    let router = admission_router(Arc::new(webhook));
    move |peer, query, body| {
        let request = Request::post(format!("{PATH}{query}"));
        let request = request.extension(Peer::of([10, 0, 0, peer].into()));
        router.clone().oneshot(request.body(body).unwrap())
    }
}

pub(crate) async fn is_allowed(answer: Result<Response, std::convert::Infallible>) -> bool {
    let Ok(answer) = answer;
    assert_eq!(answer.status(), StatusCode::OK);
    let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    let answer: Value = serde_json::from_slice(&body).unwrap();
    answer["response"]["allowed"] == true
}

/// Checks that nothing was decided, so that the API server applies the failure policy.
async fn is_failed_call(answer: Result<Response, std::convert::Infallible>) {
    let Ok(answer) = answer;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    let body = String::from_utf8(body.into()).unwrap();
    assert!(
        !body.is_empty() && !body.contains("AdmissionReview"),
        "{body}"
    );
}

fn plain() -> Body {
    review(&pod(0, json!({}))).to_string().into()
}

fn naming(class: &str) -> Body {
    let pod = pod(1, json!({labels::CLASS: class}));
    review(&pod).to_string().into()
}

/// Returns a body that arrives `after` a time.
fn late(body: &Value, after: Duration) -> Body {
    let body = body.to_string();
    let after = async move {
        tokio::time::sleep(after).await;
        Ok::<_, std::io::Error>(body)
    };
    Body::from_stream(futures::stream::once(after))
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_is_a_failed_call() {
    let metrics = Arc::default();
    let post = poster(admission(&[]), &metrics);
    let start = tokio::time::Instant::now();
    is_failed_call(post("?timeout=2s", stuck("{")).await).await;
    assert_eq!(start.elapsed(), Duration::from_millis(1600));
    let page = metrics.render().unwrap();
    assert!(page.contains("outcome=\"overloaded\"} 1"), "{page}");
    assert!(page.contains("outcome=\"invalid\"} 0"), "{page}");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_arriving_times_out_before_the_deadline() {
    let post = poster(admission(&[]), &Arc::default());
    let large = "{".to_owned() + &" ".repeat(SMALL);
    for (head, seconds) in [("{", 2), (large.as_str(), 9)] {
        let start = tokio::time::Instant::now();
        is_failed_call(post("?timeout=30s", stuck(head)).await).await;
        assert_eq!(start.elapsed(), Duration::from_secs(seconds));
    }
}

#[tokio::test(start_paused = true)]
async fn slow_bodies_keep_nobody_else_waiting() {
    let post = poster_of_peers(admission(&[]), &Arc::default());
    let large = "{".to_owned() + &" ".repeat(SMALL);
    // More than there is room for, of both sizes.
    let slow = (0..1000).map(|index| {
        let head = if index < 100 { &large } else { "{" };
        post(1, "?timeout=30s", stuck(head))
    });
    let mut slow = Box::pin(futures::future::join_all(slow));
    assert!(futures::poll!(&mut slow).is_pending());
    let start = tokio::time::Instant::now();
    let large = || Body::from(review(&pod(0, json!({"a": "x".repeat(4 << 20)}))).to_string());
    assert!(is_allowed(post(2, "", plain()).await).await);
    assert!(is_allowed(post(2, "", large()).await).await);
    assert_eq!(start.elapsed(), Duration::ZERO);
    for answer in slow.await {
        is_failed_call(answer).await;
    }
    // There is room again for the peer that sent them.
    assert!(is_allowed(post(1, "", large()).await).await);
}

#[tokio::test(start_paused = true)]
async fn reviews_wait_until_there_is_room() {
    let post = poster(admission(&[]), &Arc::default());
    let large = "{".to_owned() + &" ".repeat(SMALL);
    let slow = (0..3).map(|_| post("?timeout=2s", stuck(&large)));
    let mut slow = Box::pin(futures::future::join_all(slow));
    assert!(futures::poll!(&mut slow).is_pending());
    let slow = tokio::spawn(slow);
    let start = tokio::time::Instant::now();
    let large = || Body::from(review(&pod(0, json!({"a": "x".repeat(4 << 20)}))).to_string());
    is_failed_call(post("?timeout=1s", large()).await).await;
    assert_eq!(start.elapsed(), Duration::from_millis(800));
    // The reviews that timed out make room for one that may wait longer.
    assert!(is_allowed(post("?timeout=5s", large()).await).await);
    assert_eq!(start.elapsed(), Duration::from_millis(1600));
    drop(slow.await);
}

/// An API server that does not answer access reviews.
struct Silent;

impl Authorizer for Silent {
    async fn may_use(&self, _: &Subject, _: &str, _: &str, _: GrantedIn) -> Grant {
        std::future::pending().await
    }

    async fn may_release(&self, _: &User, _: &str) -> Grant {
        std::future::pending().await
    }
}

fn silent() -> Admission<Silent> {
    Admission {
        view: admission(&[]).view,
        authorizer: Silent,
        settings: Settings::default(),
    }
}

#[tokio::test(start_paused = true)]
async fn arrival_and_access_reviews_share_one_deadline() {
    let post = poster(silent(), &Arc::default());
    let slow = review(&pod(1, json!({labels::CLASS: "restricted"})));
    for (query, waits) in [("?timeout=10s", 9000), ("", 4000), ("?timeout=bad", 4000)] {
        let start = tokio::time::Instant::now();
        let body = late(&slow, Duration::from_secs(1));
        is_failed_call(post(query, body).await).await;
        assert_eq!(start.elapsed(), Duration::from_millis(waits));
    }
    // A change of what the webhook wrote needs a right as well.
    let mut change = slow;
    change["request"]["operation"] = json!("UPDATE");
    change["request"]["oldObject"] = pod(1, json!({}));
    is_failed_call(post("", change.to_string().into()).await).await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_api_server_keeps_nobody_else_waiting() {
    let metrics = Arc::default();
    let post = poster(silent(), &metrics);
    let waiting = (0..1000).map(|_| post("", naming("restricted")));
    let mut waiting = Box::pin(futures::future::join_all(waiting));
    assert!(futures::poll!(&mut waiting).is_pending());
    let start = tokio::time::Instant::now();
    for _ in 0..500 {
        assert!(is_allowed(post("", plain()).await).await);
        assert!(is_allowed(post("", naming("any")).await).await);
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    for answer in waiting.await {
        is_failed_call(answer).await;
    }
    assert_eq!(start.elapsed(), Duration::from_secs(4));
    let page = metrics.render().unwrap();
    assert!(page.contains("outcome=\"overloaded\"} 1000"), "{page}");
    assert!(page.contains("outcome=\"denied\"} 0"), "{page}");
}

#[tokio::test(start_paused = true)]
async fn reviews_beyond_the_waiting_room_fail_at_once() {
    let post = poster(silent(), &Arc::default());
    // Each takes a hundredth of the room, by its weight of 650 bytes per object.
    let objects = json!({"x": vec![json!({}); WAITING_ROOM / 100 / 800]});
    let mut pod = pod(1, json!({labels::CLASS: "restricted"}));
    pod["spec"]["x"] = objects;
    let heavy = review(&pod).to_string();
    let waiting = (0..150).map(|_| post("", heavy.clone().into()));
    let start = tokio::time::Instant::now();
    let mut waiting: futures::stream::FuturesUnordered<_> = waiting.collect();
    let mut at_once = 0;
    while let Some(answer) = waiting.next().await {
        is_failed_call(answer).await;
        at_once += usize::from(start.elapsed().is_zero());
    }
    assert_eq!(start.elapsed(), Duration::from_secs(4));
    assert!((25..100).contains(&at_once), "{at_once} of 150");
}

#[tokio::test]
async fn fields_that_the_parser_drops_have_no_weight() {
    let name = |number| format!("CI_VARIABLE_{number}");
    let env = (0..1000).map(|number| json!({"name": name(number), "value": "x"}));
    let field = |number| {
        let key = format!("k:{{\"name\":\"{}\"}}", name(number));
        (key, json!({".": {}, "f:name": {}, "f:value": {}}))
    };
    let fields: serde_json::Map<_, _> = (0..40_000).map(field).collect();
    let mut pod = pod(0, json!({}));
    pod["spec"]["containers"][0]["env"] = env.collect();
    pod["metadata"]["managedFields"] = json!([{"manager": "kubectl", "fieldsV1": fields}]);
    let mut change = review(&pod);
    change["request"]["operation"] = json!("UPDATE");
    change["request"]["oldObject"] = pod.clone();
    let post = poster(admission(&[]), &Arc::default());
    assert!(is_allowed(post("", change.to_string().into()).await).await);
    // In another place the same data is kept, and too heavy.
    let fields = pod["metadata"]["managedFields"].take();
    pod["spec"]["managedFields"] = fields;
    change["request"]["object"] = pod.clone();
    change["request"]["oldObject"] = pod;
    assert!(!is_allowed(post("", change.to_string().into()).await).await);
}
