//! API servers that accept a connection and then send nothing, or only a part of the response.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::{pin::pin, time::Duration};

use futures::{StreamExt, stream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, Config, client::Body, runtime::watcher};
use nvlink_runtime::{
    client::{self, Limits},
    tls, watch,
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::Instant,
};

/// Answers each request on the nth connection with the nth text, and keeps the connection open.
async fn server(answers: &'static [&'static str]) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for answer in answers {
            let (mut connection, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut request = [0; 4096];
                while connection
                    .read(&mut request)
                    .await
                    .is_ok_and(|count| count > 0)
                {
                    connection.write_all(answer.as_bytes()).await.unwrap();
                }
            });
        }
        std::future::pending::<()>().await;
    });
    tls::install_provider();
    let limits = Limits {
        connect: Duration::from_secs(60),
        request: Duration::from_millis(200),
    };
    client::with(
        Config::new(format!("http://{address}").parse().unwrap()),
        limits,
    )
    .unwrap()
}

const NAMESPACE: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 67\r\n\r\n\
    {\"apiVersion\":\"v1\",\"kind\":\"Namespace\",\"metadata\":{\"name\":\"team-a\"}}";
const HALF: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 67\r\n\r\n{\"apiVersion\"";

#[tokio::test]
async fn an_unanswered_request_ends_and_the_next_uses_a_new_connection() {
    for frozen in [&["", NAMESPACE], &[HALF, NAMESPACE]] {
        let api: Api<Namespace> = Api::all(server(frozen).await);
        let error = api.get("team-a").await.unwrap_err();
        let reason = client::reason(&error);
        assert!(reason.contains("did not answer within 200ms"), "{reason}");
        let found = api.get("team-a").await.unwrap();
        assert_eq!(found.metadata.name.as_deref(), Some("team-a"));
    }
}

const BUSY: &str = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";

/// A server that says that it is busy has answered.
#[tokio::test]
async fn the_last_answer_of_a_busy_server_is_the_result() {
    let api: Api<Namespace> = Api::all(server(&[BUSY]).await);
    let error = api.get("team-a").await.unwrap_err();
    let kube::Error::Api(status) = &error else {
        panic!("{error}");
    };
    assert_eq!(status.code, 429);
    assert_eq!(
        client::reason(&error),
        "the API server answers 429 Too Many Requests, and did so for 200ms"
    );
}

/// It ends the connection with its answer, as servers that shut down do.
#[tokio::test]
async fn a_server_that_was_busy_is_asked_again() {
    const ONCE: &str =
        "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let api: Api<Namespace> = Api::all(server(&[ONCE, NAMESPACE]).await);
    let found = api.get("team-a").await.unwrap();
    assert_eq!(found.metadata.name.as_deref(), Some("team-a"));
}

#[tokio::test]
async fn a_watch_that_does_not_start_ends() {
    let api: Api<Namespace> = Api::all(server(&[""]).await);
    let Err(error) = api.watch(&kube::api::WatchParams::default(), "1").await else {
        panic!("it began");
    };
    assert!(client::reason(&error).contains("did not answer"), "{error}");
}

/// Returns a client whose lists are empty, whose first watch falls silent, and whose second
/// watch reports a namespace.
fn silent_watch() -> Client {
    let watches = std::sync::Arc::<std::sync::atomic::AtomicU32>::default();
    let service = tower::service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default();
        let body: UnsyncBoxBody<_, tower::BoxError> = if query.contains("watch=true") {
            let first = watches.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
            let event = json!({"type": "ADDED", "object": {
                "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "late", "resourceVersion": "2"}
            }});
            let events = (!first).then(|| Ok(Frame::data(format!("{event}\n").into())));
            StreamBody::new(stream::iter(events).chain(stream::pending())).boxed_unsync()
        } else {
            let list = json!({"apiVersion": "v1", "kind": "NamespaceList", "metadata": {"resourceVersion": "1"}, "items": []});
            Full::from(list.to_string())
                .map_err(|never| match never {})
                .boxed_unsync()
        };
        std::future::ready(Ok::<_, tower::BoxError>(Response::new(body)))
    });
    Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_falls_silent_is_restarted() {
    let api: Api<Namespace> = Api::all(silent_watch());
    let before = Instant::now();
    let mut events = pin!(watch::events(api, watcher::Config::default()));
    loop {
        if let watcher::Event::Apply(found) = events.next().await.unwrap().unwrap() {
            assert_eq!(found.metadata.name.as_deref(), Some("late"));
            break;
        }
    }
    let took = before.elapsed().as_secs();
    assert!((60..=70).contains(&took), "{took}");
}
