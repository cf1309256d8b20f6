//! Runs the list of cases on a real API server: with the webhook; with the policies and
//! no webhook; and with the policies and a webhook that does not answer.
//!
//! `crates/admission/tests/all/access.rs` runs the same list against the pure decision.
//!
//! It uses its own control plane: each restricted class that does not list the namespace
//! of a daemon that tolerates everything refuses it, including the classes of other
//! tests.

use std::{cell::RefCell, collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Config,
    api::{ApiResource, DynamicObject, PostParams},
    config::Kubeconfig,
};
use nvlink_tests::{
    ControlPlane, Kubectl, Webhook,
    programs::{self, WEBHOOK},
    wait_until, webhook,
};
use serde_json::{Value, json};

#[path = "../../../crates/admission/tests/cases/list.rs"]
mod list;

use list::{Action, Case, List};

const SOON: Duration = Duration::from_secs(60);
/// The beginnings of the names of cases that an older Kubernetes does not have, the feature that
/// they need, and the minor version that has it.
const LATER: [(&str, &str, u32); 3] = [
    ("more memory", "pods/resize", 33),
    ("an unmasked /proc", "procMount", 33),
    (
        "the daemon of a ComputeDomain",
        "resourceClaimTemplateName",
        31,
    ),
];

#[test]
fn the_webhook_and_the_policies_agree_with_each_case() {
    let cluster = ControlPlane::start().unwrap();
    let kubectl = cluster.kubectl();
    webhook::install_crds(kubectl).unwrap();
    let mut list = list::read();
    list.cases.retain(|case| {
        let later = LATER.iter().find(|(name, ..)| case.name.starts_with(name));
        !later.is_some_and(|(_, feature, minor)| nvlink_tests::assets::lacks(feature, *minor))
    });
    prepare(&cluster, &list);
    let runner = Runner::new(&cluster);
    let held = runner.create_pods_to_be_changed(&list);

    hold_lease(kubectl);
    let webhook = Webhook::start(cluster.kubeconfig()).unwrap();
    webhook.register(kubectl).unwrap();
    wait_until_denied(&runner, &list, "admission webhook");
    let mut wrong = runner.check("the webhook", &list, &held, List::pod, |case, said| {
        let refused = said.pod.is_null() || case.change.is_some();
        // A policy alone checks the status.
        let unasked = changes(case, Action::Status) && said.text == "allowed";
        (unasked || expected(case, said))
            && (refused || case.is_as_wanted(&list.pod(case), &said.pod))
    });

    let registration = "mutatingwebhookconfiguration/nvlink-domains.io";
    kubectl.run(&["delete", registration]).unwrap();
    let policies = programs::run(WEBHOOK, &["policies"], "").unwrap();
    let apply = ["apply", "--server-side", "-f", "-"];
    kubectl.run_with(&apply, &policies).unwrap();
    webhook::write_index(kubectl).unwrap();
    wait_until_denied(&runner, &list, "ValidatingAdmissionPolicy");
    wrong.extend(runner.check("the policies", &list, &held, List::shielded, by_policies));
    let alone = "the policies, without a webhook that hides GPUs";
    wrong.extend(runner.check(alone, &list, &held, List::pod, by_policies_alone));

    webhook.register(kubectl).unwrap();
    drop(webhook);
    let open = list.cases.iter().find(|case| case.name == "open, anybody");
    wait_until("the API server to call the dead webhook", SOON, || {
        let said = runner.run(open.unwrap(), &list.pod(open.unwrap()), None);
        Ok(said.text.contains(UNANSWERED).then_some(()))
    })
    .unwrap();
    let dead = "the policies, with a dead webhook";
    wrong.extend(
        runner.check(dead, &list, &held, List::shielded, |case, said| {
            // GPU pods that name a class need the webhook, whatever the policies decide.
            // The policies alone decide on all others.
            let waits = case.change.is_none() && asks_for_a_class(&list.pod(case));
            by_policies(case, said) || waits && said.text.contains(UNANSWERED)
        }),
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Keeps the Lease from the webhook, whose leader would write the pods that wait, and so change
/// them under the cases.
fn hold_lease(kubectl: &Kubectl) {
    // The API server takes microseconds only.
    let now = format!("{:.6}", k8s_openapi::jiff::Timestamp::now());
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "nvlink-webhook", "namespace": "default"},
        "spec": {"holderIdentity": "nobody", "leaseDurationSeconds": 86_400, "renewTime": now},
    });
    kubectl.create(&lease).unwrap();
}

/// The API server's error for a webhook that does not answer.
const UNANSWERED: &str = "failed calling webhook";

/// Reports whether the pod names a class and requests a GPU.
fn asks_for_a_class(pod: &Value) -> bool {
    let named = pod["metadata"]["annotations"]["nvlink-domains.io/class"].is_string();
    named && pod["spec"].to_string().contains("\"nvidia.com/")
}

/// The API server's answer to a case.
struct Said {
    /// `allowed`, or the reason of the refusal.
    text: String,
    /// The pod as the API server would store it.
    pod: Value,
}

/// Reports whether the case changes a pod by `action`.
fn changes(case: &Case, action: Action) -> bool {
    let change = case.change.as_ref();
    change.is_some_and(|it| it.action == action)
}

/// Reports whether the answer `said` is the one that the case expects.
fn expected(case: &Case, said: &Said) -> bool {
    let said = &said.text;
    match case.expect.as_str() {
        "allowed" => said == "allowed",
        // The API server's own validation may come first.
        _ if changes(case, Action::Resize) => said != "allowed",
        rule => said.contains(&format!("rule {rule}:")) && is_told(case, said),
    }
}

/// Reports whether a refusal contains the remedy.
fn is_told(case: &Case, said: &str) -> bool {
    case.told.iter().all(|part| said.contains(part))
}

/// Reports the same for the policies, which may name another broken rule.
fn by_policies(case: &Case, said: &Said) -> bool {
    if case.unseen {
        return said.text == "allowed";
    }
    if let Some(rule) = &case.policies {
        return said.text.contains(&format!("rule {rule}:"));
    }
    let other = case.or.as_ref();
    let or =
        |rule: &String| said.text.contains(&format!("rule {rule}:")) && is_told(case, &said.text);
    expected(case, said) || other.is_some_and(or)
}

/// Reports the same for the policies alone. The containers of a created pod then do not
/// have the settings that hide GPUs, so the policies refuse the pod, unless it is a
/// daemon in a namespace that the classes list.
fn by_policies_alone(case: &Case, said: &Said) -> bool {
    if case.hidden.is_empty() || case.expect != "allowed" {
        return by_policies(case, said);
    }
    let rule = case.or.as_deref().unwrap_or("visible-devices");
    let passes = case.namespace == "platform" || rule == "allowed";
    let mut rules = [Some(rule), case.policies.as_deref()].into_iter().flatten();
    passes && said.text == "allowed"
        || rules.any(|rule| said.text.contains(&format!("rule {rule}:")))
}

/// Creates namespaces, classes and rights. Neither webhook nor policies are in effect yet.
fn prepare(cluster: &ControlPlane, list: &List) {
    let mut objects = Vec::new();
    for name in ["nvidia", "nvidia-cdi", "kata-qemu-nvidia-gpu", "gvisor"] {
        objects.push(json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": {"name": name}, "handler": name
        }));
    }
    for (name, namespace) in &list.namespaces {
        if name != "kube-system" {
            let labels = match namespace.exempt {
                true => json!({"nvlink-domains.io/webhook": "ignore"}),
                false => json!({}),
            };
            let default = namespace.default.as_ref();
            let annotations = match default {
                Some(class) => json!({"nvlink-domains.io/default-class": class}),
                None => json!({}),
            };
            cluster.namespace(name, &labels, &annotations).unwrap();
        }
        objects.extend(pod_rights(name));
    }
    for (index, grant) in list.grants.iter().enumerate() {
        objects.extend(class_rights(index, grant));
    }
    objects.extend(list.nodes.iter().map(|(name, labels)| {
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "spec": {"unschedulable": true}
        })
    }));
    objects.extend(list.classes.iter().map(|(name, spec)| {
        json!({
            "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
            "metadata": {"name": name}, "spec": spec
        })
    }));
    create_all(cluster.kubectl(), &objects);
}

/// Creates all objects with one call.
fn create_all(kubectl: &Kubectl, objects: &[Value]) -> Vec<Value> {
    let all = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let arguments = ["create", "-f", "-", "-o", "json"];
    documents(&kubectl.run_with(&arguments, &all.to_string()).unwrap())
}

/// Parses kubectl's output, one document after the other.
fn documents(text: &str) -> Vec<Value> {
    let stream = serde_json::Deserializer::from_str(text).into_iter();
    stream.map(Result::unwrap).collect()
}

/// Returns a role and binding that let all users create and change pods in the namespaces
/// of the cases.
fn pod_rights(namespace: &str) -> [Value; 2] {
    let metadata = json!({"name": "case-pods", "namespace": namespace});
    let rules = json!([{
        "apiGroups": [""], "verbs": ["create", "update"],
        "resources": ["pods", "pods/ephemeralcontainers", "pods/resize", "pods/status"]
    }]);
    let everybody = json!({"kind": "Group", "name": "system:authenticated", "apiGroup": RBAC});
    [
        json!({"apiVersion": RBAC_V1, "kind": "Role", "metadata": metadata, "rules": rules}),
        json!({
            "apiVersion": RBAC_V1, "kind": "RoleBinding", "metadata": metadata,
            "subjects": [everybody],
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "case-pods"}
        }),
    ]
}

const RBAC: &str = "rbac.authorization.k8s.io";
const RBAC_V1: &str = "rbac.authorization.k8s.io/v1";

/// Returns a grant of the list as a role and a binding.
fn class_rights(index: usize, grant: &list::Grant) -> [Value; 2] {
    let name = format!("case-grant-{index}");
    let mut metadata = json!({"name": name});
    let prefix = match &grant.namespace {
        Some(namespace) => {
            metadata["namespace"] = json!(namespace);
            ""
        }
        None => "Cluster",
    };
    let mut rule = json!({
        "apiGroups": ["nvlink-domains.io"], "resources": ["domainclasses"], "verbs": [grant.verb]
    });
    if let Some(class) = &grant.class {
        rule["resourceNames"] = json!([class]);
    }
    let subject = match (&grant.user, &grant.group, &grant.account) {
        (Some(user), ..) => json!({"kind": "User", "name": user, "apiGroup": RBAC}),
        (_, Some(group), _) => json!({"kind": "Group", "name": group, "apiGroup": RBAC}),
        (.., Some(account)) => {
            let (namespace, name) = account.split_once('/').expect("namespace/name");
            json!({"kind": "ServiceAccount", "name": name, "namespace": namespace})
        }
        _ => panic!("grant {index} has no subject"),
    };
    let role = format!("{prefix}Role");
    [
        json!({"apiVersion": RBAC_V1, "kind": role, "metadata": metadata, "rules": [rule]}),
        json!({
            "apiVersion": RBAC_V1, "kind": format!("{role}Binding"), "metadata": metadata,
            "subjects": [subject], "roleRef": {"apiGroup": RBAC, "kind": role, "name": name}
        }),
    ]
}

/// Waits until `who` denies a pod of a user without the right, in each namespace that is
/// not exempt.
fn wait_until_denied(runner: &Runner<'_>, list: &List, who: &str) {
    // One case of each policy, since the API server begins with one after the other.
    let nobody = "silver, the right to gold is none to silver";
    let taint = "tolerates the taint of a class that does not exist";
    let cases = list::read().cases.into_iter();
    let cases = cases.filter(|case| case.name == nobody || case.name == taint);
    for mut case in cases {
        for (name, namespace) in &list.namespaces {
            if namespace.exempt {
                continue;
            }
            case.namespace.clone_from(name);
            wait_until(&format!("{who} to deny in {name}"), SOON, || {
                Ok(runner
                    .run(&case, &list.pod(&case), None)
                    .text
                    .contains(who)
                    .then_some(()))
            })
            .unwrap();
        }
    }
}

/// Existing pods, by the name of their case.
type Pods = BTreeMap<String, Value>;

/// Runs the cases as the users that they name.
struct Runner<'a> {
    cluster: &'a ControlPlane,
    runtime: tokio::runtime::Runtime,
    clients: RefCell<BTreeMap<(String, Vec<String>), Client>>,
}

impl<'a> Runner<'a> {
    fn new(cluster: &'a ControlPlane) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        Self {
            cluster,
            runtime: runtime.unwrap(),
            clients: RefCell::default(),
        }
    }

    /// Creates the pods of the cases that change one, before any rule is in effect.
    fn create_pods_to_be_changed(&self, list: &List) -> Pods {
        let changed = list.cases.iter().enumerate();
        let changed: Vec<_> = changed.filter(|(_, case)| case.change.is_some()).collect();
        let pod = |(index, case): &(usize, &Case)| {
            let mut pod = list.pod(case);
            pod["metadata"]["name"] = json!(format!("case-{index}"));
            pod
        };
        let pods: Vec<_> = changed.iter().map(pod).collect();
        let names = changed.iter().map(|(_, case)| case.name.clone());
        names
            .zip(create_all(self.cluster.kubectl(), &pods))
            .collect()
    }

    /// Returns the wrong answers to the cases, one line each.
    fn check(
        &self,
        who: &str,
        list: &List,
        held: &Pods,
        pod: impl Fn(&List, &Case) -> Value,
        right: impl Fn(&Case, &Said) -> bool,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        for case in &list.cases {
            let said = self.run(case, &pod(list, case), held.get(&case.name));
            if !right(case, &said) {
                let Said { text, pod } = said;
                let Case {
                    name,
                    expect,
                    hidden,
                    ..
                } = case;
                wrong.push(format!(
                    "{who}: {name}: expected {expect} {hidden:?}, but: {text} {}",
                    pod["spec"]
                ));
            }
        }
        wrong
    }

    /// Returns the API server's answer to the creation of `pod`, or to the change of
    /// `held`. Nothing is stored.
    fn run(&self, case: &Case, pod: &Value, held: Option<&Value>) -> Said {
        let answer = self.runtime.block_on(async {
            let api = pods(self.client(case).await, &case.namespace);
            let dry = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            match (&case.change, held) {
                (Some(change), Some(pod)) => {
                    let mut pod = pod.clone();
                    change.apply(&mut pod);
                    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
                    let part = match change.action {
                        Action::Update => {
                            let pod = serde_json::from_value(pod).unwrap();
                            return api.replace(&name, &dry, &pod).await;
                        }
                        Action::Debug => "ephemeralcontainers",
                        Action::Resize => "resize",
                        Action::Status => "status",
                    };
                    api.replace_subresource(part, &name, &dry, &pod).await
                }
                _ => {
                    let pod = serde_json::from_value(pod.clone()).unwrap();
                    api.create(&dry, &pod).await
                }
            }
        });
        let (text, pod) = match answer {
            Ok(pod) => ("allowed".to_owned(), json!(pod)),
            Err(kube::Error::Api(status)) => (status.message.clone(), Value::Null),
            Err(error) => (error.to_string(), Value::Null),
        };
        Said { text, pod }
    }

    /// Returns a client that impersonates the user of the case.
    async fn client(&self, case: &Case) -> Client {
        let who = (case.by.clone(), case.groups.clone());
        if let Some(client) = self.clients.borrow().get(&who) {
            return client.clone();
        }
        let file = Kubeconfig::read_from(self.cluster.kubeconfig()).unwrap();
        let config = Config::from_custom_kubeconfig(file, &Default::default()).await;
        let mut config = config.unwrap();
        config.auth_info.impersonate = Some(case.by.clone());
        if !case.groups.is_empty() {
            config.auth_info.impersonate_groups = Some(case.groups.clone());
        }
        let client = Client::try_from(config).unwrap();
        self.clients.borrow_mut().insert(who, client.clone());
        client
    }
}

/// Returns the API of the pods of a namespace, without conversion.
fn pods(client: Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client, namespace, &ApiResource::erase::<Pod>(&()))
}
