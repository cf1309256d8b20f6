//! The operators that create the pods of a job: what their labels say about a pod, and which
//! object says how many pods the job has.

use serde_json::Value;

use nvlink_api::pod;

/// An operator, by the kind of its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    LeaderWorkerSet,
    JobSet,
    /// Kubeflow's training operator and its MPI operator.
    Kubeflow,
    RayCluster,
    /// Kubernetes' own groups of pods, up to 1.35.
    Workload,
    /// The same, from 1.36 on.
    PodGroup,
    Job,
}

/// The objects that say how many pods a job has, as API groups and plurals: what the queue must
/// be allowed to `get`.
pub const OBJECTS: [(&str, &str); 12] = [
    ("batch", "jobs"),
    ("jobset.x-k8s.io", "jobsets"),
    ("leaderworkerset.x-k8s.io", "leaderworkersets"),
    ("kubeflow.org", "jaxjobs"),
    ("kubeflow.org", "mpijobs"),
    ("kubeflow.org", "paddlejobs"),
    ("kubeflow.org", "pytorchjobs"),
    ("kubeflow.org", "tfjobs"),
    ("kubeflow.org", "xgboostjobs"),
    ("ray.io", "rayclusters"),
    ("scheduling.k8s.io", "podgroups"),
    ("scheduling.k8s.io", "workloads"),
];

/// An object in the namespace of a pod. Its version is what the cluster serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Object {
    /// Its API group.
    pub group: &'static str,
    /// Its kind.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
}

impl Object {
    /// Reports whether it is a Job, which may limit how long its pods run.
    pub fn is_job(&self) -> bool {
        self.group == "batch"
    }
}

impl std::fmt::Display for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// What the labels of a pod say about its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) operator: Operator,
    /// The object that says how many pods the job has.
    pub(super) object: Object,
    /// The part of the object that is a job of its own, if the object has several: a group of a
    /// LeaderWorkerSet, or a replica of several hosts in a RayCluster.
    pub(super) part: Option<String>,
    /// The pod's role: a replicated job, a replica type, a worker group.
    pub(super) role: String,
    /// The index of the pod's Job in its role; 0 if each role has one.
    pub(super) outer: Option<u32>,
    /// The index of the pod in its Job or role.
    pub(super) inner: Option<u32>,
    /// The number of pods in the part, where the pod itself says it.
    pub(super) size: Option<u32>,
}

const LWS: &str = "leaderworkerset.sigs.k8s.io";
const JOBSET: &str = "jobset.sigs.k8s.io";
const KUBEFLOW: &str = "training.kubeflow.org";
const RAY: &str = "ray.io";
/// The index of a pod in an Indexed Job, as a label since Kubernetes 1.28 and as an annotation.
pub(crate) const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// The index of a pod in a StatefulSet, since Kubernetes 1.28.
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// The controllers of Kubeflow, as in the label `operator-name`, and the kinds of their objects.
const CONTROLLERS: [(&str, &str); 7] = [
    ("pytorchjob-controller", "PyTorchJob"),
    ("mpijob-controller", "MPIJob"),
    ("mpi-operator", "MPIJob"),
    ("tfjob-controller", "TFJob"),
    ("jaxjob-controller", "JAXJob"),
    ("paddlejob-controller", "PaddleJob"),
    ("xgboostjob-controller", "XGBoostJob"),
];

/// Returns the object that says how many pods the job of `pod` has; `None` for a pod of its own.
#[must_use]
pub fn object(pod: &Value) -> Option<Object> {
    Some(Group::of(pod)?.object)
}

/// Returns the index that whoever created the pod gave it, among all pods of its controller.
pub(super) fn index(pod: &Value) -> Option<u32> {
    label(pod, COMPLETION_INDEX)
        .or_else(|| annotation(pod, COMPLETION_INDEX))
        .or_else(|| label(pod, POD_INDEX))?
        .parse()
        .ok()
}

impl Group {
    /// Reads the labels and owners of `pod`.
    pub(super) fn of(pod: &Value) -> Option<Self> {
        leader_worker_set(pod)
            .or_else(|| job_set(pod))
            .or_else(|| kubeflow(pod))
            .or_else(|| ray(pod))
            .or_else(|| workload(pod))
            .or_else(|| pod_group(pod))
            .or_else(|| job(pod))
    }

    fn new(operator: Operator, group: &'static str, kind: &'static str, name: &str) -> Self {
        Self {
            operator,
            object: Object {
                group,
                kind,
                name: name.to_owned(),
            },
            part: None,
            role: String::new(),
            outer: Some(0),
            inner: None,
            size: None,
        }
    }
}

fn label<'a>(pod: &'a Value, key: &str) -> Option<&'a str> {
    pod::metadata(pod, "labels", key)?.as_str()
}

fn annotation<'a>(pod: &'a Value, key: &str) -> Option<&'a str> {
    pod::metadata(pod, "annotations", key)?.as_str()
}

fn number(pod: &Value, domain: &str, name: &str) -> Option<u32> {
    label(pod, &format!("{domain}/{name}"))?.parse().ok()
}

/// <https://lws.sigs.k8s.io/docs/reference/labels-annotations-and-environment-variables/>
fn leader_worker_set(pod: &Value) -> Option<Group> {
    let name = label(pod, &format!("{LWS}/name"))?;
    let group = "leaderworkerset.x-k8s.io";
    let worker = number(pod, LWS, "worker-index");
    let size = annotation(pod, &format!("{LWS}/size"));
    Some(Group {
        part: label(pod, &format!("{LWS}/group-index")).map(str::to_owned),
        role: match worker {
            Some(0) => "leader".to_owned(),
            _ => "worker".to_owned(),
        },
        inner: worker,
        size: size.and_then(|size| size.parse().ok()),
        ..Group::new(Operator::LeaderWorkerSet, group, "LeaderWorkerSet", name)
    })
}

/// <https://github.com/kubernetes-sigs/jobset/blob/main/api/jobset/v1alpha2/jobset_types.go>
fn job_set(pod: &Value) -> Option<Group> {
    let name = label(pod, &format!("{JOBSET}/jobset-name"))?;
    let role = label(pod, &format!("{JOBSET}/replicatedjob-name"));
    Some(Group {
        role: role.unwrap_or_default().to_owned(),
        outer: number(pod, JOBSET, "job-index"),
        inner: index(pod),
        ..Group::new(Operator::JobSet, "jobset.x-k8s.io", "JobSet", name)
    })
}

/// The labels `replica-type` of the training operator and `job-role` of the MPI operator
/// (<https://github.com/kubeflow/trainer/blob/release-1.9/pkg/apis/kubeflow.org/v1/common_types.go>,
/// <https://github.com/kubeflow/mpi-operator/blob/master/pkg/controller/mpi_job_controller.go>).
fn kubeflow(pod: &Value) -> Option<Group> {
    let name = label(pod, &format!("{KUBEFLOW}/job-name"))?;
    let operator = label(pod, &format!("{KUBEFLOW}/operator-name"));
    let owner = owner(pod);
    let mut kinds = CONTROLLERS.iter();
    let (_, kind) = kinds.find(|(controller, kind)| match operator {
        Some(operator) => operator == *controller,
        None => owner.is_some_and(|(_, owner, _)| owner == *kind),
    })?;
    let role = label(pod, &format!("{KUBEFLOW}/replica-type"))
        .or_else(|| label(pod, &format!("{KUBEFLOW}/job-role")));
    Some(Group {
        role: role.unwrap_or_default().to_ascii_lowercase(),
        inner: number(pod, KUBEFLOW, "replica-index"),
        ..Group::new(Operator::Kubeflow, "kubeflow.org", kind, name)
    })
}

/// The labels of KubeRay. Those of replicas with several hosts exist since 1.5
/// (<https://github.com/ray-project/kuberay/blob/master/ray-operator/controllers/ray/utils/constant.go>).
fn ray(pod: &Value) -> Option<Group> {
    let name = label(pod, &format!("{RAY}/cluster"))?;
    let group = label(pod, &format!("{RAY}/group"));
    let head = label(pod, &format!("{RAY}/node-type")) == Some("head");
    let replica = label(pod, &format!("{RAY}/worker-group-replica-name"));
    Some(Group {
        part: replica.map(str::to_owned),
        role: match head {
            true => "head".to_owned(),
            false => group.unwrap_or_default().to_owned(),
        },
        inner: number(pod, RAY, "replica-host-index"),
        ..Group::new(Operator::RayCluster, "ray.io", "RayCluster", name)
    })
}

/// The field of Kubernetes 1.35 (KEP-4671).
fn workload(pod: &Value) -> Option<Group> {
    let field = |name| pod::at(pod, &["spec", "workloadRef", name])?.as_str();
    let (name, role) = (field("name")?, field("podGroup")?);
    // Each group, and each replica of it, is a gang of its own.
    let part = match field("podGroupReplicaKey") {
        Some(key) => format!("{role}/{key}"),
        None => role.to_owned(),
    };
    Some(Group {
        part: Some(part),
        role: role.to_owned(),
        inner: index(pod),
        ..Group::new(Operator::Workload, "scheduling.k8s.io", "Workload", name)
    })
}

/// The field of Kubernetes 1.36.
fn pod_group(pod: &Value) -> Option<Group> {
    let name = pod::at(pod, &["spec", "schedulingGroup", "podGroupName"])?.as_str()?;
    Some(Group {
        inner: index(pod),
        ..Group::new(Operator::PodGroup, "scheduling.k8s.io", "PodGroup", name)
    })
}

fn job(pod: &Value) -> Option<Group> {
    let (_, _, name) = owner(pod).filter(|(api, kind, _)| *kind == "Job" && *api == "batch/v1")?;
    Some(Group {
        inner: index(pod),
        ..Group::new(Operator::Job, "batch", "Job", name)
    })
}

/// Returns apiVersion, kind and name of the pod's controller.
fn owner(pod: &Value) -> Option<(&str, &str, &str)> {
    let mut owners = pod::list(pod, &["metadata", "ownerReferences"]);
    let owner = owners.find(|owner| owner.get("controller") == Some(&Value::Bool(true)))?;
    let field = |name| owner.get(name)?.as_str();
    Some((field("apiVersion")?, field("kind")?, field("name")?))
}
