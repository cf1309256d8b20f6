//! The pods, and many requests about pods at a time.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::cluster::AT_ONCE;

/// Returns a pod of a training job, as users write it and controllers complete it. The scheduler
/// handles it only if it is `scheduled`.
pub(crate) fn pod(name: &str, class: &str, gpus: usize, scheduled: bool) -> Value {
    let scheduler = match scheduled {
        true => "default-scheduler",
        false => "nobody",
    };
    let limits = json!({"cpu": "4", "memory": "32Gi", "nvidia.com/gpu": gpus.to_string()});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"app": "train", "job-name": "train-7"},
            "annotations": {
                "nvlink-domains.io/class": class, "nvlink-domains.io/expected-duration": "60m",
            },
        },
        "spec": {
            "restartPolicy": "Never", "schedulerName": scheduler,
            "containers": [{
                "name": "main", "image": "registry.example.com/train:1.2.3",
                "command": ["torchrun", "--nproc-per-node=8", "train.py"],
                "env": [
                    {"name": "DATA", "value": "/data"}, {"name": "EPOCHS", "value": "90"},
                    {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
                ],
                "resources": {"limits": limits},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "shm", "mountPath": "/dev/shm"}]
            }],
            "volumes": [
                {"name": "data", "emptyDir": {}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}}
            ]
        }
    })
}

/// Does something with each item, [`AT_ONCE`] at a time, on all cores.
pub(crate) async fn each<T, F>(items: Vec<T>, work: impl Fn(T) -> F) -> Result<()>
where
    T: Send + 'static,
    F: Future<Output = Result<()>> + Send + 'static,
{
    let mut running = JoinSet::new();
    for item in items {
        if running.len() == AT_ONCE
            && let Some(ended) = running.join_next().await
        {
            ended??;
        }
        running.spawn(work(item));
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}

/// Creates pods.
pub(crate) async fn create(api: &Api<Pod>, pods: Vec<Value>) -> Result<()> {
    each(pods, |pod| {
        let api = api.clone();
        async move {
            let pod = serde_json::from_value(pod)?;
            api.create(&PostParams::default(), &pod).await?;
            Ok(())
        }
    })
    .await
}

/// Returns a pod as the API server would store it.
pub(crate) async fn dry_run(api: &Api<Pod>, pod: Value) -> Result<Value> {
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let stored = api.create(&params, &serde_json::from_value(pod)?).await?;
    let mut stored = serde_json::to_value(stored)?;
    stored["status"] = json!({});
    let metadata = stored["metadata"].as_object_mut().context("no metadata")?;
    metadata.retain(|key, _| ["name", "labels", "annotations"].contains(&key.as_str()));
    Ok(stored)
}

/// Deletes all pods.
pub(crate) async fn delete(api: &Api<Pod>) -> Result<()> {
    let now = DeleteParams::default().grace_period(0);
    api.delete_collection(&now, &ListParams::default()).await?;
    Ok(())
}

/// Ends a pod, as its kubelet would.
pub(crate) async fn end(api: &Api<Pod>, name: &str) -> Result<()> {
    let patch = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    api.patch_status(name, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// Returns for each pod the patch by which the queue would release it.
pub(crate) async fn releases(api: &Api<Pod>) -> Result<Vec<(String, Value)>> {
    let pods = api.list(&ListParams::default()).await?;
    let release = |pod: Pod| {
        let name = pod.metadata.name.clone().context("a pod has no name")?;
        Ok((name, release(&pod)))
    };
    pods.items.into_iter().map(release).collect()
}

fn release(pod: &Pod) -> Value {
    let placement = json!({
        "plan": "12-1234", "at": "2026-08-01T10:00:00Z", "node": "node-00012", "gpus": [7],
        "domain": "nvlink-domain:0", "rank": 0, "cost": 0.0, "quality": 1.0,
        "scope": "nvlink-domain", "why": "it was its turn",
    });
    let metadata = &pod.metadata;
    let field = json!({"key": "metadata.name", "operator": "In", "values": ["node-00012"]});
    let required = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
    let affinity = json!({"requiredDuringSchedulingIgnoredDuringExecution": required});
    json!([
        {"op": "test", "path": "/metadata/uid", "value": metadata.uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata.resource_version},
        {"op": "test", "path": "/spec/schedulingGates/0/name", "value": "nvlink-domains.io/queue"},
        {"op": "add", "path": "/metadata/annotations/nvlink-domains.io~1queue-placement", "value": placement.to_string()},
        {"op": "add", "path": "/metadata/annotations/nvlink-domains.io~1queue-term", "value": "12"},
        {"op": "add", "path": "/spec/affinity", "value": {"nodeAffinity": affinity}},
        {"op": "remove", "path": "/spec/schedulingGates/0"},
    ])
}

/// Sends the patches, [`AT_ONCE`] at a time, as the queue does.
pub(crate) async fn patch(api: &Api<Pod>, patches: Vec<(String, Value)>) -> Result<()> {
    let mut running = JoinSet::new();
    let patches = Arc::new(Mutex::new(patches.into_iter()));
    for _ in 0..AT_ONCE {
        let (api, patches) = (api.clone(), Arc::clone(&patches));
        running.spawn(async move {
            loop {
                let next = patches
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .next();
                let Some((name, patch)) = next else {
                    return anyhow::Ok(());
                };
                let patch = Patch::Json::<()>(serde_json::from_value(patch)?);
                api.patch(&name, &PatchParams::default(), &patch).await?;
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}
