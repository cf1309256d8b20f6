//! How many pods with GPUs a job has, by the object that its operator creates them from.
//!
//! Pods without GPUs, such as the launcher of an MPIJob or the head of a RayCluster, do not wait
//! in the queue, so they do not count.

use nvlink_api::pod;
use serde_json::Value;

use super::operator::{Group, Operator};

/// The replica types of Kubeflow, in the order of their ranks.
const REPLICA_TYPES: [&str; 6] = ["launcher", "master", "chief", "worker", "ps", "evaluator"];

/// The pods of one role, all of which request GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Role {
    pub(super) name: String,
    /// Number of pods.
    pub(super) pods: u32,
    /// Number of pods of each of its Jobs.
    pub(super) each: u32,
    /// The index of its first pod.
    pub(super) first: u32,
}

/// The roles of a job, in the order of their ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) roles: Vec<Role>,
    /// The roles do not start together: the pods of one exist only after those of another run, or
    /// their number changes. Then each role is a gang of its own.
    pub(super) apart: bool,
}

impl Sizes {
    /// Reads `object`, from which the pods of `group` are created; `None` if it is not of the
    /// expected form. GPUs are those of `resource`.
    pub(super) fn of(group: &Group, object: &Value, resource: &str) -> Option<Self> {
        let spec = object.get("spec")?;
        match group.operator {
            Operator::Job => Some(Self::together(vec![Role::new("", job(spec))])),
            Operator::JobSet => Some(job_set(spec, resource)),
            Operator::LeaderWorkerSet => leader_worker_set(object, resource),
            Operator::Kubeflow => kubeflow(spec, resource),
            Operator::RayCluster => Some(ray(spec, group, resource)),
            Operator::Workload => workload(spec, &group.role),
            Operator::PodGroup => Some(Self::together(vec![Role::new("", least(spec)?)])),
        }
    }

    fn together(roles: Vec<Role>) -> Self {
        Self {
            roles: roles.into_iter().filter(|role| role.pods > 0).collect(),
            apart: false,
        }
    }

    /// Returns the number of pods that start together with those of `role`.
    pub(super) fn total(&self, role: &str) -> u32 {
        let counted = |one: &&Role| !self.apart || one.name == role;
        let roles = self.roles.iter().filter(counted);
        roles.fold(0, |sum, role| sum.saturating_add(role.pods))
    }
}

impl Role {
    fn new(name: &str, pods: u32) -> Self {
        Self {
            name: name.to_owned(),
            pods,
            each: pods,
            first: 0,
        }
    }
}

fn count(value: &Value, path: &[&str], absent: u32) -> u32 {
    let count = pod::at(value, path).and_then(Value::as_u64);
    count.map_or(absent, |count| u32::try_from(count).unwrap_or(u32::MAX))
}

/// Reports whether a pod of the template requests GPUs.
fn has_gpus(template: Option<&Value>, resource: &str) -> bool {
    let containers = template.map(pod::containers).unwrap_or_default();
    pod::request(&containers, resource).is_ok_and(|gpus| gpus > 0)
}

/// Returns the number of pods of a Job that run at the same time; 0 if it has more work than
/// that, so that its pods are a queue of tasks and not one job.
fn job(spec: &Value) -> u32 {
    let parallelism = count(spec, &["parallelism"], 1);
    match count(spec, &["completions"], parallelism) {
        completions if completions > parallelism => 0,
        completions => completions,
    }
}

fn job_set(spec: &Value, resource: &str) -> Sizes {
    let jobs = || pod::list(spec, &["replicatedJobs"]);
    let roles = jobs().filter_map(|job| {
        let template = pod::at(job, &["template", "spec"])?;
        let parallelism = count(template, &["parallelism"], 1);
        let each = parallelism.min(count(template, &["completions"], parallelism));
        let replicas = count(job, &["replicas"], 1);
        has_gpus(template.get("template"), resource).then(|| Role {
            each,
            ..Role::new(
                job.get("name").and_then(Value::as_str).unwrap_or_default(),
                replicas.saturating_mul(each),
            )
        })
    });
    let order = pod::at(spec, &["startupPolicy", "startupPolicyOrder"]);
    let waits = |job: &Value| pod::list(job, &["dependsOn"]).next().is_some();
    Sizes {
        apart: order.and_then(Value::as_str) == Some("InOrder") || jobs().any(waits),
        ..Sizes::together(roles.collect())
    }
}

fn leader_worker_set(object: &Value, resource: &str) -> Option<Sizes> {
    let spec = object.get("spec")?;
    let template = spec.get("leaderWorkerTemplate")?;
    let workers = template.get("workerTemplate");
    let leader = template
        .get("leaderTemplate")
        .filter(|leader| !leader.is_null())
        .or(workers);
    let mut roles = Vec::new();
    if has_gpus(leader, resource) {
        roles.push(Role::new("leader", 1));
    }
    if has_gpus(workers, resource) {
        let size = count(template, &["size"], 1);
        roles.push(Role {
            first: 1,
            ..Role::new("worker", size.saturating_sub(1))
        });
    }
    let ready = spec.get("startupPolicy").and_then(Value::as_str) == Some("LeaderReady");
    // With this annotation, the workers are created on the leader's rack, once it has a node.
    let exclusive = "leaderworkerset.sigs.k8s.io/exclusive-topology";
    Some(Sizes {
        apart: ready || pod::metadata(object, "annotations", exclusive).is_some(),
        ..Sizes::together(roles)
    })
}

fn kubeflow(spec: &Value, resource: &str) -> Option<Sizes> {
    let mut fields = spec.as_object()?.iter();
    let (_, replicas) = fields.find(|(key, _)| key.ends_with("ReplicaSpecs"))?;
    let replicas = replicas.as_object()?;
    // The launcher is then the first worker.
    let launches = spec.get("runLauncherAsWorker") == Some(&Value::Bool(true));
    let roles = REPLICA_TYPES.iter().filter_map(|name| {
        let (_, replica) = replicas
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))?;
        has_gpus(replica.get("template"), resource).then(|| Role {
            first: u32::from(launches && *name == "worker"),
            ..Role::new(name, count(replica, &["replicas"], 1))
        })
    });
    Some(Sizes::together(roles.collect()))
}

fn ray(spec: &Value, group: &Group, resource: &str) -> Sizes {
    let head = pod::at(spec, &["headGroupSpec", "template"]);
    let head = has_gpus(head, resource).then(|| Role::new("head", 1));
    let scales = spec.get("enableInTreeAutoscaling") == Some(&Value::Bool(true));
    let groups = pod::list(spec, &["workerGroupSpecs"]).filter_map(|one| {
        let hosts = count(one, &["numOfHosts"], 1);
        let pods = match scales {
            // Only the hosts of one replica start together.
            true if group.part.is_some() => hosts,
            true => 1,
            false => count(one, &["replicas"], 1).saturating_mul(hosts),
        };
        let name = one.get("groupName").and_then(Value::as_str);
        has_gpus(one.get("template"), resource).then(|| Role {
            each: hosts,
            ..Role::new(name.unwrap_or_default(), pods)
        })
    });
    Sizes {
        apart: scales,
        ..Sizes::together(head.into_iter().chain(groups).collect())
    }
}

fn workload(spec: &Value, role: &str) -> Option<Sizes> {
    let lists = ["podGroups", "podGroupTemplates"];
    let mut groups = lists.iter().flat_map(|list| pod::list(spec, &[list]));
    let group = groups.find(|group| group.get("name").and_then(Value::as_str) == Some(role))?;
    Some(Sizes::together(vec![Role::new(role, least(group)?)]))
}

/// Returns the least number of pods of a group; 1 for a group whose pods start one by one.
fn least(group: &Value) -> Option<u32> {
    let policy = group
        .get("policy")
        .or_else(|| group.get("schedulingPolicy"))?;
    Some(count(policy, &["gang", "minCount"], 1))
}
