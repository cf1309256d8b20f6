//! Writes against an API server that fails.

use std::{
    cell::RefCell,
    io,
    sync::{
        Mutex, Once,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use nvlink_runtime::lease::Candidate;
use nvlink_topology::labels;
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::*;
use crate::claim::{self, Named};

/// In place of the status of an answer: there is none.
const SILENCE: StatusCode = StatusCode::CONTINUE;
const DOWN: &str =
    "Internal error occurred: failed calling webhook \"x.example.com\": connection refused";
/// A write that ends at all ends within this time.
const LONG: Duration = Duration::from_secs(300);

/// How the API server answers requests about pods and claims, by the number of those before.
type Answers = fn(&Method, usize) -> (StatusCode, Value);

/// An API server with one pod that waits.
#[derive(Clone)]
struct Api {
    answers: Answers,
    count: Arc<AtomicUsize>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Api {
    fn new(answers: Answers) -> Self {
        let (count, asked) = Default::default();
        Self {
            answers,
            count,
            asked,
        }
    }

    fn answer(&self, request: &Request<Body>) -> (StatusCode, Value) {
        let (method, uri) = (request.method(), request.uri());
        if uri.path().contains("/leases") {
            let lease =
                json!({"metadata": {"resourceVersion": "1"}, "spec": {"leaseTransitions": 1}});
            return match *method {
                Method::GET => failure(StatusCode::NOT_FOUND, ""),
                _ => (StatusCode::OK, lease),
            };
        }
        let asked = format!("{method} {uri}");
        self.asked.lock().unwrap().push(asked);
        (self.answers)(method, self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns how the release of `pod` ends, and how long it takes.
    async fn release(&self, pod: Value) -> (Outcome, Duration) {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (status, body) = api.answer(&request);
            let body = Body::from(body.to_string().into_bytes());
            async move {
                if status == SILENCE {
                    std::future::pending::<()>().await;
                }
                Ok::<_, tower::BoxError>(Response::builder().status(status).body(body)?)
            }
        });
        let client = Client::new(service, "default");
        let candidate = Candidate::new(client.clone(), "system", "webhook", "a".to_owned());
        let mut leadership = candidate.leadership();
        tokio::spawn(candidate.run());
        let term = leadership.gained().await.number;
        let writer = Writer::new(&client, &leadership, term, &Arc::default());
        let placement = json!({
            "plan": "1-1", "at": "2026-08-01T10:00:00Z", "node": "n1", "gpus": [0], "rank": 0,
            "uuids": ["GPU-0"],
            "computeDomain": pod["metadata"]["annotations"].get("test/compute-domain"),
        });
        let one = Move {
            pod: ("team/a".into(), "uid".to_owned()),
            document: pod,
            placement: serde_json::from_value(placement).unwrap(),
            asks: Asks {
                device_class: "gpu.nvidia.com".to_owned(),
                broken: false,
            },
            channel: None,
        };
        let began = Instant::now();
        let mut outcomes = timeout(LONG, writer.start(vec![one])).await.unwrap();
        (outcomes.remove(0).1, began.elapsed())
    }
}

fn failure(code: StatusCode, message: &str) -> (StatusCode, Value) {
    let reason = match code {
        StatusCode::NOT_FOUND => "NotFound",
        _ => "InternalError",
    };
    let status = json!({
        "kind": "Status", "status": "Failure", "code": code.as_u16(), "message": message,
        "reason": reason,
    });
    (code, status)
}

fn down() -> (StatusCode, Value) {
    failure(StatusCode::INTERNAL_SERVER_ERROR, DOWN)
}

fn pod(version: &str) -> Value {
    json!({
        "metadata": {
            "namespace": "team", "name": "a", "uid": "uid", "resourceVersion": version,
            "annotations": {},
        },
        "spec": {
            "schedulingGates": [{"name": labels::QUEUE_GATE}],
            "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": 1}}}],
        },
        "status": {"phase": "Pending"},
    })
}

/// Returns a pod that gets its GPU by a claim of the queue.
fn claiming() -> Value {
    let mut pod = pod("1");
    let claim = json!({"name": labels::CLAIM, "resourceClaimName": "a-gpus"});
    pod["spec"]["resourceClaims"] = json!([claim]);
    pod
}

fn assert_refused(outcome: &Outcome) {
    assert!(
        matches!(outcome, Outcome::Refused(why) if why.contains("x.example.com")),
        "{outcome:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_on_which_a_webhook_of_others_always_fails_is_refused() {
    let api = Api::new(|method, _| match *method {
        Method::GET => (StatusCode::OK, pod("1")),
        _ => down(),
    });
    let (outcome, took) = api.release(pod("1")).await;
    assert_refused(&outcome);
    assert!(took > Duration::from_secs(2), "it may be a moment's matter");
    let asked = api.asked.lock().unwrap();
    let writes = asked.iter().filter(|one| one.starts_with("PATCH"));
    let in_time = |one: &String| one.contains("timeout=4s");
    assert!(writes.clone().all(in_time), "{asked:?}");
    assert!(writes.count() > 4, "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_changed_while_the_api_server_failed_is_no_refused_one() {
    let api = Api::new(|method, count| match *method {
        Method::GET => (StatusCode::OK, pod("2")),
        _ if count > 6 => (StatusCode::OK, pod("3")),
        _ => down(),
    });
    let (outcome, _) = api.release(pod("1")).await;
    assert!(matches!(outcome, Outcome::Written(_)), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_refused_while_the_api_server_itself_is_away_or_busy() {
    let busy: Answers = |method, count| match (count, method) {
        (..30, _) => failure(StatusCode::TOO_MANY_REQUESTS, "busy"),
        (_, &Method::GET) => (StatusCode::OK, pod("1")),
        _ => (StatusCode::OK, pod("2")),
    };
    // etcd is down: it can neither read nor write.
    let away: Answers = |_, count| match count {
        ..40 => failure(StatusCode::INTERNAL_SERVER_ERROR, "etcdserver: no leader"),
        _ => (StatusCode::OK, pod("2")),
    };
    for answers in [busy, away] {
        let (outcome, _) = Api::new(answers).release(pod("1")).await;
        assert!(matches!(outcome, Outcome::Written(_)), "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_on_which_a_webhook_of_others_always_fails_is_refused() {
    let api = Api::new(|method, _| match *method {
        Method::POST => down(),
        _ => failure(StatusCode::NOT_FOUND, ""),
    });
    let (outcome, took) = api.release(claiming()).await;
    assert_refused(&outcome);
    assert!(took > Duration::from_secs(2), "it may be a moment's matter");
}

/// Returns a pod that names a volume and a claim of somebody else.
fn needing() -> Value {
    let mut pod = claiming();
    let other = json!({"name": "nic", "resourceClaimName": "nic"});
    pod["spec"]["resourceClaims"]
        .as_array_mut()
        .unwrap()
        .push(other);
    pod["spec"]["volumes"] = json!([
        {"name": "scratch", "emptyDir": {}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
    ]);
    pod
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_released_only_when_all_that_it_names_exists() {
    // The claim exists, and the volume does not.
    let api = Api::new(|_, count| match count {
        0 => (
            StatusCode::OK,
            json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "nic"}}),
        ),
        _ => failure(StatusCode::NOT_FOUND, "not found"),
    });
    let (outcome, _) = api.release(needing()).await;
    assert!(
        matches!(&outcome, Outcome::Refused(why) if why.contains("PersistentVolumeClaim data does not exist")),
        "{outcome:?}"
    );
    let asked = api.asked.lock().unwrap();
    assert!(asked.iter().all(|one| one.starts_with("GET")), "{asked:?}");
    assert!(asked[0].contains("/resourceclaims/nic"), "{asked:?}");
    assert!(
        asked[1].contains("/persistentvolumeclaims/data"),
        "{asked:?}"
    );
}

/// A chart of an earlier version has no right to read PersistentVolumeClaims.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_holds_no_pod_back() {
    let api = Api::new(|method, _| match *method {
        Method::GET => failure(StatusCode::FORBIDDEN, "no"),
        _ => (StatusCode::OK, pod("2")),
    });
    let mut pod = needing();
    pod["spec"]["resourceClaims"] = json!([]);
    let (outcome, _) = api.release(pod).await;
    assert!(matches!(outcome, Outcome::Written(_)), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_made_although_the_api_server_failed_is_there() {
    let api = Api::new(|method, _| match *method {
        Method::POST => down(),
        Method::PATCH => (StatusCode::OK, pod("2")),
        _ => {
            let named = Named::of(&claiming()).unwrap();
            let asks = Asks {
                device_class: "gpu.nvidia.com".to_owned(),
                broken: false,
            };
            let place = json!({"plan": "1-1", "at": "2026-08-01T10:00:00Z", "uuids": ["GPU-0"]});
            let place = serde_json::from_value(place).unwrap();
            let claim = claim::object(&claiming(), &named, &place, &asks, 1);
            (StatusCode::OK, serde_json::to_value(claim).unwrap())
        }
    });
    let (outcome, _) = api.release(claiming()).await;
    assert!(matches!(outcome, Outcome::Written(_)), "{outcome:?}");
}

/// Returns the name of the ComputeDomain that is made for the pod.
fn own() -> String {
    channel::domain_name("gang g", ["uid"])
}

/// Returns how a gang of one pod ends that gets a ComputeDomain, if the API server answers so to
/// requests for it (POST, or GET of its template).
async fn with_domain(domain: &str, answers: Answers) -> Outcome {
    let api = Api::new(answers);
    let mut pod = pod("1");
    let claim = json!({"name": labels::CHANNEL, "resourceClaimName": "a-channel"});
    pod["spec"]["resourceClaims"] = json!([claim]);
    pod["metadata"]["annotations"] = json!({ "test/compute-domain": domain });
    api.release(pod).await.0
}

#[tokio::test(start_paused = true)]
async fn a_domain_that_cannot_be_made_says_what_to_do() {
    for (code, expected) in [
        (StatusCode::NOT_FOUND, "install NVIDIA's DRA driver"),
        (
            StatusCode::FORBIDDEN,
            "set webhook.computeDomains of the chart",
        ),
    ] {
        let outcome = match code {
            StatusCode::NOT_FOUND => {
                with_domain(&own(), |_, _| failure(StatusCode::NOT_FOUND, "not found")).await
            }
            _ => with_domain(&own(), |_, _| failure(StatusCode::FORBIDDEN, "no")).await,
        };
        assert!(
            matches!(&outcome, Outcome::Refused(why) if why.contains(expected)),
            "{outcome:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_template_of_another_domain_is_not_used() {
    let domain = own();
    let outcome = with_domain(&domain, |method, _| match *method {
        Method::POST => (StatusCode::CREATED, json!({"metadata": {"uid": "mine"}})),
        _ => (
            StatusCode::OK,
            json!({
                "metadata": {"name": "d", "labels": {channel::OF: "theirs"}},
                "spec": {"spec": {}},
            }),
        ),
    });
    let outcome = outcome.await;
    assert!(
        matches!(&outcome, Outcome::Refused(why) if why.contains("is not that of ComputeDomain nvlink-domains-g-")),
        "{outcome:?}"
    );
}

/// The channels of the others would not be those of a domain that is made anew.
#[tokio::test(start_paused = true)]
async fn a_pod_that_joins_its_gang_makes_no_domain() {
    let outcome = with_domain("nvlink-domains-g-0", |method, _| match *method {
        Method::GET => failure(StatusCode::NOT_FOUND, "not found"),
        _ => (StatusCode::CREATED, json!({"metadata": {"uid": "new"}})),
    });
    let outcome = outcome.await;
    assert!(
        matches!(&outcome, Outcome::Refused(why) if why.contains("start the gang anew")),
        "{outcome:?}"
    );
}

/// etcd's refusal comes as a failure of the API server, but trying again does not help.
#[tokio::test(start_paused = true)]
async fn a_pod_that_is_too_large_is_refused_at_once() {
    let answers: Answers = |_, _| {
        failure(
            StatusCode::INTERNAL_SERVER_ERROR,
            "etcdserver: request is too large",
        )
    };
    let api = Api::new(answers);
    let (outcome, _) = api.clone().release(pod("1")).await;
    let Outcome::Refused(reason) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(reason.contains("too large"), "{reason}");
    assert_eq!(api.count.load(Ordering::Relaxed), 1);
}

thread_local! {
    /// What the test of this thread has logged.
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

struct Log;

impl io::Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        LOG.with_borrow_mut(|log| log.write(text))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the lines that are logged while the release of `pod` ends. The subscriber is that of all
/// threads: with one of this thread alone, what another one registers first is never logged.
async fn logged(answers: Answers, pod: Value) -> Vec<String> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let subscriber = tracing_subscriber::fmt().with_writer(|| Log);
        tracing::subscriber::set_global_default(subscriber.with_ansi(false).finish()).unwrap();
    });
    LOG.take();
    let (outcome, _) = Api::new(answers).release(pod).await;
    assert!(matches!(outcome, Outcome::Written(_)), "{outcome:?}");
    let text = String::from_utf8(LOG.take()).unwrap();
    let lines = text.lines().filter(|line| line.contains("is not answered"));
    lines.map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_not_answered_is_logged_with_its_object() {
    let silent: Answers = |_, count| match count {
        ..10 => (SILENCE, Value::Null),
        _ => (StatusCode::OK, pod("2")),
    };
    let busy: Answers = |_, count| match count {
        ..10 => failure(StatusCode::TOO_MANY_REQUESTS, "too many requests"),
        _ => (StatusCode::OK, pod("2")),
    };
    for (pod, answers, words, reason) in [
        (
            pod("1"),
            silent,
            ["Pod", "a", "release"],
            "no answer in 5 s",
        ),
        (
            claiming(),
            silent,
            ["ResourceClaim", "a-gpus", "claim"],
            "no answer in 5 s",
        ),
        (pod("1"), busy, ["Pod", "a", "release"], "too many requests"),
    ] {
        let lines = logged(answers, pod).await;
        let [kind, name, write] = words;
        let object =
            format!(r#"kind="{kind}" namespace="team" name="{name}" write="{write}" seconds="#);
        let right = |line: &String| line.contains(&object) && line.contains(reason);
        assert!(lines.iter().all(right), "{lines:?}");
        assert!((1..3).contains(&lines.len()), "once a minute: {lines:?}");
    }
    let briefly: Answers = |_, count| match count {
        ..3 => failure(StatusCode::TOO_MANY_REQUESTS, "too many requests"),
        _ => (StatusCode::OK, pod("2")),
    };
    assert_eq!(logged(briefly, pod("1")).await, [""; 0], "no news");
}
