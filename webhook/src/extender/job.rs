//! What a pod asks for.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nvlink_admission::view::View;
use nvlink_api::pod;
use nvlink_topology::{Pattern, labels, multi_node::local};
use serde_json::Value;

use nvlink_cluster::{gpus::hardware::Job, mirror::Pod};

/// The request of a pod of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) job: Job,
    /// Other pods must come near it.
    pub(super) gang: bool,
}

impl Asked {
    /// Returns what `pod` asks for; `None` if it is in no class that can be used, or
    /// requests no GPU.
    pub(super) fn of(pod: &Value, view: &View) -> Result<Option<Self>, String> {
        let metadata = pod.get("metadata").cloned().unwrap_or_default();
        let metadata: ObjectMeta = serde_path_to_error::deserialize(metadata)
            .map_err(|error| format!("Pod.metadata.{error}"))?;
        let known = Pod::of_metadata(&metadata);
        let class = known.class.as_deref().and_then(|class| view.class(class));
        let Some(Ok(class)) = class else {
            return Ok(None);
        };
        let containers = pod::containers(pod);
        let gpus = pod::request(&containers, &class.resource);
        let gpus = gpus.map_err(|error| format!("Pod.spec: {error}"))?;
        if gpus == 0 {
            return Ok(None);
        }
        let gpus = usize::try_from(gpus).unwrap_or(usize::MAX);
        let gang = metadata.labels.as_ref();
        Ok(Some(Self {
            job: Job {
                gpus,
                pattern: of_one_pod(known.pattern.unwrap_or_default(), gpus),
                scope: known.scope.map_or(class.scope, local),
                broken_gpus: class.broken_gpus,
            },
            gang: gang.is_some_and(|all| all.contains_key(labels::GANG)),
        }))
    }
}

/// Returns the pattern between the GPUs of one pod: a shape for another number of GPUs is
/// that of a gang, and counts as all-reduce.
pub(super) fn of_one_pod(pattern: Pattern, gpus: usize) -> Pattern {
    match pattern {
        Pattern::Shape(shape) if shape.gpus() != gpus => Pattern::default(),
        pattern => pattern,
    }
}
