//! Faults of the webhook, of its certificate, its registration and its policies, and of the API
//! server that it asks.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Config, Resource,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use nvlink_tests::{
    ControlPlane, FaultyApi, Kubectl, Node, Replica, Webhook,
    certificates::Authority,
    node, port,
    programs::{self, WEBHOOK},
    webhook, workdir,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::watch::{Targets, Wanted, Watch, rules};
use crate::{pods::gpu_pod, shared::each_webhook};

/// What is broken first, all at once.
const AT_ONCE: &[Wanted<'_>] = &[
    ("not-registered", "NvlinkWebhookDegraded"),
    ("policies", "NvlinkClassNotIsolated"),
    (CLASS, "NvlinkClassNotIsolated"),
];
const EXPIRING: &[Wanted<'_>] = &[("", "NvlinkWebhookCertificateExpiring")];
/// While access reviews have no answer.
const UNDECIDED: &[Wanted<'_>] = &[
    ("overloaded", "NvlinkWebhookDegraded"),
    ("", "NvlinkWebhookUnreachable"),
];
/// While the API server cannot reach the webhook, and the webhook not the API server.
const APART: &[Wanted<'_>] = &[
    ("failed-open", "NvlinkWebhookDegraded"),
    ("cache-old", "NvlinkWebhookDegraded"),
];
const DOWN: &[Wanted<'_>] = &[("", "NvlinkWebhookDown")];
pub(super) const ALERTS: &[Wanted<'_>] = &[
    AT_ONCE[0],
    AT_ONCE[1],
    AT_ONCE[2],
    EXPIRING[0],
    UNDECIDED[0],
    UNDECIDED[1],
    APART[0],
    APART[1],
    DOWN[0],
];

/// The restricted class, and the namespace of the pods.
const CLASS: &str = "alerts";
/// May create pods, and may not use the class: rights that are granted are cached.
const STRANGER: &str = "system:serviceaccount:kube-system:replicaset-controller";
/// The user of the replica that maintains its registration.
const KEEPER: &str = "keeper";
const EXEMPT: [&str; 2] = ["--exempt-namespace", CLASS];

/// Creates objects by dry run, twice a second, until it is dropped.
struct Calls {
    _runtime: Runtime,
}

impl Calls {
    fn start<K>(kubeconfig: &Path, object: &Value) -> Self
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + Serialize
            + DeserializeOwned
            + std::fmt::Debug
            + Send
            + Sync
            + 'static,
        K::DynamicType: Default,
    {
        let runtime = Runtime::new().unwrap();
        let file = Kubeconfig::read_from(kubeconfig).unwrap();
        let object: K = serde_json::from_value(object.clone()).unwrap();
        runtime.spawn(async move {
            let options = KubeConfigOptions::default();
            let config = Config::from_custom_kubeconfig(file, &options).await;
            let client = Client::try_from(config.unwrap()).unwrap();
            let api = Api::<K>::namespaced(client, CLASS);
            let dry_run = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            loop {
                let (api, object, dry_run) = (api.clone(), object.clone(), dry_run.clone());
                // Most of them are refused.
                tokio::spawn(async move { drop(api.create(&dry_run, &object).await) });
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
        Self { _runtime: runtime }
    }
}

/// A replica that maintains its registration and compares the policies. The API server calls it for
/// no pods of these tests.
struct Keeper {
    replica: Replica,
    authority: Authority,
    directory: PathBuf,
}

impl Keeper {
    fn start(cluster: &ControlPlane) -> Self {
        let directory = workdir::fresh("keeper").unwrap();
        let authority = Authority::new("keeper").unwrap();
        let files = authority.issue("tls", &directory).unwrap();
        let ca = directory.join("ca.pem");
        fs::write(&ca, &authority.certificate).unwrap();
        let paths = [&files.certificate, &files.key, &ca].map(|path| path.to_str().unwrap());
        let address: SocketAddr = port::address().unwrap();
        let url = format!("https://{address}");
        let certificate = [
            "--tls-cert",
            paths[0],
            "--tls-key",
            paths[1],
            "--ca-file",
            paths[2],
        ];
        let others = ["--tls-poll-seconds", "1", "--url", &url, "--check-policies"];
        let kubeconfig = cluster.kubeconfig_for(KEEPER).unwrap();
        let arguments = [&certificate[..], &others, &EXEMPT].concat();
        let replica = Replica::start_on(address, &kubeconfig, &arguments).unwrap();
        Self {
            replica,
            authority,
            directory,
        }
    }

    /// Gives it a certificate for so long.
    fn certify(&self, days: u64) {
        let end = SystemTime::now() + Duration::from_secs(days * 86_400);
        self.authority
            .issue_until("tls", &self.directory, end)
            .unwrap();
    }
}

/// Binds the role of the keeper's registration.
fn allow_registration(kubectl: &Kubectl) {
    let role = "--clusterrole=keeper-registration";
    let user = format!("--user={KEEPER}");
    kubectl
        .run(&[
            "create",
            "clusterrolebinding",
            "keeper-registration",
            role,
            &user,
        ])
        .unwrap();
}

/// Gives the keeper its rights: what concerns the registration is a role of its own.
fn allow(kubectl: &Kubectl) {
    let groups = [
        "",
        "nvlink-domains.io",
        "authorization.k8s.io",
        "coordination.k8s.io",
        "resource.k8s.io",
        "events.k8s.io",
        "apps",
        "batch",
    ];
    let own = json!([
        {"apiGroups": groups, "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": ["admissionregistration.k8s.io"], "verbs": ["get"],
            "resources": ["validatingadmissionpolicies", "validatingadmissionpolicybindings"]},
    ]);
    let registration = json!([{
        "apiGroups": ["admissionregistration.k8s.io"], "verbs": ["*"],
        "resources": ["mutatingwebhookconfigurations"]
    }]);
    for (name, rules) in [("keeper", own), ("keeper-registration", registration)] {
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name}, "rules": rules});
        kubectl.create(&role).unwrap();
    }
    let user = format!("--user={KEEPER}");
    kubectl
        .run(&[
            "create",
            "clusterrolebinding",
            "keeper",
            "--clusterrole=keeper",
            &user,
        ])
        .unwrap();
    allow_registration(kubectl);
}

/// Registers the webhook at `url` for pods of the namespace only.
fn register(kubectl: &Kubectl, webhook: &Webhook, url: &str) {
    let printed = webhook.registration().unwrap();
    let mut own: Value = serde_saphyr::from_str(&printed).unwrap();
    own["metadata"]["name"] = json!(CLASS);
    let only = json!({"matchLabels": {"kubernetes.io/metadata.name": CLASS}});
    each_webhook(&mut own, |entry| {
        entry["namespaceSelector"] = only.clone();
        let path = entry["clientConfig"]["url"].as_str().unwrap();
        entry["clientConfig"]["url"] = json!(path.replace(&webhook.url, url));
    });
    kubectl.apply(&own.to_string()).unwrap();
}

fn apply_policies(kubectl: &Kubectl) {
    let arguments = ["policies", "--lease-namespace", "default"];
    let printed = programs::run(WEBHOOK, &[&arguments[..], &EXEMPT].concat(), "").unwrap();
    let apply = ["apply", "--server-side", "-f", "-"];
    kubectl.run_with(&apply, &printed).unwrap();
}

/// Returns the scrape configurations: of the replicas, and of the API server.
fn jobs(cluster: &ControlPlane, replicas: &Targets) -> Vec<Value> {
    let address = format!("127.0.0.1:{}", cluster.port());
    let api = json!({
        "job_name": "apiserver", "scheme": "https", "scrape_interval": "2s", "scrape_timeout": "2s",
        "tls_config": {"insecure_skip_verify": true}, "authorization": {"credentials": "admin"},
        "static_configs": [{"targets": [address]}],
        "metric_relabel_configs": [{
            "source_labels": ["__name__"], "action": "keep", "regex": "apiserver_admission_webhook_.+_count"
        }],
    });
    vec![replicas.job("nvlink-webhook"), api]
}

/// A control plane, two replicas, and what watches them.
struct Site {
    watch: Watch,
    replicas: Targets,
    keeper: Keeper,
    webhook: Webhook,
    slow: FaultyApi,
    cluster: ControlPlane,
}

impl Site {
    fn start() -> Self {
        let cluster = ControlPlane::start().unwrap();
        let kubectl = cluster.kubectl();
        webhook::install_crds(kubectl).unwrap();
        apply_policies(kubectl);
        allow(kubectl);
        cluster.namespace(CLASS, &json!({}), &json!({})).unwrap();
        let slow = FaultyApi::start(&cluster).unwrap();
        let webhook = Webhook::start(&slow.kubeconfig).unwrap();
        register(kubectl, &webhook, &webhook.url);
        let keeper = Keeper::start(&cluster);
        let replicas = Targets::new();
        replicas.set(&[&webhook.replica.admin, &keeper.replica.admin]);
        let others = ["exporter.yaml", "fabric.yaml", "jobs.yaml"];
        let watch = Watch::of(jobs(&cluster, &replicas), &rules(&others), 3);
        Self {
            watch,
            replicas,
            keeper,
            webhook,
            slow,
            cluster,
        }
    }

    /// Creates pods that name the class, as a user who may not use it.
    fn naming(&self) -> Calls {
        let mut pod = gpu_pod("named", 1);
        pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": CLASS});
        Calls::start::<Pod>(&self.cluster.kubeconfig_for(STRANGER).unwrap(), &pod)
    }

    fn break_at_once(&self) {
        let kubectl = self.cluster.kubectl();
        let binding = ["delete", "clusterrolebinding", "keeper-registration"];
        let registration = [
            "delete",
            "mutatingwebhookconfiguration",
            "nvlink-domains.io",
        ];
        let policy = [
            "delete",
            "validatingadmissionpolicybinding",
            "pods.nvlink-domains.io",
        ];
        for command in [binding, registration, policy] {
            kubectl.run(&command).unwrap();
        }
        let selector = json!({"matchLabels": {"pool": CLASS}});
        let class = json!({
            "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
            "metadata": {"name": CLASS},
            "spec": {"access": {"mode": "Restricted"}, "nodeSelector": selector},
        });
        kubectl.create(&class).unwrap();
        node::create(kubectl, &[Node::new("open", 8).label("pool", CLASS)]).unwrap();
    }

    fn repair(&self) {
        let kubectl = self.cluster.kubectl();
        allow_registration(kubectl);
        apply_policies(kubectl);
        kubectl.run(&["delete", "node", "open"]).unwrap();
        self.keeper.certify(3);
    }
}

#[test]
fn what_is_wrong_with_the_webhook_is_notified() {
    let site = Site::start();
    let watch = &site.watch;
    let begin = Instant::now();
    site.break_at_once();
    let pods = site.naming();
    watch.wait_until_firing(begin, AT_ONCE);
    let begin = Instant::now();
    site.repair();
    watch.wait_until_firing(begin, EXPIRING);
    watch.wait_until_resolved(AT_ONCE);

    let begin = Instant::now();
    site.keeper.certify(90);
    site.slow.set_late(true);
    watch.wait_until_firing(begin, UNDECIDED);
    site.slow.set_late(false);
    watch.wait_until_resolved(UNDECIDED);
    watch.wait_until_resolved(EXPIRING);
    drop(pods);
    wait_until_down(site);
}

/// The last faults: the webhook and the API server do not reach each other, and nobody is left.
fn wait_until_down(site: Site) {
    let Site {
        watch,
        replicas,
        keeper,
        webhook,
        slow,
        cluster,
    } = site;
    let kubectl = cluster.kubectl();
    let begin = Instant::now();
    drop(slow);
    let nowhere = format!("https://127.0.0.1:{}", port::free().unwrap());
    register(kubectl, &webhook, &nowhere);
    let pods = Calls::start::<Pod>(cluster.kubeconfig(), &gpu_pod("other", 1));
    watch.wait_until_firing(begin, APART);
    drop(pods);
    watch.wait_until_resolved(&APART[..1]);

    let begin = Instant::now();
    drop((webhook, keeper));
    watch.wait_until_firing(begin, DOWN);
    let paged = watch.received(DOWN[0]);
    assert_eq!(paged[0].receiver, "platform-pager");
    let again = Keeper::start(&cluster);
    replicas.set(&[&again.replica.admin]);
    watch.wait_until_resolved(DOWN);
}
