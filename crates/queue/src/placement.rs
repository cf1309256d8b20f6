//! Where the queue put a pod: an annotation, from which a later leader knows what an earlier one
//! did.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use nvlink_api::pod;
pub use nvlink_cluster::gpus::id;
use nvlink_planner::Seat;
use nvlink_topology::labels;
use serde::{Deserialize, Serialize};
use serde_json::Value;

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
    /// The UUIDs of its GPUs in rank order, if it gets them by a ResourceClaim.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uuids: Vec<String>,
    /// The NICs of its GPUs, if its claim asks for some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nics: Option<Box<Nics>>,
    /// The name of the ComputeDomain that gives the pods of its gang IMEX channels, in its namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_domain: Option<String>,
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
    /// The seats of the members of its gang that follow it by rank, the first after the last: as
    /// many as a node may have GPUs. While one member in so many lives, a leader that never saw a
    /// lost member knows its seat.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Other>,
}

/// The NICs of the GPUs of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Nics {
    /// Their DeviceClass.
    pub device_class: String,
    /// Their driver.
    pub driver: String,
    /// The domain of the attribute that has their PCI addresses, and its name.
    pub attribute: (String, String),
    /// The NICs of each GPU, in rank order.
    pub of_gpus: Vec<Vec<Nic>>,
}

/// A NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// Its PCI address.
    pub at: String,
    /// The name of its RDMA device.
    pub rdma: String,
}

/// The seat of another member of the gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Other {
    /// The name of the pod, in the same namespace.
    pub pod: String,
    /// Its rank.
    pub rank: u32,
    /// Its node.
    pub node: String,
    /// The indices of its GPUs in rank order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<u32>,
}

/// The most seats of others in one annotation, which keep it below 4 KiB. No node in use has more
/// GPUs, so the members that a lost node takes with it are known from the one before them.
const MOST: usize = 16;

/// Returns the seats that the pod of `rank` records, of those of its whole gang by rank.
#[must_use]
pub fn others(gang: &BTreeMap<u32, Other>, rank: u32) -> Vec<Other> {
    let after = gang.range(rank.saturating_add(1)..);
    let around = after.chain(gang.range(..rank));
    around.take(MOST).map(|(_, other)| other.clone()).collect()
}

impl Other {
    /// Returns a seat as it is recorded; `None` if it has no node.
    #[must_use]
    pub fn of(seat: &Seat) -> Option<Self> {
        let pod = seat.pod.rsplit('/').next().unwrap_or_default();
        Some(Self {
            pod: pod.to_owned(),
            rank: seat.rank,
            node: seat.node.as_deref()?.to_owned(),
            gpus: seat.gpus.clone(),
        })
    }

    /// Returns the seat of a pod in `namespace`.
    #[must_use]
    pub fn seat(&self, namespace: &str) -> Seat {
        Seat {
            pod: id(namespace, &self.pod),
            rank: self.rank,
            node: Some(self.node.as_str().into()),
            gpus: self.gpus.clone(),
            domain: None,
        }
    }
}

impl Placement {
    /// Reports whether the pod started with others.
    #[must_use]
    pub fn is_of_gang(&self) -> bool {
        self.gang.as_deref().is_some_and(|name| !name.is_empty())
    }

    /// Reads the annotation of `pod`; `None` if there is none that can be read.
    #[must_use]
    pub fn of(pod: &Value) -> Option<Self> {
        let text = pod::metadata(pod, "annotations", labels::QUEUE_PLACEMENT)?;
        serde_json::from_str(text.as_str()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_member_records_those_after_it() {
        let other = |rank: u32| Other {
            pod: format!("p{rank}"),
            rank,
            node: "n1".to_owned(),
            gpus: vec![rank],
        };
        let gang = |pods: u32| -> BTreeMap<u32, Other> {
            (0..pods).map(|rank| (rank, other(rank))).collect()
        };
        let ranks = |pods, rank| -> Vec<u32> {
            let others = others(&gang(pods), rank);
            others.iter().map(|other| other.rank).collect()
        };
        assert!(ranks(1, 0).is_empty());
        assert_eq!(ranks(4, 2), [3, 0, 1]);
        assert_eq!(
            ranks(64, 60),
            [61, 62, 63, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
        );
        let seat = other(3).seat("team");
        assert_eq!(&*seat.pod, "team/p3");
        assert_eq!(Other::of(&seat), Some(other(3)));
    }
}
