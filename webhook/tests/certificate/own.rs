//! The webhook's own CA in its Secret.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    body::{Body, to_bytes},
    http::{Method, Request, Response},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use kube::Client;
use nvlink_webhook::{
    certificate::pki::{
        PkiError,
        keeper::{Keeper, Upkeep},
        own::OwnCertificate,
    },
    certificate::registered::Registered,
    health::Readiness,
    metrics::Metrics,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{pair, reloads};

/// An API server that has at most one object, a Secret, and may be broken.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<(Option<Value>, bool)>>);

impl Store {
    fn client(&self) -> Client {
        let store = self.clone();
        let answer = move |request: Request<kube::client::Body>| {
            let store = store.clone();
            async move {
                let (method, body) = (request.method().clone(), Body::new(request.into_body()));
                let body = to_bytes(body, usize::MAX).await.unwrap();
                let (code, body) = store.answer(&method, &body);
                let response = Response::builder().status(code);
                Ok::<_, Infallible>(response.body(Body::from(body.to_string())).unwrap())
            }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    fn answer(&self, method: &Method, body: &[u8]) -> (u16, Value) {
        let status = |code: u16, reason: &str| {
            let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": ""});
            (code, status)
        };
        let (secret, broken) = &mut *self.0.lock().unwrap();
        if *broken {
            return status(500, "InternalError");
        }
        if *method != Method::GET {
            *secret = Some(serde_json::from_slice(body).unwrap());
        }
        secret
            .clone()
            .map_or_else(|| status(404, "NotFound"), |secret| (200, secret))
    }

    fn secret(&self) -> Option<Value> {
        self.0.lock().unwrap().0.clone()
    }

    fn set(&self, secret: Option<Value>, broken: bool) {
        *self.0.lock().unwrap() = (secret, broken);
    }
}

/// Returns a Secret that somebody created by hand.
fn foreign(certificate: &str, key: &str) -> Value {
    let data = [
        ("tls.crt", certificate),
        ("tls.key", key),
        ("ca.crt", certificate),
    ];
    let data = data.map(|(name, text)| (name, STANDARD.encode(text)));
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ca", "namespace": "nvlink"},
        "data": data.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
    })
}

async fn start(store: &Store, validity: Duration) -> Result<OwnCertificate, PkiError> {
    let secret = "nvlink/ca".parse().unwrap();
    let names = vec!["localhost".to_owned()];
    let upkeep = Upkeep::Here(store.client());
    OwnCertificate::start(upkeep, secret, names, validity, None).await
}

#[tokio::test]
async fn a_certificate_that_may_not_sign_is_not_a_ca() {
    let store = Store::default();
    let leaf = pair();
    store.set(Some(foreign(&leaf.cert, &leaf.key)), false);
    let before = store.secret();
    let error = start(&store, Duration::from_secs(3600))
        .await
        .err()
        .unwrap();
    let error = error.to_string();
    assert!(
        error.contains("nvlink/ca") && error.contains("not a CA certificate"),
        "{error}"
    );
    assert_eq!(store.secret(), before);
}

#[tokio::test]
async fn a_ca_of_somebody_else_is_never_replaced() {
    let store = Store::default();
    // One CA is due for renewal but valid, the other has expired.
    for (end, fits) in [(2050, true), (2000, false)] {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = rcgen::date_time_ymd(1970, 1, 1);
        params.not_after = rcgen::date_time_ymd(end, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        store.set(Some(foreign(&certificate, &key.serialize_pem())), false);
        let before = store.secret();
        let started = start(&store, Duration::from_secs(3600)).await;
        assert_eq!(started.is_ok(), fits);
        assert_eq!(store.secret(), before);
        // With the webhook's annotation it is replaced; the old CA stays trusted.
        let mut ours = before.unwrap();
        ours["metadata"]["annotations"] = json!({"nvlink-domains.io/renewed-by": "nvlink-webhook"});
        store.set(Some(ours.clone()), false);
        let own = start(&store, Duration::from_secs(3600)).await.unwrap();
        assert_ne!(store.secret(), Some(ours));
        assert!(own.bundle().borrow().contains(certificate.trim()));
    }
}

/// Returns a Secret as the chart creates it, with `data`.
fn of_the_chart(data: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": data,
        "metadata": {
            "name": "ca", "namespace": "nvlink", "resourceVersion": "7",
            "labels": {"app.kubernetes.io/managed-by": "Helm"},
        },
    })
}

#[tokio::test]
async fn an_empty_secret_is_filled() {
    let store = Store::default();
    for data in [
        Value::Null,
        json!({"tls.crt": "", "tls.key": "", "ca.crt": ""}),
    ] {
        let empty = of_the_chart(&data);
        store.set(Some(empty.clone()), false);
        let own = start(&store, Duration::from_secs(3600)).await.unwrap();
        let filled = store.secret().unwrap();
        let bundle = STANDARD.encode(&*own.bundle().borrow());
        assert_eq!(filled["data"]["ca.crt"], bundle);
        // With the resourceVersion that was read, the API server lets one replica win.
        for field in ["/metadata/labels", "/metadata/resourceVersion", "/type"] {
            assert_eq!(filled.pointer(field), empty.pointer(field), "{field}");
        }
        // The next replica uses it.
        let next = start(&store, Duration::from_secs(3600)).await.unwrap();
        assert_eq!(*next.bundle().borrow(), *own.bundle().borrow());
        assert_eq!(store.secret(), Some(filled));
    }
}

#[tokio::test]
async fn a_secret_that_holds_something_else_is_not_filled() {
    let store = Store::default();
    let other = of_the_chart(&json!({"password": STANDARD.encode("mine")}));
    store.set(Some(other.clone()), false);
    let error = start(&store, Duration::from_secs(3600)).await.err();
    let error = error.unwrap().to_string();
    assert!(error.contains("has no tls.crt"), "{error}");
    let remedy = "kubectl create secret generic ca --namespace nvlink";
    assert!(error.contains(remedy), "{error}");
    assert_eq!(store.secret(), Some(other));
}

/// A certificate of ten minutes is due for renewal when it is issued, since it is
/// valid from an hour before: each check renews it.
#[tokio::test(start_paused = true)]
async fn a_broken_secret_does_not_stop_renewal() {
    let store = Store::default();
    let own = start(&store, Duration::from_secs(600)).await.unwrap();
    let bundle = own.bundle();
    let trusted = bundle.borrow().clone();
    let registered = watch::Sender::new(trusted.clone());
    let metrics = Arc::new(Metrics::default());
    let readiness = Readiness::new(Arc::clone(&metrics));
    let registered = Registered::Here(registered.subscribe());
    tokio::spawn(own.follow(Duration::from_secs(10), registered, readiness));
    let renewed = || reloads(&metrics, "success");
    let secret = store.secret();
    let garbage = foreign("mine", "my key");
    for (secret, broken) in [
        (secret.clone(), false),
        (Some(garbage.clone()), false),
        (secret, true),
    ] {
        store.set(secret.clone(), broken);
        let before = renewed();
        for _ in 0..1000 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if renewed() > before {
                break;
            }
        }
        assert!(renewed() > before, "{broken} {secret:?}");
        assert_eq!(*bundle.borrow(), trusted);
        assert_eq!(store.secret(), secret);
    }
}

/// A replica without the controller waits for its CA, follows it, and never writes the Secret.
#[tokio::test(start_paused = true)]
async fn a_replica_without_the_controller_only_reads_the_secret() {
    let store = Store::default();
    let empty = of_the_chart(&Value::Null);
    store.set(Some(empty.clone()), false);
    let serving = {
        let store = store.clone();
        tokio::spawn(async move {
            let secret = "nvlink/ca".parse().unwrap();
            let names = vec!["localhost".to_owned()];
            let upkeep = Upkeep::Elsewhere(store.client());
            let validity = Duration::from_secs(600);
            OwnCertificate::start(upkeep, secret, names, validity, None).await
        })
    };
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(!serving.is_finished());
    assert_eq!(store.secret(), Some(empty));

    let keeper = Keeper::start(store.client(), "nvlink/ca".parse().unwrap()).await;
    let keeper = keeper.unwrap();
    let own = serving.await.unwrap().unwrap();
    assert_eq!(*own.bundle().borrow(), *keeper.bundle().borrow());

    // Somebody empties the Secret: the controller makes another CA, and trusts the old one, too.
    let (old, bundle) = (keeper.bundle().borrow().clone(), keeper.bundle());
    tokio::spawn(keeper.follow(Duration::from_secs(10)));
    let followed = own.bundle();
    let (metrics, registered) = (
        Arc::new(Metrics::default()),
        watch::Sender::new(old.clone()),
    );
    let seen = Registered::Here(registered.subscribe());
    tokio::spawn(own.follow(Duration::from_secs(7), seen, Readiness::new(metrics)));
    store.set(Some(of_the_chart(&Value::Null)), false);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let both = bundle.borrow().clone();
    assert!(both != old && both.contains(old.trim()), "{both}");
    assert_eq!(*followed.borrow(), both);
}
