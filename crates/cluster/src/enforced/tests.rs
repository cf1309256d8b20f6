//! What a leader does whose term the index does not have yet, and one whose term is over.

use std::future::pending;

use http::{Request, Response};
use kube::client::Body;
use nvlink_runtime::lease::Candidate;
use serde_json::json;
use tokio::{spawn, time::Instant};

use super::*;

const TERM: i32 = 1;

/// The paths of the requests that change the index.
type Writes = Arc<Mutex<Vec<String>>>;

/// Returns the client of an API server that grants the Lease in term 1 and accepts each index.
fn client(writes: &Writes) -> Client {
    let writes = Arc::clone(writes);
    let service = tower::service_fn(move |request: Request<Body>| {
        let writes = Arc::clone(&writes);
        async move {
            let (parts, body) = request.into_parts();
            let path = parts.uri.path().to_owned();
            if parts.method == http::Method::GET && !path.contains("/leases") {
                return pending().await;
            }
            let answer = if path.contains("/leases") {
                json!({"metadata": {"resourceVersion": "1"}, "spec": {"leaseTransitions": TERM}})
                    .to_string()
            } else {
                writes.lock().unwrap().push(path);
                String::from_utf8(body.collect_bytes().await?.into()).unwrap()
            };
            let code = if parts.method == http::Method::GET {
                404
            } else {
                200
            };
            let answer = if code == 404 { failure() } else { answer };
            let answer = Body::from(answer.into_bytes());
            Ok::<_, tower::BoxError>(Response::builder().status(code).body(answer)?)
        }
    });
    Client::new(service, "default")
}

fn failure() -> String {
    json!({"status": "Failure", "code": 404, "reason": "NotFound", "message": "no"}).to_string()
}

fn keeper(client: &Client) -> (Keeper, channel::Receiver<Option<Enforced>>) {
    let told = channel::Sender::new(None);
    let tells = told.subscribe();
    (Keeper::new(client, told, &Arc::default()), tells)
}

/// The state once both watches have shown all: no class and no index.
fn shown() -> Shared {
    let shared = Shared::default();
    shared.change(|state| (state.listed, state.looked) = (true, true));
    shared
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_term_is_over_does_not_write_the_index() {
    let writes = Writes::default();
    let client = client(&writes);
    let (keeper, tells) = keeper(&client);
    let candidate = Candidate::new(client.clone(), "system", "webhook", "a".to_owned());
    let mut leads = candidate.leadership();
    spawn(candidate.run());
    assert_eq!(leads.gained().await.number, TERM);
    // It was paused, and now leads again in a later term: it works for the one before.
    let earlier = TERM - 1;
    let (shared, since) = (shown(), Duration::from_secs(30));
    drop(timeout(since, keeper.write_all(&shared, earlier, &leads)).await);
    assert_eq!(*writes.lock().unwrap(), [""; 0]);
    assert_eq!(*tells.borrow(), None);
    // In its own term, it writes once, and nothing while nothing changes.
    let changes = async {
        for _ in 0..5 {
            sleep(Duration::from_secs(1)).await;
            shared.change(|_| {});
        }
    };
    let keeps = timeout(since, keeper.write_all(&shared, TERM, &leads));
    drop(tokio::join!(keeps, changes));
    assert_eq!(writes.lock().unwrap().len(), 1);
    assert!(tells.borrow().as_ref().unwrap().admits(TERM));
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_waits_for_its_term_in_the_index() {
    let told = channel::Sender::new(None);
    let of = |term| Enforced {
        term: Some(term),
        ..Enforced::default()
    };
    let start = Instant::now();
    let waits = spawn(admitted(told.subscribe(), 7));
    sleep(Duration::from_secs(1)).await;
    told.send_replace(Some(of(6)));
    sleep(Duration::from_secs(1)).await;
    assert!(!waits.is_finished(), "the policies know the term before");
    told.send_replace(Some(of(7)));
    waits.await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_works_where_the_index_cannot_be_written() {
    let told = channel::Sender::new(None);
    let start = Instant::now();
    admitted(told.subscribe(), 7).await;
    assert_eq!(start.elapsed(), FENCE, "nothing is known of the index");
    told.send_replace(Some(Enforced {
        problem: Some("no such CRD".to_owned()),
        ..Enforced::default()
    }));
    admitted(told.subscribe(), 7).await;
    assert_eq!(start.elapsed(), FENCE, "it cannot be written");
}
