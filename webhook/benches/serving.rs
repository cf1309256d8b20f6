//! The cost of a request to the webhook over TLS, compared with two handlers on the
//! same axum and rustls: the smallest mutating handler, which parses the review into
//! a [`Value`] and allows it, and one that only reads the bytes. Each server has one
//! thread; the webhook has 10,000 nodes and 100 classes. All run in turns in one run.
//! Prints a table of the CPU time of each request on the server.

#![allow(clippy::expect_used)]

mod client;
mod support;

use std::{
    fs,
    net::SocketAddr,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Bytes,
    extract::{Request, State},
    http::header::CONTENT_TYPE,
    middleware::{Next, from_fn_with_state},
    response::Response,
    routing::post,
};
use axum_server::{Handle, tls_rustls::RustlsConfig};
use client::Client;
use nvlink_admission::{
    admit::Admission, authorize::ListedAuthorizer, decide::Settings, view::SharedView,
};
use nvlink_webhook::{
    admission::server::{PATH, Webhook, admission_router},
    metrics::Metrics,
};
use serde_json::{Value, json};
use tokio::runtime::Builder;

/// Connections kept busy: the API server has several to each webhook.
const CONNECTIONS: usize = 4;
const ROUNDS: usize = 10;
const ROUND: Duration = Duration::from_millis(500);
/// The goal: at most this multiple of the CPU time of the handler that parses and allows.
const GOAL: f64 = 3.0;

type Times = Arc<Mutex<Vec<Duration>>>;

/// A running server, and its measurements.
struct Side {
    name: &'static str,
    address: SocketAddr,
    /// The file in which the kernel reports the CPU time of its thread.
    usage: String,
    /// The time that the server took for each request.
    served: Times,
    /// The time that the clients waited for each response.
    waited: Vec<Duration>,
    busy: Duration,
    took: Duration,
}

impl Side {
    fn start(name: &'static str, router: Router, tls: (&str, &str)) -> Self {
        let served = Times::default();
        let router = router.layer(from_fn_with_state(Arc::clone(&served), timed));
        let (certificate, key) = (tls.0.as_bytes().to_vec(), tls.1.as_bytes().to_vec());
        let (sender, started) = mpsc::channel();
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let config = RustlsConfig::from_pem(certificate, key).await;
                let handle = Handle::new();
                let address = SocketAddr::from(([127, 0, 0, 1], 0));
                let server = axum_server::bind_rustls(address, config.expect("a certificate"))
                    .handle(handle.clone())
                    .serve(router.into_make_service());
                let listening = async {
                    let this = fs::read_link("/proc/thread-self").expect("Linux");
                    let address = handle.listening().await.expect("it listens");
                    sender.send((address, this)).expect("somebody waits");
                };
                tokio::join!(server, listening).0.expect("it serves");
            });
        });
        let (address, thread) = started.recv().expect("it starts");
        Self {
            name,
            address,
            usage: format!("/proc/{}/schedstat", thread.display()),
            served,
            waited: Vec::new(),
            busy: Duration::ZERO,
            took: Duration::ZERO,
        }
    }

    /// Returns the CPU time that its thread has used so far.
    fn used(&self) -> Duration {
        let text = fs::read_to_string(&self.usage).expect("the thread is there");
        let nanoseconds = text.split(' ').next().and_then(|text| text.parse().ok());
        Duration::from_nanos(nanoseconds.expect("a number"))
    }

    /// Keeps the server busy for one round.
    fn load(&mut self, clients: &mut [Client], body: &[u8]) {
        let (before, start) = (self.used(), Instant::now());
        let waited: Vec<_> = thread::scope(|scope| {
            let clients = clients.iter_mut();
            let running: Vec<_> = clients
                .map(|client| scope.spawn(|| client.repeat(body, start + ROUND)))
                .collect();
            let ended = running.into_iter().map(|one| one.join().expect("answers"));
            ended.flatten().collect()
        });
        self.took += start.elapsed();
        self.busy += self.used() - before;
        self.waited.extend(waited);
    }

    fn forget(&mut self) {
        self.served.lock().expect("no panic").clear();
        self.waited.clear();
        (self.busy, self.took) = Default::default();
    }

    /// Returns the CPU time per request, in microseconds.
    fn cpu(&self) -> f64 {
        self.busy.as_secs_f64() * 1e6 / self.waited.len() as f64
    }

    fn print(&mut self) {
        let (cpu, seen) = (
            self.cpu(),
            self.waited.len() as f64 / self.took.as_secs_f64(),
        );
        let mut served = self.served.lock().expect("no panic");
        println!(
            "  {:8} {cpu:7.1} µs CPU/request   {seen:6.0} requests/s   client {:?} / {:?}   server {:?} / {:?}",
            self.name,
            quantile(&mut self.waited, 50),
            quantile(&mut self.waited, 99),
            quantile(&mut served, 50),
            quantile(&mut served, 99),
        );
    }
}

/// Records the time that the server takes for a request, from its head to the response.
async fn timed(State(times): State<Times>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let response = next.run(request).await;
    times.lock().expect("no panic").push(start.elapsed());
    response
}

fn quantile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    let at = times.len() * percent / 100;
    times.get(at).copied().unwrap_or_default()
}

fn allowed(uid: &str) -> String {
    let answer = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {"uid": uid, "allowed": true}
    });
    answer.to_string()
}

/// Returns a router that reads the request and allows it.
fn nothing() -> Router {
    let answer = allowed("705ab4f5-6393-11e8-b7cc-42010a800002");
    let handler = move |_: Bytes| async move { ([(CONTENT_TYPE, "application/json")], answer) };
    Router::new().route(PATH, post(handler))
}

/// Returns a router that parses the request and allows it.
fn parsing() -> Router {
    let handler = |body: Bytes| async move {
        let review: Value = serde_json::from_slice(&body).expect("a review");
        let uid = review["request"]["uid"].as_str().expect("an id");
        ([(CONTENT_TYPE, "application/json")], allowed(uid))
    };
    Router::new().route(PATH, post(handler))
}

fn whole() -> Router {
    let admission = Admission {
        view: SharedView::new(support::cluster(10_000, 100)),
        authorizer: ListedAuthorizer::default(),
        settings: Settings::default(),
    };
    let metrics = Arc::new(Metrics::default());
    admission_router(Arc::new(Webhook {
        admission,
        metrics,
        recent: Default::default(),
    }))
}

/// Returns a pod as people write them.
fn plain() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "train", "namespace": "ci", "labels": {"app": "train"}},
        "spec": {
            "containers": [{
                "name": "main", "image": "nvcr.io/nvidia/pytorch:25.03-py3",
                "command": ["torchrun", "--nproc-per-node=4", "train.py"],
                "env": [{"name": "HF_HOME", "value": "/data/hf"}],
                "resources": {"limits": {"nvidia.com/gpu": "4", "cpu": "32", "memory": "256Gi"}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}]
            }],
            "restartPolicy": "Never", "serviceAccountName": "default",
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        }
    })
}

/// Returns the body that the API server sends.
fn review(pod: &Value) -> Vec<u8> {
    let review = json!({
        "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "train", "namespace": "ci", "operation": "CREATE",
            "userInfo": {"username": "system:serviceaccount:ci:runner", "groups": ["system:authenticated"]},
            "object": pod, "oldObject": null, "dryRun": false
        }
    });
    review.to_string().into_bytes()
}

fn main() {
    rustls::crypto::ring::default_provider()
        .install_default()
        .expect("the only one");
    // Log lines are formatted as in production, where stderr is not a terminal, and discarded.
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(std::io::sink)
        .init();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let tls = (certificate.as_str(), key.as_str());
    let mut sides = [
        Side::start("nothing", nothing(), tls),
        Side::start("parsing", parsing(), tls),
        Side::start("webhook", whole(), tls),
    ];
    for (name, pod) in [
        ("a pod of a script", plain()),
        ("a pod of a CI job", support::pod()),
    ] {
        let body = review(&pod);
        println!("{name}, {} bytes (p50 / p99):", body.len());
        let mut clients = sides.each_ref().map(|side| {
            let connect = |_| Client::new(side.address, &certificate);
            (0..CONNECTIONS).map(connect).collect::<Vec<_>>()
        });
        // The first round warms up.
        for round in 0..=ROUNDS {
            for (side, clients) in sides.iter_mut().zip(&mut clients) {
                side.load(clients, &body);
                if round == 0 {
                    side.forget();
                }
            }
        }
        sides.iter_mut().for_each(Side::print);
        let [_, parsing, webhook] = sides.each_ref().map(Side::cpu);
        let times = webhook / parsing;
        println!("  the webhook uses {times:.2} times the CPU time of parsing (goal: {GOAL})");
        sides.iter_mut().for_each(Side::forget);
    }
}
