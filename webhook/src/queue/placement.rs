//! Where the queue put a pod: an annotation, from which a later leader knows what an earlier one
//! did.

use k8s_openapi::jiff::Timestamp;
use nvlink_topology::labels;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::decide::pod;

/// Where the queue put a pod.
///
/// A pod that still has the gate of the queue is only prepared. All pods of a gang are prepared
/// with one plan before the first of them is released. So if one of them is released, the others
/// are released where they are prepared; if none is, the plan is void.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// The plan, the same for all pods that start together.
    pub plan: String,
    /// When the pod was put there.
    pub at: Timestamp,
    /// The name of its gang, empty if it started alone. Operators whose pods start role by role are known only from their
    /// object, which a later leader does not read for pods that no longer wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<String>,
    /// The node; `None` leaves the choice to the scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The indices of its GPUs in rank order; empty if they are not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<u32>,
    /// The NVLink domain that contains them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The rank of the pod in its gang.
    #[serde(default)]
    pub rank: u32,
    /// Expected time of the slowest GPU of the job, seconds per byte of payload.
    #[serde(default)]
    pub cost: f64,
    /// Best possible cost on empty nodes of the class over `cost`, in (0, 1].
    #[serde(default)]
    pub quality: f64,
    /// The closest scope that contains all GPUs of the job.
    #[serde(default)]
    pub scope: String,
    /// Why the job started then and there.
    #[serde(default)]
    pub why: String,
}

impl Placement {
    /// Reads the annotation of `pod`; `None` if there is none that can be read.
    #[must_use]
    pub fn of(pod: &Value) -> Option<Self> {
        let text = pod::metadata(pod, "annotations", labels::QUEUE_PLACEMENT)?;
        serde_json::from_str(text.as_str()?).ok()
    }
}
