//! Control of a simulated node's faults over HTTP, without sockets.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode},
};
use nvlink_exporter::{
    control,
    server::{self, Site},
};
use nvlink_source::{Opener, Source, SourceSpec};
use tower::ServiceExt;

fn simulated(profile: &str) -> (Box<dyn Source>, Router) {
    let spec: SourceSpec = format!("sim:{profile}").parse().unwrap();
    let opener = Opener::new(spec, Some("n".to_owned()));
    let control = Arc::clone(opener.control().unwrap());
    let router = server::router(Site::new(Arc::default())).merge(control::router(control));
    (opener.open().unwrap(), router)
}

async fn send(
    router: &Router,
    method: &str,
    headers: &[(&str, &str)],
    body: impl Into<Body>,
) -> (StatusCode, String) {
    let mut request = Request::builder().method(method).uri("/sim/faults");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(body.into()).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn faults_are_set_shown_and_cleared() {
    let (mut source, router) = simulated("dgx-h100");
    let lost = r#"[{"gpu-lost":{"gpu":3}}]"#;
    let (status, shown) = send(&router, "PUT", &[JSON], lost).await;
    assert_eq!(status, StatusCode::OK, "{shown}");
    assert_eq!(send(&router, "GET", &[], "").await, (status, shown.clone()));
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        shown,
        serde_json::from_str::<serde_json::Value>(lost).unwrap()
    );
    assert_eq!(source.read(Duration::ZERO).unwrap().lost.len(), 1);
    let cleared = send(&router, "DELETE", &[], "").await;
    assert_eq!(cleared, (StatusCode::OK, "[]\n".to_owned()));
    assert_eq!(source.read(Duration::ZERO).unwrap().lost.len(), 0);
}

#[tokio::test]
async fn bad_lists_are_refused_in_one_line() {
    let (_, router) = simulated("dgx-h100");
    let (status, reason) = send(&router, "PUT", &[JSON], r#"[{"gpu-lost":{"gpu":9}}]"#).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(
        reason,
        "faults[0].gpu-lost.gpu: no GPU 9; dgx-h100 has GPUs 0 to 7\n"
    );
    let (status, _) = send(&router, "PUT", &[JSON], vec![b' '; 1 << 17]).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    let (status, _) = send(&router, "POST", &[JSON], "[]").await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn requests_from_pages_are_refused() {
    let (_, router) = simulated("dgx-h100");
    let form = ("content-type", "text/plain");
    let (status, _) = send(&router, "PUT", &[form], r#"["hang"]"#).await;
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let host = ("host", "node:9836");
    for from in [
        ("origin", "https://elsewhere.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        // A name of another site may lead to this address.
        ("origin", "http://node:9836"),
        ("sec-fetch-site", "same-origin"),
    ] {
        let headers = [JSON, host, from];
        let (status, _) = send(&router, "PUT", &headers, r#"["hang"]"#).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{from:?}");
        let (status, _) = send(&router, "DELETE", &headers, "").await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{from:?}");
    }
    assert_eq!(send(&router, "GET", &[], "").await.1, "[]\n");
    let own = [JSON, host, ("sec-fetch-site", "none")];
    let (status, _) = send(&router, "PUT", &own, r#"["hang"]"#).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn other_sources_have_no_faults() {
    let spec: SourceSpec = "file:/nowhere".parse().unwrap();
    assert!(Opener::new(spec, None).control().is_none());
    let router = server::router(Site::new(Arc::default()));
    let (status, _) = send(&router, "PUT", &[JSON], "[]").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}
