//! An API server with as much server-side apply as is needed to see what stays,
//! what is removed and what is not written at all.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::{Arc, Mutex},
};

use axum::{
    body::{Body, to_bytes},
    http::{Method, Request, Response, StatusCode},
};
use kube::{Client, client};
use serde_json::{Value, json};

/// The state of the cluster.
#[derive(Default)]
pub(crate) struct Cluster {
    /// Labels and annotations of the Node, each with its manager.
    pub(crate) fields: BTreeMap<(String, String), (String, String)>,
    pub(crate) object: Option<Value>,
    pub(crate) no_crd: bool,
    pub(crate) no_node: bool,
    pub(crate) denied: bool,
    pub(crate) writes: usize,
    /// The object after each write.
    pub(crate) history: Vec<Value>,
}

pub(crate) type Shared = Arc<Mutex<Cluster>>;

pub(crate) fn start(cluster: Cluster) -> (Client, Shared) {
    let shared = Arc::new(Mutex::new(cluster));
    let state = Arc::clone(&shared);
    let service = tower::service_fn(move |request: Request<client::Body>| {
        let state = Arc::clone(&state);
        async move {
            let (parts, body) = request.into_parts();
            let body = to_bytes(Body::new(body), usize::MAX).await.unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let query = parts.uri.query().unwrap_or_default();
            let (status, answer) =
                state
                    .lock()
                    .unwrap()
                    .answer(&parts.method, parts.uri.path(), query, &body);
            let body = Body::from(answer.to_string());
            Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
        }
    });
    (Client::new(service, "default"), shared)
}

fn failure(code: u16, reason: &str) -> (StatusCode, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code});
    (StatusCode::from_u16(code).unwrap(), status)
}

impl Cluster {
    fn answer(
        &mut self,
        method: &Method,
        path: &str,
        query: &str,
        body: &Value,
    ) -> (StatusCode, Value) {
        match (path, method.as_str()) {
            ("/api/v1/nodes/gpu-7", "PATCH") if self.denied => failure(403, "Forbidden"),
            ("/api/v1/nodes/gpu-7", "GET") if self.no_node => failure(404, "NotFound"),
            ("/api/v1/nodes/gpu-7", "GET") => (StatusCode::OK, self.node()),
            ("/api/v1/nodes/gpu-7", "PATCH") => {
                assert_eq!(body["metadata"]["uid"], "uid-7");
                self.writes += 1;
                self.apply_to_node(query, body)
            }
            // There are no DeviceTaintRules.
            (path, "GET") if path.starts_with("/apis/resource.k8s.io/") => failure(404, "NotFound"),
            // The answer is not a Status: the API server does not know the path at all.
            (_, _) if self.no_crd => (StatusCode::NOT_FOUND, json!("404 page not found")),
            ("/apis/nvlink-domains.io/v1alpha1/nodetopologies/gpu-7", method) => {
                match (method, &self.object) {
                    ("PATCH", _) => {
                        assert!(query.contains("force=true"), "{query}");
                        self.write("spec", body)
                    }
                    (_, None) => failure(404, "NotFound"),
                    ("DELETE", Some(_)) => (StatusCode::OK, self.object.take().unwrap()),
                    (_, Some(object)) => (StatusCode::OK, object.clone()),
                }
            }
            ("/apis/nvlink-domains.io/v1alpha1/nodetopologies/gpu-7/status", "PATCH") => {
                self.write("status", body)
            }
            other => panic!("unexpected request {other:?}"),
        }
    }

    /// Writes `part` of `body` into the object, unless `body` names another version.
    fn write(&mut self, part: &str, body: &Value) -> (StatusCode, Value) {
        let present = self.object.take();
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        let wanted = version(body);
        if !wanted.is_null() && Some(&wanted) != present.as_ref().map(version).as_ref() {
            self.object = present;
            return failure(409, "Conflict");
        }
        self.writes += 1;
        let mut object = present.unwrap_or_else(|| body.clone());
        // Without fields, an empty object remains.
        object[part] = body.get(part).cloned().unwrap_or_else(|| json!({}));
        if part == "spec" {
            object["metadata"] = body["metadata"].clone();
        }
        object["metadata"]["resourceVersion"] = json!(self.writes.to_string());
        self.history.push(object.clone());
        self.object = Some(object.clone());
        (StatusCode::OK, object)
    }

    pub(crate) fn node(&self) -> Value {
        let mut metadata =
            json!({"name": "gpu-7", "uid": "uid-7", "labels": {}, "annotations": {}});
        let mut managers: BTreeMap<&str, Value> = BTreeMap::new();
        for ((field, name), (value, manager)) in &self.fields {
            metadata[field][name] = json!(value);
            let fields = managers.entry(manager).or_insert(json!({"f:metadata": {}}));
            fields["f:metadata"][format!("f:{field}")][format!("f:{name}")] = json!({});
        }
        let managed = managers.iter().map(|(manager, fields)| {
            json!({"manager": manager, "operation": "Apply", "apiVersion": "v1",
                "fieldsType": "FieldsV1", "fieldsV1": fields})
        });
        metadata["managedFields"] = managed.collect();
        json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    }

    pub(crate) fn apply_to_node(&mut self, query: &str, body: &Value) -> (StatusCode, Value) {
        let manager = query
            .split('&')
            .find_map(|part| part.strip_prefix("fieldManager="))
            .unwrap();
        if body["apiVersion"].is_null() {
            return self.merge_into_node(body);
        }
        let mut wanted = BTreeMap::new();
        for field in ["labels", "annotations"] {
            for (name, value) in body["metadata"][field].as_object().into_iter().flatten() {
                wanted.insert(
                    (field.to_owned(), name.clone()),
                    value.as_str().unwrap().to_owned(),
                );
            }
        }
        let foreign = |(key, value): (&_, &String)| {
            self.fields
                .get(key)
                .is_some_and(|(other, by)| by != manager && other != value)
        };
        if wanted.iter().any(foreign) && !query.contains("force=true") {
            return failure(409, "Conflict");
        }
        self.fields
            .retain(|key, (_, by)| by != manager || wanted.contains_key(key));
        for (key, value) in wanted {
            self.fields.insert(key, (value, manager.to_owned()));
        }
        (StatusCode::OK, self.node())
    }

    pub(crate) fn merge_into_node(&mut self, body: &Value) -> (StatusCode, Value) {
        for field in ["labels", "annotations"] {
            for (name, value) in body["metadata"][field].as_object().into_iter().flatten() {
                assert!(value.is_null(), "{name}");
                self.fields.remove(&(field.to_owned(), name.clone()));
            }
        }
        (StatusCode::OK, self.node())
    }

    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        let key = ("labels".to_owned(), name.to_owned());
        self.fields.get(&key).map(|(value, _)| value.as_str())
    }

    pub(crate) fn managers(&self) -> BTreeSet<&str> {
        self.fields
            .values()
            .map(|(_, manager)| manager.as_str())
            .collect()
    }
}
