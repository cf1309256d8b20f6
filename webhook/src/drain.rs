//! Empties the queue before the webhook is removed: nobody would release the pods that wait.
//!
//! The registration goes first, so that no new pod gets the gate. The queue's leader may still
//! release pods meanwhile; each write names the version that it changes.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, bail};
use futures::{StreamExt, stream};
use k8s_openapi::{
    api::admissionregistration::v1::MutatingWebhookConfiguration, api::core::v1, jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    core::{ApiResource, DynamicObject},
};
use nvlink_admission::decide::gate;
use nvlink_api::{MANAGER, patch::Editor, pod};
use nvlink_queue::{
    Life, channel,
    claim::Named,
    notice::{Post, TEMPORARY},
};
use nvlink_runtime::{
    client::{self, Limits},
    stdout::print,
};
use nvlink_topology::labels;
use serde_json::{Value, json};

use crate::registration::NAME;

/// The most pods in an answer of the API server.
const PAGE: u32 = 500;
/// The most writes at a time.
const AT_ONCE: usize = 16;
/// The time between two lists of the pods.
const PAUSE: Duration = Duration::from_secs(1);
/// API servers may add the gate for this long after the registration is gone.
const LINGER: u32 = 3;
/// The most lists after which some pods still wait.
const MOST: u32 = 120;

/// Removes the registration and the gates of all waiting pods, fails those that would get their GPUs
/// by claims, and prints how many there were of each.
///
/// # Errors
/// When a pod still waits in the end, or the API server refuses something.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let drained = runtime.block_on(drain());
    runtime.shutdown_background();
    let Drained { released, failed } = drained?;
    print(&format!("released {released} waiting pods\n"))?;
    if failed > 0 {
        print(&format!(
            "failed {failed} waiting pods with the reason {REMOVED}: without the queue, the claims that give them GPUs are not created\n"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Pods that wait no more.
#[derive(Clone, Copy, Default)]
struct Drained {
    released: usize,
    failed: usize,
}

async fn drain() -> anyhow::Result<Drained> {
    let client = client::connect(Limits::default()).await;
    let client = client.map_err(|error| told("no access to the cluster", &error))?;
    unregister(&client).await?;
    let (mut drained, mut quiet) = (Drained::default(), 0);
    let mut last = Ok(());
    for _ in 0..MOST {
        let pass = pass(&client).await?;
        quiet = if pass.found == 0 { quiet + 1 } else { 0 };
        if quiet > LINGER {
            return Ok(drained);
        }
        drained.released += pass.drained.released;
        drained.failed += pass.drained.failed;
        last = pass.error.map_or(last, Err);
        tokio::time::sleep(PAUSE).await;
    }
    last.and_then(|()| {
        bail!(
            "new pods keep waiting: find out what restores the MutatingWebhookConfiguration {NAME}"
        )
    })
}

/// The reason in the status of a pod that cannot start without the queue.
const REMOVED: &str = "QueueRemoved";

async fn unregister(client: &Client) -> anyhow::Result<()> {
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    match api.delete(NAME, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(told(
            "cannot delete MutatingWebhookConfiguration nvlink-domains.io",
            &error,
        )),
    }
}

/// What one look at all pods came to.
#[derive(Default)]
struct Pass {
    found: usize,
    drained: Drained,
    /// Why a pod could not be released; the last one.
    error: Option<anyhow::Error>,
}

/// Looks at all pods, and releases those with the gate of the queue. It goes page by page, because
/// all pods of a large cluster would not fit in its memory.
async fn pass(client: &Client) -> anyhow::Result<Pass> {
    let resource = ApiResource::erase::<v1::Pod>(&());
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut params = ListParams::default().limit(PAGE);
    let mut pass = Pass::default();
    loop {
        let page = match api.list(&params).await {
            // The token is too old: the next pass begins anew.
            Err(kube::Error::Api(status)) if status.code == 410 => return Ok(pass),
            page => page.map_err(|error| told("cannot list pods", &error))?,
        };
        let pods = page.items.into_iter().map(serde_json::to_value);
        let pods: Vec<Value> = pods.collect::<Result<_, _>>()?;
        let waits = |pod: &&Value| matches!(Life::of(pod), Life::Waiting { .. });
        let waiting = pods.iter().filter(waits);
        let writes = waiting.map(|pod| async {
            let fails = Named::of(pod).is_some() || channel::named(pod).is_some();
            let written = match fails {
                true => fail(client, pod).await,
                false => release(client, pod).await,
            };
            (fails, written)
        });
        let ended: Vec<_> = stream::iter(writes)
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        pass.found += ended.len();
        for one in ended {
            match one {
                (true, Ok(written)) => pass.drained.failed += usize::from(written),
                (false, Ok(written)) => pass.drained.released += usize::from(written),
                (_, Err(error)) => pass.error = Some(error),
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(pass),
        }
    }
}

/// Releases a pod; `false` if somebody else has changed it.
async fn release(client: &Client, pod: &Value) -> anyhow::Result<bool> {
    let (api, namespace, name) = place(client, pod);
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let Some(operations) = operations(pod) else {
        return Ok(false);
    };
    let operations = Patch::Json::<()>(operations);
    match api.patch(name, &params, &operations).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => {
            return Ok(false);
        }
        Err(error) => {
            let what = format!("cannot release pod {namespace}/{name}");
            return Err(told(&what, &error));
        }
    }
    // The pod is free; what it shows is for readers only.
    let now = Timestamp::now().as_millisecond();
    let left = Post::Left("released: the queue is being removed".to_owned());
    let shown = Patch::Strategic(left.patch(pod, true, now));
    drop(api.patch_status(name, &params, &shown).await);
    Ok(true)
}

/// Fails a pod that gets its GPUs by a claim, which nobody will make; `false` if somebody else has
/// changed it.
async fn fail(client: &Client, pod: &Value) -> anyhow::Result<bool> {
    let (api, namespace, name) = place(client, pod);
    let patch = json!({
        "metadata": {"resourceVersion": pod::at(pod, &["metadata", "resourceVersion"])},
        "status": {
            "phase": "Failed", "reason": REMOVED,
            "message": "the pod gets its GPUs by a claim that the queue makes, and the queue is being removed",
        },
    });
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    match api.patch_status(name, &params, &patch).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => Ok(false),
        Err(error) => Err(told(&format!("cannot fail pod {namespace}/{name}"), &error)),
    }
}

/// Returns where a pod is written, its namespace and its name.
fn place<'a>(client: &Client, pod: &'a Value) -> (Api<v1::Pod>, &'a str, &'a str) {
    let text = |field| pod::at(pod, &["metadata", field]).and_then(Value::as_str);
    let [namespace, name] = ["namespace", "name"].map(|field| text(field).unwrap_or_default());
    let api = Api::namespaced(client.clone(), namespace);
    (api, namespace, name)
}

/// Returns the operations of a JSON patch that removes the queue's gate and annotations, and fails
/// on another version of the pod.
fn operations(pod: &Value) -> Option<json_patch::Patch> {
    let at = gate::gates(pod).position(|gate| gate == labels::QUEUE_GATE)?;
    let mut editor = Editor::of_version(pod);
    // A write with the number of a term is the leader's alone (rule `term`).
    for key in [labels::QUEUE_TERM, labels::QUEUE_PLACEMENT]
        .iter()
        .chain(&TEMPORARY)
    {
        editor.remove(pod::ANNOTATIONS, key);
    }
    editor.remove(gate::PATH, &at.to_string());
    Some(editor.finish().1)
}

fn told(what: &str, error: &kube::Error) -> anyhow::Error {
    anyhow::anyhow!("{what}: {}", client::reason(error))
}
