//! The controllers that create the pods of templates, and what they add to the pods.
//!
//! The API server calls the webhook for the pod that a controller creates, not for
//! the Job that a user creates. The controller is the requesting user, and the pod
//! has an owner and labels that the template does not have. Both affect the
//! decision, so the preview adds them.

use std::collections::BTreeMap;

use nvlink_admission::authorize::{Subject, User};
use nvlink_api::pod::text;
use serde_json::{Value, json};

use super::template::Template;

/// A controller that creates pods.
struct Maker {
    /// The kind of the object with the template.
    kind: &'static str,
    /// The prefix of its `apiVersion`.
    api: &'static str,
    /// The controller's service account in `kube-system`; none for an operator,
    /// whose account is unknown.
    account: Option<&'static str>,
    /// The kind of the pods' owner.
    owner: &'static str,
    /// Labels of its pods; an empty value stands for the object's name.
    labels: &'static [(&'static str, &'static str)],
}

const JOB: Option<&str> = Some("job-controller");
const REPLICA_SET: Option<&str> = Some("replicaset-controller");
const STATEFUL_SET: Option<&str> = Some("statefulset-controller");
const OPERATOR: &str = "training.kubeflow.org/operator-name";
const JOB_NAME: &str = "training.kubeflow.org/job-name";

/// The known controllers. For others, the kind of the object is the kind of the owner.
const MAKERS: &[Maker] = &[
    maker("Job", "batch/", JOB, "Job"),
    maker("CronJob", "batch/", JOB, "Job"),
    maker("Deployment", "apps/", REPLICA_SET, "ReplicaSet"),
    maker("ReplicaSet", "apps/", REPLICA_SET, "ReplicaSet"),
    maker("Rollout", "argoproj.io/", REPLICA_SET, "ReplicaSet"),
    maker("Service", "serving.knative.dev/", REPLICA_SET, "ReplicaSet"),
    maker("StatefulSet", "apps/", STATEFUL_SET, "StatefulSet"),
    maker(
        "DaemonSet",
        "apps/",
        Some("daemon-set-controller"),
        "DaemonSet",
    ),
    maker(
        "ReplicationController",
        "v1",
        Some("replication-controller"),
        "ReplicationController",
    ),
    Maker {
        labels: &[("jobset.sigs.k8s.io/jobset-name", "")],
        ..maker("JobSet", "jobset.x-k8s.io/", JOB, "Job")
    },
    Maker {
        labels: &[("leaderworkerset.sigs.k8s.io/name", "")],
        ..maker(
            "LeaderWorkerSet",
            "leaderworkerset.x-k8s.io/",
            STATEFUL_SET,
            "StatefulSet",
        )
    },
    Maker {
        labels: &[("volcano.sh/job-name", "")],
        ..maker("Job", "batch.volcano.sh/", None, "Job")
    },
    Maker {
        labels: &[(OPERATOR, "mpi-operator"), (JOB_NAME, "")],
        ..maker("MPIJob", "kubeflow.org/", None, "MPIJob")
    },
    Maker {
        labels: &[(OPERATOR, "pytorchjob-controller"), (JOB_NAME, "")],
        ..maker("PyTorchJob", "kubeflow.org/", None, "PyTorchJob")
    },
    Maker {
        labels: &[(OPERATOR, "tfjob-controller"), (JOB_NAME, "")],
        ..maker("TFJob", "kubeflow.org/", None, "TFJob")
    },
    Maker {
        labels: &[("ray.io/originated-from-crd", "RayCluster")],
        ..maker("RayCluster", "ray.io/", None, "RayCluster")
    },
    Maker {
        labels: &[("ray.io/originated-from-crd", "RayJob")],
        ..maker("RayJob", "ray.io/", None, "RayCluster")
    },
    Maker {
        labels: &[("ray.io/originated-from-crd", "RayService")],
        ..maker("RayService", "ray.io/", None, "RayCluster")
    },
];

const fn maker(
    kind: &'static str,
    api: &'static str,
    account: Option<&'static str>,
    owner: &'static str,
) -> Maker {
    Maker {
        kind,
        api,
        account,
        owner,
        labels: &[],
    }
}

fn of(template: &Template) -> Option<&'static Maker> {
    let object = &template.object;
    let mut makers = MAKERS.iter();
    makers.find(|maker| maker.kind == object.kind && object.api_version.starts_with(maker.api))
}

/// Returns the user `name`, without groups: they only matter for access reviews,
/// which the preview does not make.
pub(super) fn user(name: &str) -> User {
    User {
        username: name.to_owned(),
        ..User::default()
    }
}

/// Returns the controller that creates the pods of a template, as a user.
pub(super) fn controller(template: &Template) -> User {
    match of(template).and_then(|maker| maker.account) {
        Some(account) => user(&format!("system:serviceaccount:kube-system:{account}")),
        None => user(&format!("(the controller of {})", template.name())),
    }
}

/// Returns the users behind the pods of `template`, which `user` created.
pub(super) fn subject(template: &Template, pod: &Value, user: User) -> Subject {
    let user = match template.is_pod() {
        true => user,
        false => controller(template),
    };
    Subject {
        user,
        service_account: nvlink_api::pod::service_account(pod).to_owned(),
    }
}

/// The label of an object whose pods Kueue places.
const KUEUE_QUEUE: &str = "kueue.x-k8s.io/queue-name";
/// The annotations by which a template requests a topology of Kueue: `podset-required-topology` and others.
const KUEUE_REQUEST: (&str, &str) = ("kueue.x-k8s.io/podset-", "-topology");
/// The gate of a pod whose node Kueue chooses.
const KUEUE_GATE: &str = "kueue.x-k8s.io/topology";

/// What a controller adds to the pods of a template.
pub(super) struct Dress {
    labels: BTreeMap<String, String>,
    owner: Value,
    /// The scheduler of pods that name none: that of Volcano's Job, by default Volcano (`createJobPod` in
    /// pkg/controllers/job/job_controller_util.go).
    scheduler: Option<String>,
    /// Kueue 0.19 has admitted the object with a topology (pkg/podset/podset.go).
    is_placed_by_kueue: bool,
}

impl Dress {
    /// Returns what the controller adds to the pods of `template`; none for a plain pod.
    pub(super) fn of(template: &Template, document: &Value) -> Option<Self> {
        if template.is_pod() {
            return None;
        }
        let object = &template.object;
        let maker = of(template);
        let owner = json!([{
            "apiVersion": object.api_version, "controller": true, "uid": "preview",
            "kind": maker.map_or(object.kind.as_str(), |maker| maker.owner), "name": object.name,
        }]);
        let mut labels = BTreeMap::new();
        for (key, value) in maker.map_or(&[][..], |maker| maker.labels) {
            let value = if value.is_empty() {
                &object.name
            } else {
                *value
            };
            labels.insert((*key).to_owned(), value.to_owned());
        }
        labels.extend(of_path(template.path.as_str()));
        let queue = text(document, &["metadata", "labels", KUEUE_QUEUE]);
        // Kueue admits these pod by pod, by the label.
        let apart = ["apps/", "leaderworkerset.x-k8s.io/"];
        let apart = apart.iter().any(|api| object.api_version.starts_with(api));
        if !queue.is_empty() {
            let own: &[_] = match apart {
                true => &[("queue-name", queue)],
                false => &[("podset", "main"), ("local-queue-name", queue)],
            };
            let own = own.iter();
            labels.extend(
                own.map(|(key, value)| (format!("kueue.x-k8s.io/{key}"), (*value).to_owned())),
            );
        }
        let of_volcano = object.api_version.starts_with("batch.volcano.sh/");
        let scheduler = match text(document, &["spec", "schedulerName"]) {
            "" => "volcano",
            named => named,
        };
        let pod = document.pointer(template.path.as_str());
        let annotations = pod.and_then(|pod| pod.pointer("/metadata/annotations")?.as_object());
        let (start, end) = KUEUE_REQUEST;
        let requests = |key: &String| key.starts_with(start) && key.ends_with(end);
        let is_placed = annotations.is_some_and(|all| all.keys().any(requests));
        Some(Self {
            labels,
            owner,
            scheduler: of_volcano.then(|| scheduler.to_owned()),
            is_placed_by_kueue: !queue.is_empty() && !apart && is_placed,
        })
    }

    /// Returns the pod that the controller creates from `template`.
    pub(super) fn put_on(&self, template: &Value) -> Value {
        let mut pod = template.clone();
        let metadata = object(&mut pod, "metadata");
        if let Some(metadata) = metadata {
            metadata.insert("ownerReferences".to_owned(), self.owner.clone());
        }
        if let Some(labels) = object(&mut pod["metadata"], "labels") {
            for (key, value) in &self.labels {
                labels.entry(key.as_str()).or_insert_with(|| json!(value));
            }
        }
        if let Some(scheduler) = &self.scheduler
            && let Some(spec) = object(&mut pod, "spec")
        {
            let own = spec.entry("schedulerName").or_insert(Value::Null);
            if matches!(own.as_str(), None | Some("")) {
                *own = json!(scheduler);
            }
        }
        if self.is_placed_by_kueue
            && let Some(spec) = object(&mut pod, "spec")
            && let Some(gates) = list(spec, "schedulingGates")
        {
            gates.push(json!({"name": KUEUE_GATE}));
        }
        pod
    }

    /// Takes off the scheduler and the gate.
    fn undress(&self, pod: &mut Value, template: &Value) {
        let had = |key: &str| template.get("spec").and_then(|spec| spec.get(key));
        let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else {
            return;
        };
        if self.scheduler.is_some() {
            match had("schedulerName") {
                Some(own) => spec.insert("schedulerName".to_owned(), own.clone()),
                None => spec.remove("schedulerName"),
            };
        }
        if self.is_placed_by_kueue
            && let Some(gates) = list(spec, "schedulingGates")
        {
            let kueues = gates.iter().position(|gate| gate["name"] == KUEUE_GATE);
            kueues.map(|at| gates.remove(at));
            if gates.is_empty() && had("schedulingGates").is_none() {
                spec.remove("schedulingGates");
            }
        }
    }

    /// Returns `pod`, which was created from `template`, as a template again.
    pub(super) fn take_off(&self, mut pod: Value, template: &Value) -> Value {
        self.undress(&mut pod, template);
        if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
            match template.pointer("/metadata/ownerReferences") {
                Some(own) => metadata.insert("ownerReferences".to_owned(), own.clone()),
                None => metadata.remove("ownerReferences"),
            };
            let had = template.pointer("/metadata/labels");
            let own = |key: &str| had.is_some_and(|had| had.get(key).is_some());
            if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
                labels.retain(|key, _| own(key) || !self.labels.contains_key(key));
                if labels.is_empty() && had != Some(&json!({})) {
                    metadata.remove("labels");
                }
            }
            if metadata.is_empty() && template.get("metadata") != Some(&json!({})) {
                pod.as_object_mut().map(|pod| pod.remove("metadata"));
            }
        }
        pod
    }
}

/// Returns the object at `key`, and creates it if it is missing; `None` if `key`
/// holds another type.
fn object<'a>(value: &'a mut Value, key: &str) -> Option<&'a mut serde_json::Map<String, Value>> {
    let entry = value.as_object_mut()?.entry(key).or_insert(Value::Null);
    if entry.is_null() {
        *entry = json!({});
    }
    entry.as_object_mut()
}

/// Returns the list at `key`, and creates it if it is missing; `None` if `key` is another type.
fn list<'a>(spec: &'a mut serde_json::Map<String, Value>, key: &str) -> Option<&'a mut Vec<Value>> {
    spec.entry(key).or_insert_with(|| json!([])).as_array_mut()
}

/// Returns labels that follow from the path of a template in kinds of Kubeflow and Ray.
fn of_path(path: &str) -> Vec<(String, String)> {
    let parts: Vec<_> = path.split('/').collect();
    let label = |key: &str, value: &str| vec![(key.to_owned(), value.to_owned())];
    for pair in parts.windows(2) {
        match pair {
            [list, role] if list.ends_with("ReplicaSpecs") => {
                let role = role.to_ascii_lowercase();
                return label("training.kubeflow.org/replica-type", &role);
            }
            ["headGroupSpec", _] => return label("ray.io/node-type", "head"),
            ["workerGroupSpecs", _] => return label("ray.io/node-type", "worker"),
            _ => {}
        }
    }
    Vec::new()
}
