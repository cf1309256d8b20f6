//! The conditions of classes, against an API server that refuses some of them.

#![allow(clippy::unwrap_used)]

mod state;

use std::{
    collections::BTreeSet,
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Method, Request, Response, StatusCode, request::Parts};
use kube::{Client, client::Body};
use nvlink_admission::{
    decide::Settings,
    view::{SharedView, View},
};
use nvlink_api::class::Class;
use nvlink_cluster::{enforced::Enforced, metrics::Metrics, seen::Seen, status::Writer};
use nvlink_runtime::lease::Candidate;
use serde_json::{Value, json};
use tokio::{sync::watch, time::sleep};

const CLASSES: &str = "/apis/nvlink-domains.io/v1alpha1/domainclasses";
/// Classes, the first of which is restricted.
const NAMES: [&str; 3] = ["a", "b", "c"];

/// An API server with classes, on which no list of pods ever ends.
#[derive(Default)]
struct Server {
    /// The classes whose status it refuses.
    refuses: BTreeSet<String>,
    /// The writes of a status that it accepted, and those that it refused.
    written: Vec<String>,
    /// The labels in the last one.
    labels: Value,
    refused: Vec<String>,
    /// Its CRD is that of the version before.
    is_old: bool,
}

fn spec(name: &str) -> Value {
    match name {
        "a" => json!({"access": {"mode": "Restricted"}}),
        _ => json!({}),
    }
}

fn class(name: &str) -> Value {
    json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass", "spec": spec(name),
        "metadata": {"name": name, "uid": name, "resourceVersion": "1", "generation": 1},
    })
}

impl Server {
    /// Returns the answer; `None` if there never is one.
    fn answer(&mut self, request: &Parts, body: &[u8]) -> Option<(StatusCode, Value)> {
        let (method, path) = (&request.method, request.uri.path());
        let query = request.uri.query().unwrap_or_default();
        if query.contains("watch=") || path == "/api/v1/pods" {
            return None;
        }
        if path.contains("/leases") {
            let lease =
                json!({"metadata": {"resourceVersion": "1"}, "spec": {"leaseTransitions": 1}});
            let found = *method != Method::GET;
            return Some(if found {
                (StatusCode::OK, lease)
            } else {
                failure(404)
            });
        }
        if path == CLASSES {
            let items: Vec<Value> = NAMES.map(class).into();
            return Some((
                StatusCode::OK,
                json!({"metadata": {"resourceVersion": "1"}, "items": items}),
            ));
        }
        let Some(name) = path
            .strip_prefix(CLASSES)
            .and_then(|rest| rest.strip_suffix("/status"))
        else {
            return Some((StatusCode::OK, json!({"metadata": {}, "items": []})));
        };
        let name = name.trim_start_matches('/').to_owned();
        let mut answer = class(&name);
        let written: Value = serde_json::from_slice(body).unwrap();
        answer["status"] = written["status"].clone();
        if self.is_old && !written["status"]["scopeLabels"].is_null() {
            self.refused.push(name);
            let mut refusal = failure(500);
            refusal.1["message"] = json!(".status.scopeLabels: field not declared in schema");
            return Some(refusal);
        }
        Some(match self.refuses.contains(&name) {
            true => {
                self.refused.push(name);
                failure(422)
            }
            false => {
                self.written.push(name);
                self.labels = written["status"]["scopeLabels"].clone();
                (StatusCode::OK, answer)
            }
        })
    }
}

fn failure(code: u16) -> (StatusCode, Value) {
    let status = json!({"status": "Failure", "code": code, "reason": "NotFound", "message": "no"});
    (StatusCode::from_u16(code).unwrap(), status)
}

fn client(server: &Arc<Mutex<Server>>) -> Client {
    let api = Arc::clone(server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let api = Arc::clone(&api);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let answer = api.lock().unwrap().answer(&parts, &body);
            let Some((status, body)) = answer else {
                return pending().await;
            };
            let body = Body::from(body.to_string().into_bytes());
            Ok::<_, tower::BoxError>(Response::builder().status(status).body(body)?)
        }
    });
    Client::new(service, "default")
}

/// Lets a leader write the conditions. Returns what tells it of the queue and of the policies.
fn follow(client: &Client) -> (watch::Sender<Option<Seen>>, watch::Sender<Option<Enforced>>) {
    let mut view = View::default();
    for name in NAMES {
        let spec = serde_json::from_value(spec(name)).unwrap();
        view.set_class(name, Ok(Class::new(name, &spec).unwrap()));
    }
    let candidate = Candidate::new(client.clone(), "system", "webhook", "a".to_owned());
    let leadership = candidate.leadership();
    tokio::spawn(candidate.run());
    let (queue, shared) = watch::channel(None);
    let (keeper, enforced) = watch::channel(None);
    let metrics = Arc::new(Metrics::default());
    let writer = Writer::new(
        client,
        &SharedView::new(view),
        &metrics,
        Vec::new(),
        Settings {
            rack_label: "example.com/rack".to_owned(),
            ..Settings::default()
        },
        shared,
        enforced,
    );
    tokio::spawn(writer.follow(leadership));
    (queue, keeper)
}

#[tokio::test(start_paused = true)]
async fn a_class_whose_status_is_refused_keeps_no_other_from_its_status() {
    let server = Arc::<Mutex<Server>>::default();
    server.lock().unwrap().refuses = ["a", "b"].map(str::to_owned).into();
    let client = client(&server);
    let (queue, keeper) = follow(&client);

    sleep(Duration::from_secs(3)).await;
    let written = || server.lock().unwrap().written.clone();
    let first: BTreeSet<String> = written().into_iter().collect();
    assert_eq!(first, ["c".to_owned()].into(), "the others are refused");
    sleep(Duration::from_secs(60)).await;
    let refused = server.lock().unwrap().refused.len();
    assert!(
        (8..=16).contains(&refused),
        "two classes in a minute: {refused}"
    );
    // It is written as soon as it may be, also while the search for pods goes on.
    server.lock().unwrap().refuses.clear();
    sleep(Duration::from_secs(20)).await;
    let second: BTreeSet<String> = written().into_iter().collect();
    assert_eq!(second, NAMES.map(str::to_owned).into());
    // Those that ask without the webhook judge by its labels.
    assert_eq!(
        server.lock().unwrap().labels,
        json!({"rack": "example.com/rack", "zone": "topology.kubernetes.io/zone"})
    );
    // The watch has not shown the writes yet when the writer looks again: it writes nothing twice.
    queue.send_modify(|_| {});
    keeper.send_modify(|_| {});
    sleep(Duration::from_secs(20)).await;
    assert_eq!(written().len(), NAMES.len(), "{:?}", written());
}

/// During an upgrade, the CRD may be that of the version before.
#[tokio::test(start_paused = true)]
async fn a_crd_without_the_labels_of_scopes_gets_the_conditions() {
    let server = Arc::<Mutex<Server>>::default();
    server.lock().unwrap().is_old = true;
    let client = client(&server);
    let (queue, _keeper) = follow(&client);
    sleep(Duration::from_secs(3)).await;
    queue.send_modify(|_| {});
    sleep(Duration::from_secs(60)).await;
    let server = server.lock().unwrap();
    let written: BTreeSet<&str> = server.written.iter().map(String::as_str).collect();
    assert_eq!(written, NAMES.into());
    assert_eq!((server.written.len(), server.refused.len()), (3, 3), "once");
}
