//! The gang of a pod: pods that start together or not at all.
//!
//! A pod is in a gang if one of these says so, the first that does:
//!
//! 1. its annotation `nvlink-domains.io/gang`, also on pods of different controllers;
//! 2. its LeaderWorkerSet, JobSet, MPIJob, PyTorchJob or other job of Kubeflow, RayCluster, or
//!    Kubernetes' own Workload or PodGroup. All pods of these with GPUs start together, unless the
//!    object itself makes some wait for others;
//! 3. its Job, if its containers start one part of a job with several pods, as
//!    `torchrun --nnodes=2` does. Other Jobs with several pods are independent tasks, and so are
//!    the pods of Deployments and StatefulSets.

use nvlink_admission::decide::{Intent, classify};
use nvlink_api::pod;
use serde_json::Value;

use super::{
    operator::{self, Group, Object, Operator},
    sizes::Sizes,
};

/// The role of a pod in its gang, in published recipes.
const ROLE: &str = "scheduling.run.ai/topology-role";

/// The gang of a pod, by what the pod and its job's object say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gang {
    /// Its name, which is unique among the pods of a namespace, project and class: `gang train`,
    /// `JobSet train`.
    pub name: String,
    /// Number of pods that start together; `None` if nothing says it.
    pub size: Option<u32>,
    /// The role of the pod; empty if all pods are alike.
    pub role: String,
    /// The rank of the pod in the gang, or among the pods of its role.
    pub rank: Option<u32>,
    /// What is odd about the pod.
    pub doubts: Vec<Doubt>,
}

/// Something that is odd about a gang, for its author. The gang still starts, unless its size is
/// unknown or in dispute.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// Nothing says how many pods the gang has.
    #[error(
        "nothing says how many pods the gang has: set annotation nvlink-domains.io/gang-size on its pods"
    )]
    NoSize,
    /// The object that says how many pods the job has is not known.
    #[error("the {0}, which says how many pods the job has, does not exist or cannot be read")]
    NoObject(Object),
    /// The pods say different sizes.
    #[error("its pods say different numbers of pods: {0:?}")]
    Sizes(Vec<u32>),
    /// There are more pods than the size.
    #[error("it has {pods} pods, but its size is {size}")]
    TooMany {
        /// Number of pods.
        pods: u32,
        /// The size.
        size: u32,
    },
    /// The pod's role is not in its job's object.
    #[error("its role {0:?} is not one of the job's with GPUs")]
    Role(String),
    /// No pod has a rank.
    #[error("no pod has a rank: their GPUs are in the order of their names")]
    Unranked,
    /// Only some pods have a rank.
    #[error("pod {0} has no rank, but others do")]
    NoRank(String),
    /// Two pods have the same rank.
    #[error("pods {} have the same rank {rank}", pods.join(" and "))]
    SameRank {
        /// The rank.
        rank: u32,
        /// The names of the pods.
        pods: Vec<String>,
    },
    /// A rank is not below the number of pods.
    #[error("its rank {rank} is not below {pods}, the number of pods")]
    RankOutOfRange {
        /// The rank.
        rank: u32,
        /// Number of pods that have ranks.
        pods: u32,
    },
}

impl Gang {
    /// Returns the gang of `pod`, whose annotations are `intent`. `object` is what
    /// [`super::object`] names, if it exists; GPUs are those of `resource`.
    pub(super) fn of(
        pod: &Value,
        intent: &Intent,
        object: Option<&Value>,
        resource: &str,
    ) -> Option<Self> {
        let group = Group::of(pod);
        let sizes = group
            .as_ref()
            .and_then(|group| Sizes::of(group, object?, resource));
        match (&intent.gang, group) {
            (Some(name), group) => Some(named(pod, name, intent.gang_size, group, sizes)),
            (None, Some(group)) => of_operator(pod, &group, sizes),
            (None, None) => None,
        }
    }
}

/// Returns the number of pods that start together with `pod`, which a controller creates from
/// `object`; `None` if it starts alone, or if the object does not say it.
pub fn size(pod: &Value, object: &Value) -> Option<u32> {
    let intent = Intent::of(pod).ok()?;
    Gang::of(pod, &intent, Some(object), nvlink_api::class::GPU)?.size
}

/// Returns the gang that the pod's annotation names.
fn named(
    pod: &Value,
    name: &str,
    size: Option<u32>,
    group: Option<Group>,
    sizes: Option<Sizes>,
) -> Gang {
    let role = pod::metadata(pod, "annotations", ROLE).and_then(Value::as_str);
    let role = role.map(str::to_owned);
    let mut doubts = Vec::new();
    let by_object = group.as_ref().zip(sizes.as_ref());
    let total = by_object.map(|(group, sizes)| sizes.total(&group.role));
    let size = size.or(total.filter(|&total| total > 0));
    if size.is_none() {
        doubts.push(Doubt::NoSize);
    }
    let ranked = by_object.and_then(|(group, sizes)| rank(group, sizes).ok()?);
    let inner = group.as_ref().and_then(|group| group.inner);
    Gang {
        name: format!("gang {name}"),
        size,
        role: role.or(group.map(|group| group.role)).unwrap_or_default(),
        rank: ranked.or(inner).or_else(|| operator::index(pod)),
        doubts,
    }
}

/// Returns the gang of a pod whose operator says it; `None` for a pod that starts alone.
fn of_operator(pod: &Value, group: &Group, sizes: Option<Sizes>) -> Option<Gang> {
    if group.operator == Operator::Job && !classify::starts_part(pod) {
        return None;
    }
    let mut doubts = Vec::new();
    let (size, rank) = match &sizes {
        None => {
            doubts.push(Doubt::NoObject(group.object.clone()));
            (group.size, group.inner.filter(|_| group.size.is_some()))
        }
        Some(sizes) => {
            let rank = rank(group, sizes).unwrap_or_else(|doubt| {
                doubts.push(doubt);
                None
            });
            (Some(sizes.total(&group.role)), rank)
        }
    };
    if size.is_some_and(|size| size <= 1) {
        return None;
    }
    let apart = sizes.is_some_and(|sizes| sizes.apart);
    // Where a RayCluster does not grow and shrink, its replicas start together.
    let whole = group.operator == Operator::RayCluster && !apart;
    let part = group.part.as_deref().filter(|_| !whole);
    let role = Some(group.role.as_str()).filter(|role| apart && !role.is_empty());
    let mut name = group.object.to_string();
    for part in part.into_iter().chain(role) {
        name = format!("{name}/{part}");
    }
    Some(Gang {
        name,
        size,
        role: group.role.clone(),
        rank,
        doubts,
    })
}

/// Returns the rank of a pod among all pods that start together with it; `None` if its operator
/// gives no ranks.
fn rank(group: &Group, sizes: &Sizes) -> Result<Option<u32>, Doubt> {
    let mut before = 0_u32;
    for role in &sizes.roles {
        if role.name != group.role {
            before = before.saturating_add(if sizes.apart { 0 } else { role.pods });
            continue;
        }
        // The index of a host repeats in each replica of a RayCluster.
        let repeats = group.operator == Operator::RayCluster && role.pods > role.each;
        let (Some(outer), Some(inner)) = (group.outer, group.inner) else {
            return Ok(None);
        };
        if repeats {
            return Ok(None);
        }
        let index = outer.saturating_mul(role.each).saturating_add(inner);
        let pods = role.pods;
        return match index.checked_sub(role.first) {
            Some(index) if index < pods => Ok(Some(before.saturating_add(index))),
            _ => Err(Doubt::RankOutOfRange { rank: index, pods }),
        };
    }
    Err(Doubt::Role(group.role.clone()))
}
