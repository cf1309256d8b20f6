//! Pods that another scheduler has placed without being asked to keep them together. The decision says so,
//! but the warnings of admission reach only the controller that creates the pods: an Event of the first
//! pod of each job tells people.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, core::PartialObjectMeta, runtime::watcher};
use nvlink_api::pod;
use nvlink_runtime::{
    lease::Leadership,
    watch::{self, Key, Mirror},
};
use nvlink_topology::labels;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, Sender};

use crate::post::Poster;

/// The most jobs that are remembered. Of more, some may be told twice.
const MOST: usize = 4_096;
/// The most Events that wait to be written. What is beyond is not told.
const WAITING: usize = 256;

/// Tells people of such pods whenever this replica leads. Never ends.
pub(super) async fn follow(client: Client, poster: Poster, mut leadership: Leadership) {
    loop {
        let term = leadership.gained().await;
        tokio::select! {
            () = tell(&client, &poster) => {}
            () = leadership.lost(&term) => {}
        }
    }
}

async fn tell(client: &Client, poster: &Poster) {
    let (sender, mut found) = mpsc::channel(WAITING);
    let config = watcher::Config::default().page_size(100);
    let unbound = config.labels(labels::CLASS).fields("spec.nodeName=");
    let watch = watch::follow(Api::all(client.clone()), unbound, Pods(sender));
    let write = async {
        let mut told = HashSet::new();
        while let Some(Apart {
            document,
            job,
            note,
        }) = found.recv().await
        {
            if told.len() >= MOST {
                told.clear();
            }
            if !told.insert(job.clone()) {
                continue;
            }
            if let Err(failed) = poster.apart(&document, &job, &note).await {
                tracing::warn!(
                    job,
                    reason = failed.reason,
                    "cannot write the Event of a job whose pods nothing keeps together"
                );
            }
        }
    };
    tokio::select! {
        () = watch => {}
        () = write => {}
    }
}

/// A pod of a job that nothing keeps together.
#[derive(Debug, PartialEq)]
struct Apart {
    document: Value,
    /// The UID of the job, or of the pod if no controller made it.
    job: String,
    note: String,
}

impl Apart {
    fn of(document: Value) -> Option<Self> {
        let decision = pod::metadata(&document, "annotations", labels::DECISION)?;
        let decision: Value = serde_json::from_str(decision.as_str()?).ok()?;
        let note = pod::text(&decision, &["apart"]).to_owned();
        let controls = |owner: &&Value| owner["controller"] == true;
        let owner = pod::list(&document, &["metadata", "ownerReferences"]).find(controls);
        let job = match owner {
            Some(owner) => pod::text(owner, &["uid"]).to_owned(),
            None => pod::text(&document, &["metadata", "uid"]).to_owned(),
        };
        (!note.is_empty()).then_some(Self {
            document,
            job,
            note,
        })
    }
}

struct Pods(Sender<Apart>);

impl Mirror for Pods {
    type Object = PartialObjectMeta<Pod>;
    const KIND: &'static str = "Pod";
    const UNKNOWN: &'static str = "";
    const FORBIDDEN: &'static str = ", so nobody is told of pods that nothing keeps together";

    fn set(&mut self, object: Self::Object) {
        if let Some(apart) = Apart::of(json!({"metadata": object.metadata})) {
            let _ = self.0.try_send(apart);
        }
    }

    fn remove(&mut self, _: &Key) {}
    fn retain(&mut self, _: &HashSet<Key>) {}
}
