//! What users, controllers and kubelets do to the pods. Each is tried until it is known to be done,
//! since the API server may be away.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject},
};
use nvlink_tests::ControlPlane;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::stage::NAMESPACE;

/// For how long something is tried.
const LIMIT: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);

/// A client for the pods of the namespace.
pub(super) struct Team {
    runtime: Runtime,
    pods: Api<DynamicObject>,
}

/// Returns the API of the pods, without conversion.
pub(super) fn pods(client: kube::Client) -> Api<DynamicObject> {
    Api::namespaced_with(client, NAMESPACE, &ApiResource::erase::<Pod>(&()))
}

impl Team {
    pub(super) fn new(plane: &ControlPlane) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let client = runtime.block_on(plane.client()).unwrap();
        let pods = pods(client);
        Self { runtime, pods }
    }

    /// Tries something until it is done; `done` says which refusals mean that it was done before.
    fn insist<F: Future<Output = kube::Result<()>>>(
        &self,
        what: &str,
        done: u16,
        attempt: impl Fn() -> F,
    ) {
        let start = Instant::now();
        loop {
            let answer = self
                .runtime
                .block_on(async { tokio::time::timeout(ANSWER, attempt()).await });
            let error = match answer {
                Ok(Ok(())) => return,
                Ok(Err(kube::Error::Api(status))) if status.code == done => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            assert!(start.elapsed() < 5 * LIMIT, "cannot {what}: {error}");
            std::thread::sleep(PAUSE);
        }
    }

    pub(super) fn create(&self, pod: &Value) {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let object: DynamicObject = serde_json::from_value(pod.clone()).unwrap();
        self.insist(&format!("create pod {name}"), 409, || async {
            self.pods
                .create(&PostParams::default(), &object)
                .await
                .map(drop)
        });
    }

    /// Deletes a pod at once, as no kubelet ends it.
    pub(super) fn delete(&self, name: &str) {
        let now = DeleteParams::default().grace_period(0);
        self.insist(&format!("delete pod {name}"), 404, || async {
            self.pods.delete(name, &now).await.map(drop)
        });
    }

    /// Sets the phase of a pod, as its kubelet does.
    pub(super) fn set_phase(&self, name: &str, phase: &str) {
        let status = json!({"status": {"phase": phase}});
        let params = PatchParams::default();
        self.insist(&format!("set the phase of pod {name}"), 404, || async {
            let patch = Patch::Merge(&status);
            self.pods
                .patch_status(name, &params, &patch)
                .await
                .map(drop)
        });
    }

    /// Changes something in a pod that concerns nobody.
    pub(super) fn disturb(&self, name: &str, value: u64) {
        let change = json!({"metadata": {
            "annotations": {"example.com/noise": value.to_string()},
            "labels": {"noise": value.to_string()},
        }});
        let params = PatchParams::default();
        self.insist(&format!("change pod {name}"), 404, || async {
            let patch = Patch::Merge(&change);
            self.pods.patch(name, &params, &patch).await.map(drop)
        });
    }
}
