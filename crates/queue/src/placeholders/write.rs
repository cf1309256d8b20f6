//! Creates and deletes placeholder pods.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use nvlink_api::MANAGER;
use nvlink_runtime::client;
use serde_json::{Value, json};

use super::{Answer, Request, name, object::condition};
use crate::{
    attempts::{Again, code, in_patience},
    execute::Writer,
    failpoint,
    metrics::{Ended, Written},
};

impl Writer {
    /// Creates a placeholder, or deletes it.
    pub(crate) async fn placeholder(&self, request: Request) -> Answer {
        let pods = Api::namespaced(self.client.clone(), &request.namespace);
        match request.object {
            Some(object) => self.once(create(&pods, object)).await,
            None => self.once(delete(&pods, &name(&request.uid))).await,
        }
    }

    /// Makes a request once: if it fails, a later look at the queue makes another one.
    async fn once(&self, request: impl Future<Output = kube::Result<Answer>>) -> Answer {
        let Ok(_permit) = self.permits.acquire().await else {
            return Answer::Failed("the process ends".to_owned());
        };
        if !self.leads() {
            return Answer::Failed("another replica leads".to_owned());
        }
        let answered = in_patience(async { Ok::<_, Again>(request.await) });
        let (answer, ended) = match answered.await {
            Ok(Ok(answer)) => (answer, Ended::Written),
            Ok(Err(error)) => (Answer::Failed(client::reason(&error)), Ended::Refused),
            Err(_) => {
                let why = "the API server did not answer in time".to_owned();
                (Answer::Failed(why), Ended::Unanswered)
            }
        };
        self.metrics.queue().write(Written::Placeholder, ended);
        answer
    }
}

/// Creates a placeholder, and lets autoscalers see it. One that is there already is as good.
async fn create(pods: &Api<Pod>, object: Value) -> kube::Result<Answer> {
    let params = PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    };
    let pod: Pod = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
    let found = match pods.create(&params, &pod).await {
        Err(error) if code(&error) == 409 => pods.get(&pod.name_any()).await,
        other => other,
    };
    failpoint::passed("placeholder");
    let created = json!(found?.metadata.creation_timestamp);
    let patch = Patch::Strategic(condition(Some(&created)));
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let found = pods.patch_status(&pod.name_any(), &params, &patch).await?;
    let pod = serde_json::to_value(found).map_err(kube::Error::SerdeError)?;
    Ok(Answer::There(Box::new(pod)))
}

async fn delete(pods: &Api<Pod>, name: &str) -> kube::Result<Answer> {
    match pods.delete(name, &DeleteParams::default()).await {
        Err(error) if code(&error) != 404 => Err(error),
        _ => Ok(Answer::Gone),
    }
}
