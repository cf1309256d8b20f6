use std::sync::Mutex;

use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// An API server with one Lease.
#[derive(Clone, Default)]
struct Api(Arc<Mutex<Server>>);

#[derive(Default)]
struct Server {
    lease: Option<Value>,
    version: u64,
    /// Identities whose requests are never answered.
    silent: Vec<&'static str>,
}

impl Server {
    fn answer(&mut self, method: &Method, body: &[u8]) -> (StatusCode, Value) {
        let failure = |code: StatusCode, reason: &str| {
            let status = json!({"status": "Failure", "code": code.as_u16(), "reason": reason, "message": ""});
            (code, status)
        };
        let version = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
        match (method, &self.lease) {
            (&Method::GET, None) => return failure(StatusCode::NOT_FOUND, "NotFound"),
            (&Method::GET, Some(lease)) => return (StatusCode::OK, lease.clone()),
            (&Method::POST, Some(_)) => return failure(StatusCode::CONFLICT, "Conflict"),
            (&Method::PUT, None) => return failure(StatusCode::NOT_FOUND, "NotFound"),
            _ => {}
        }
        let mut wanted: Value = serde_json::from_slice(body).unwrap();
        if self
            .lease
            .as_ref()
            .is_some_and(|lease| version(lease) != version(&wanted))
        {
            return failure(StatusCode::CONFLICT, "Conflict");
        }
        self.version += 1;
        wanted["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.lease = Some(wanted.clone());
        (StatusCode::OK, wanted)
    }
}

impl Api {
    /// Returns the client of the replica `identity`.
    fn client(&self, identity: &'static str) -> Client {
        let server = Arc::clone(&self.0);
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let silent = server.lock().unwrap().silent.contains(&identity);
                if silent {
                    std::future::pending::<()>().await;
                }
                let (status, answer) = server.lock().unwrap().answer(&head.method, &body);
                let response = Response::builder().status(status);
                let body = Body::from(answer.to_string().into_bytes());
                Ok::<_, tower::BoxError>(response.body(body)?)
            }
        });
        Client::new(service, "default")
    }

    fn candidate(&self, identity: &'static str) -> (Candidate, Leadership) {
        let client = self.client(identity);
        let candidate = Candidate::new(client, "nvlink-system", "webhook", identity.to_owned());
        let leadership = candidate.leadership();
        (candidate, leadership)
    }

    fn silence(&self, identity: &'static str) {
        self.0.lock().unwrap().silent.push(identity);
    }

    fn number(&self) -> i32 {
        let server = self.0.lock().unwrap();
        let number = server.lease.as_ref().unwrap()["spec"]["leaseTransitions"].as_i64();
        number.unwrap().try_into().unwrap()
    }

    fn holder(&self) -> String {
        let server = self.0.lock().unwrap();
        server.lease.as_ref().unwrap()["spec"]["holderIdentity"]
            .as_str()
            .unwrap()
            .to_owned()
    }
}

async fn seconds(count: u64) {
    sleep(Duration::from_secs(count)).await;
}

#[tokio::test(start_paused = true)]
async fn one_of_two_leads_as_long_as_it_renews() {
    let api = Api::default();
    let ((a, leads_a), (b, leads_b)) = (api.candidate("a"), api.candidate("b"));
    tokio::spawn(a.run());
    seconds(1).await;
    tokio::spawn(b.run());
    for _ in 0..100 {
        seconds(1).await;
        assert_eq!(leads_a.term().unwrap().number, 1);
        assert_eq!(leads_b.term(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_candidates_get_one_leader() {
    let api = Api::default();
    let candidates = ["a", "b", "c"].map(|identity| api.candidate(identity));
    let leads = candidates.map(|(candidate, leads)| {
        tokio::spawn(candidate.run());
        leads
    });
    seconds(5).await;
    let count = leads.iter().filter(|leads| leads.term().is_some()).count();
    assert_eq!(count, 1);
}

#[tokio::test(start_paused = true)]
async fn another_leads_after_a_leader_was_killed() {
    let api = Api::default();
    let ((a, mut leads_a), (b, mut leads_b)) = (api.candidate("a"), api.candidate("b"));
    let killed = tokio::spawn(a.run());
    leads_a.gained().await;
    tokio::spawn(b.run());
    seconds(60).await;
    killed.abort();
    let before = Instant::now();
    let term = leads_b.gained().await;
    assert_eq!(term.number, 2);
    let took = before.elapsed();
    assert!(
        took >= DURATION - LOOK && took <= DURATION + 2 * LOOK,
        "{took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_stops_leading_before_another_starts() {
    let api = Api::default();
    let ((a, mut leads_a), (b, mut leads_b)) = (api.candidate("a"), api.candidate("b"));
    tokio::spawn(a.run());
    let term = leads_a.gained().await;
    tokio::spawn(b.run());
    seconds(30).await;
    api.silence("a");
    let cut = Instant::now();
    leads_a.lost(&term).await;
    assert!(cut.elapsed() <= TERM, "{:?}", cut.elapsed());
    assert_eq!(leads_a.term(), None);
    assert_eq!(leads_b.term(), None, "the lease still lasts");
    assert_eq!(leads_b.gained().await.number, 2);
    assert_eq!(api.holder(), "b");
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_candidate_is_dropped_stops_leading() {
    let api = Api::default();
    let (a, mut leads) = api.candidate("a");
    let running = tokio::spawn(a.run());
    let term = leads.gained().await;
    running.abort();
    leads.lost(&term).await;
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_acquired_at_once() {
    let api = Api::default();
    let ((a, mut leads_a), (b, mut leads_b)) = (api.candidate("a"), api.candidate("b"));
    tokio::spawn(a.clone().run());
    leads_a.gained().await;
    tokio::spawn(b.clone().run());
    seconds(10).await;
    a.resign(Duration::from_secs(2)).await;
    assert_eq!(leads_a.term(), None);
    assert_eq!(api.holder(), "");
    let before = Instant::now();
    assert_eq!(leads_b.gained().await.number, 2);
    assert!(before.elapsed() <= LOOK);
    seconds(60).await;
    assert_eq!(leads_a.term(), None, "it resigned for good");
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_releases_the_lease_and_it_does_not_wait_when_cut_off() {
    let api = Api::default();
    let ((a, mut leads_a), (b, _)) = (api.candidate("a"), api.candidate("b"));
    tokio::spawn(a.clone().run());
    leads_a.gained().await;
    tokio::spawn(b.clone().run());
    seconds(10).await;
    b.resign(Duration::from_secs(2)).await;
    assert_eq!(api.holder(), "a");
    api.silence("a");
    let before = Instant::now();
    a.resign(Duration::from_secs(2)).await;
    assert_eq!(before.elapsed(), Duration::from_secs(2));
    assert_eq!(leads_a.term(), None);
}

/// Something that somebody does to the Lease of a leader whose number is 7.
type Meddle = fn(&mut Option<Value>);

#[tokio::test(start_paused = true)]
async fn a_term_is_over_when_the_lease_has_another_number() {
    let cases: [(Meddle, i32); 4] = [
        (|lease| *lease = None, 8),
        (|lease| lease.as_mut().unwrap()["spec"] = json!({}), 8),
        // An old copy: its number was used before.
        (
            |lease| lease.as_mut().unwrap()["spec"]["leaseTransitions"] = json!(3),
            8,
        ),
        (
            |lease| lease.as_mut().unwrap()["spec"]["leaseTransitions"] = json!(12),
            12,
        ),
    ];
    for (case, (meddle, next)) in cases.into_iter().enumerate() {
        let api = Api::default();
        let (a, mut leads) = api.candidate("a");
        let running = tokio::spawn(a.run());
        leads.gained().await;
        api.0.lock().unwrap().lease.as_mut().unwrap()["spec"]["leaseTransitions"] = json!(7);
        seconds(5).await;
        let term = leads.gained().await;
        assert_eq!(term.number, 7);
        let quiet = timeout(Duration::from_secs(60), leads.lost(&term)).await;
        assert!(quiet.is_err(), "its renewals are no loss");
        meddle(&mut api.0.lock().unwrap().lease);
        let before = Instant::now();
        leads.lost(&term).await;
        assert!(before.elapsed() <= LOOK, "case {case}");
        // The API server compares what the leader writes with the number in the Lease.
        assert_eq!(leads.gained().await.number, next, "case {case}");
        assert_eq!(api.number(), next, "case {case}");
        running.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_stops_when_somebody_takes_the_lease() {
    let api = Api::default();
    let (a, mut leads) = api.candidate("a");
    tokio::spawn(a.run());
    let term = leads.gained().await;
    {
        let mut server = api.0.lock().unwrap();
        let lease = server.lease.as_mut().unwrap();
        lease["spec"]["holderIdentity"] = json!("kubectl");
        lease["metadata"]["resourceVersion"] = json!("somebody's");
    }
    let before = Instant::now();
    leads.lost(&term).await;
    assert!(before.elapsed() <= LOOK);
}

#[test]
fn identities_differ() {
    assert_ne!(identity(), identity());
}
