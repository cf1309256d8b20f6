//! A source that is released on request, that panics, and that hangs.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    task::Poll,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode},
};
use futures::poll;
use nvlink_exporter::{
    collect, control, lifecycle,
    release::{Hold, Release},
    server::{self, Site},
    snapshot::Latest,
};
use nvlink_runtime::supervise::Supervisor;
use nvlink_source::{Opener, Reading, Source, SourceError, SourceSpec};
use tower::ServiceExt;

/// A driver that knows whether it is open.
#[derive(Clone, Default)]
struct Driver(Arc<State>);

#[derive(Default)]
struct State {
    open: AtomicBool,
    readings: AtomicU32,
    panics: AtomicBool,
    hangs: AtomicBool,
}

impl Source for Driver {
    fn read(&mut self, now: Duration) -> Result<Reading, SourceError> {
        self.0.open.store(true, SeqCst);
        self.0.readings.fetch_add(1, SeqCst);
        while self.0.hangs.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!self.0.panics.load(SeqCst), "out of order");
        let spec: SourceSpec = "sim:l40s".parse().unwrap();
        spec.open(Some("n"))?.read(now)
    }

    fn release(&mut self) {
        self.0.open.store(false, SeqCst);
    }
}

struct Exporter {
    latest: Arc<Latest>,
    release: Release,
    router: Router,
    _supervisor: Supervisor,
}

impl Exporter {
    fn start(source: Box<dyn Source>, opener: collect::Open, interval: Duration) -> Self {
        let latest = Arc::new(Latest::default());
        let release = latest.statistics().release.clone();
        let router = server::router(Site::new(Arc::clone(&latest)));
        let supervisor = Supervisor::default();
        let name = "driver".to_owned();
        collect::start(&supervisor, name, source, opener, interval, &latest).unwrap();
        Self {
            router: router.merge(lifecycle::router(release.clone(), true)),
            latest,
            release,
            _supervisor: supervisor,
        }
    }

    fn of(driver: &Driver) -> Self {
        let again = driver.clone();
        let open = move || -> Result<Box<dyn Source>, SourceError> { Ok(Box::new(again.clone())) };
        Self::start(
            Box::new(driver.clone()),
            Box::new(open),
            Duration::from_millis(1),
        )
    }

    async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> (StatusCode, String) {
        ask(&self.router, method, path, headers).await
    }

    async fn wait(&self, what: &str, probe: impl Fn(&Latest) -> bool) {
        let until = Instant::now() + Duration::from_secs(30);
        while !probe(&self.latest) {
            assert!(Instant::now() < until, "{what}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn has_data(&self) {
        let has = |latest: &Latest| latest.view(Instant::now()).data().is_some();
        self.wait("data", has).await;
    }
}

async fn ask(
    router: &Router,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> (StatusCode, String) {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

const RELEASED: &str = "nvlink_exporter_source_released ";

#[tokio::test]
async fn the_source_is_released_and_opened_again() {
    let driver = Driver::default();
    let exporter = Exporter::of(&driver);
    exporter.has_data().await;
    let (status, text) = exporter.ask("POST", "/-/release?for=1h", &[]).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert!(!driver.0.open.load(SeqCst));
    let readings = driver.0.readings.load(SeqCst);
    let (_, metrics) = exporter.ask("GET", "/metrics", &[]).await;
    assert!(metrics.contains(&format!("{RELEASED}1\n")), "{metrics}");
    assert!(!metrics.contains("nvlink_gpu_info{"), "{metrics}");
    let (status, reason) = exporter.ask("GET", "/readyz", &[]).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let expected = "the source is released on request; it is opened again in 3600 s";
    assert!(reason.contains(expected), "{reason}");
    let (status, _) = exporter.ask("GET", "/livez", &[]).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(driver.0.readings.load(SeqCst), readings);
    assert!(!driver.0.open.load(SeqCst));

    let (status, _) = exporter.ask("POST", "/-/open", &[]).await;
    assert_eq!(status, StatusCode::OK);
    exporter.has_data().await;
    let (_, metrics) = exporter.ask("GET", "/metrics", &[]).await;
    assert!(metrics.contains(&format!("{RELEASED}0\n")), "{metrics}");
    let (status, _) = exporter.ask("GET", "/readyz", &[]).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn the_source_is_opened_again_when_the_time_is_over() {
    let exporter = Exporter::of(&Driver::default());
    exporter.has_data().await;
    let (status, _) = exporter.ask("POST", "/-/release?for=1s", &[]).await;
    assert_eq!(status, StatusCode::OK);
    exporter.has_data().await;
    assert_eq!(exporter.release.hold(), Hold::Held);
}

#[tokio::test]
async fn a_source_that_hangs_is_released_as_soon_as_it_answers() {
    let driver = Driver::default();
    driver.0.hangs.store(true, SeqCst);
    let exporter = Exporter::of(&driver);
    let began = |_: &Latest| driver.0.readings.load(SeqCst) == 1;
    exporter.wait("a reading", began).await;
    let (hour, moment) = (Duration::from_secs(3600), Duration::from_millis(1));
    assert_eq!(exporter.release.ask(hour, moment).await, Hold::Asked);
    let (_, metrics) = exporter.ask("GET", "/metrics", &[]).await;
    assert!(metrics.contains(&format!("{RELEASED}0\n")), "{metrics}");
    driver.0.hangs.store(false, SeqCst);
    let released = |_: &Latest| matches!(exporter.release.hold(), Hold::Released(_));
    exporter.wait("the release", released).await;
    assert_eq!(driver.0.readings.load(SeqCst), 1);
    assert!(!driver.0.open.load(SeqCst));
}

#[tokio::test]
async fn a_request_that_waits_for_a_cancelled_release_is_answered_at_once() {
    // Nothing reads the source, so it is never released.
    let release = Release::default();
    let hour = Duration::from_secs(3600);
    let mut waiting = pin!(release.ask(hour, hour));
    assert!(poll!(waiting.as_mut()).is_pending());
    release.cancel();
    assert_eq!(poll!(waiting), Poll::Ready(Hold::Held));
}

#[tokio::test]
async fn only_valid_requests_of_no_page_release_the_source() {
    let exporter = Exporter::of(&Driver::default());
    for (path, headers, expected) in [
        ("/-/release?for=x", vec![], StatusCode::BAD_REQUEST),
        ("/-/release?for=25h", vec![], StatusCode::BAD_REQUEST),
        ("/-/release?until=1h", vec![], StatusCode::BAD_REQUEST),
        ("/-/release?for=1s&for=24h", vec![], StatusCode::BAD_REQUEST),
        (
            "/-/release",
            vec![("sec-fetch-site", "cross-site")],
            StatusCode::FORBIDDEN,
        ),
        (
            "/-/open",
            vec![("origin", "https://elsewhere.example")],
            StatusCode::FORBIDDEN,
        ),
    ] {
        let (status, reason) = exporter.ask("POST", path, &headers).await;
        assert_eq!(status, expected, "{path}: {reason}");
    }
    let (status, _) = exporter.ask("GET", "/-/release", &[]).await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    let release = Release::default();
    let router = lifecycle::router(release.clone(), false);
    for path in ["/-/release", "/-/open"] {
        let (status, reason) = ask(&router, "POST", path, &[]).await;
        assert_eq!(status, StatusCode::FORBIDDEN);
        assert!(reason.contains("--web.enable-lifecycle"), "{reason}");
    }
    assert_eq!(release.hold(), Hold::Held);
}

#[tokio::test]
async fn data_from_before_a_panic_of_the_source_are_not_served() {
    let driver = Driver::default();
    let exporter = Exporter::of(&driver);
    exporter.has_data().await;
    driver.0.panics.store(true, SeqCst);
    let gone = |latest: &Latest| latest.view(Instant::now()).data().is_none();
    exporter.wait("the data to go", gone).await;
    let view = exporter.latest.view(Instant::now());
    assert_eq!(
        view.error().as_deref(),
        Some("the source panicked and is opened again")
    );
    // It is not reported as hanging either.
    assert_eq!(exporter.latest.reading(), None);
    driver.0.panics.store(false, SeqCst);
    exporter.has_data().await;
}

#[tokio::test]
async fn a_simulated_node_still_accepts_faults_after_a_panic() {
    let opener = Opener::new("sim:dgx-h100".parse().unwrap(), Some("n".to_owned()));
    let control = Arc::clone(opener.control().unwrap());
    let broken = Driver::default();
    broken.0.panics.store(true, SeqCst);
    let open = Box::new(move || opener.open());
    let exporter = Exporter::start(Box::new(broken), open, Duration::from_millis(1));
    exporter.has_data().await;
    let router = control::router(control);
    let request = Request::builder().method("PUT").uri("/sim/faults");
    let request = request.header("content-type", "application/json");
    let lost = Body::from(r#"[{"gpu-lost":{"gpu":3}}]"#);
    let response = router.oneshot(request.body(lost).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let lost = |latest: &Latest| {
        let view = latest.view(Instant::now());
        view.data().is_some_and(|data| data.lost.len() == 1)
    };
    exporter.wait("a lost GPU", lost).await;
}

#[tokio::test]
async fn the_age_of_the_data_differs_from_the_time_that_the_source_hangs() {
    let latest = Arc::new(Latest::new("node-a".to_owned(), Duration::from_secs(10)));
    let spec: SourceSpec = "sim:l40s".parse().unwrap();
    let mut source = spec.open(Some("n")).unwrap();
    let now = Instant::now();
    let mut snapshot = collect::collect("sim:l40s", source.as_mut(), Duration::ZERO);
    snapshot.health.finished = now - Duration::from_secs(60);
    latest.publish(snapshot);
    latest.reads_since(Some(now - Duration::from_secs(20)));
    let router = server::router(Site::new(latest));
    let (status, reason) = ask(&router, "GET", "/readyz", &[]).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let expected = "the data are 60 s old: the source has not answered for 20 s\n";
    assert_eq!(reason, expected);
}
