//! A real Kubernetes control plane on loopback: etcd, API server, scheduler
//! and controller manager.
//!
//! By itself it has no kubelet: pods are scheduled and bound, and stay Pending. A [`crate::Lab`] is
//! a node with a kubelet, for control planes of [`ControlPlane::start_for_kubelets`].

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::{
    assets,
    certificates::{Authority, ServerFiles, signing_keys},
    kubeconfig::{self, Server, User},
    kubectl::Kubectl,
    port,
    process::{Process, command},
    wait::wait_until,
    workdir,
};

mod etcd;
mod scheduler;

const START: Duration = Duration::from_secs(120);
const SETTLE: Duration = Duration::from_secs(60);

/// The controllers that create pods and clean up. The controller that taints nodes with a silent
/// kubelet is left out, because there are no kubelets.
const CONTROLLERS: [&str; 11] = [
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "persistentvolume-binder-controller",
    "replicaset-controller",
    "resourceclaim-controller",
    "serviceaccount-controller",
    "statefulset-controller",
];

/// The controllers that pods need besides, once they run.
const CONTROLLERS_FOR_KUBELETS: [&str; 6] = [
    "clusterrole-aggregation-controller", // users may then be bound to the ClusterRole edit
    "disruption-controller",
    "endpoints-controller", // by which API servers before 1.31 find webhooks in pods
    "endpointslice-controller",
    "pod-garbage-collector-controller",
    "root-ca-certificate-publisher-controller",
];

/// Where programs in pods reach the API server: the first address of the Services, and the name.
const IN_CLUSTER: [&str; 2] = ["10.0.0.1", "kubernetes.default.svc"];

/// The client certificate by which kubelets know the API server.
const KUBELET_CLIENT: &str = "kubelet-client";

/// The file of the AdmissionConfiguration, if there is one.
const ADMISSION: &str = "admission.yaml";

/// The audit policy, if requests are recorded, and their record.
const AUDIT: &str = "audit.yaml";
const AUDIT_LOG: &str = "audit.log";
const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
";

/// Users with a token of their own. The administrator impersonates everybody else.
const TOKENS: &str = "\
admin,admin,1,system:masters
scheduler,system:kube-scheduler,2
controllers,system:kube-controller-manager,3
";

/// What a control plane does that most tests do not need.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// The API server shows this certificate to all webhooks.
    pub shown: Option<&'a ServerFiles>,
    /// The API server records all requests, see [`ControlPlane::requests`].
    pub recording: bool,
    /// Kubelets will run pods: it mounts tokens into pods, maintains the endpoints of Services,
    /// calls webhooks that run in pods, and reads logs from kubelets.
    pub kubelets: bool,
}

/// A running control plane. It ends when dropped.
#[derive(Debug)]
pub struct ControlPlane {
    directory: PathBuf,
    url: String,
    port: u16,
    /// Whether kubelets will run pods.
    kubelets: bool,
    kubectl: Kubectl,
    // Dropped in this order: the clients before the servers.
    scheduler: Option<Process>,
    controllers: Option<Process>,
    api: Mutex<Option<Process>>,
    etcd: Option<etcd::Etcd>,
}

impl ControlPlane {
    /// Starts a control plane. Builds it first if it was never built on this machine.
    ///
    /// # Errors
    /// When a part does not come up; shows the end of its log.
    pub fn start() -> Result<Self> {
        Self::start_with(Options::default())
    }

    /// Starts a control plane for kubelets.
    ///
    /// # Errors
    /// When a part does not come up; shows the end of its log.
    pub fn start_for_kubelets() -> Result<Self> {
        Self::start_with(Options {
            kubelets: true,
            ..Options::default()
        })
    }

    /// Starts a control plane.
    ///
    /// # Errors
    /// When a part does not come up; shows the end of its log.
    pub fn start_with(options: Options<'_>) -> Result<Self> {
        assets::build()?;
        let directory = workdir::fresh("control-plane")?;
        let port = port::free()?;
        let url = format!("https://127.0.0.1:{port}");
        fs::write(directory.join("tokens.csv"), TOKENS)?;
        let kubectl = Kubectl::new(directory.join("admin.kubeconfig"))?;
        let mut this = Self {
            directory,
            url,
            port,
            kubelets: options.kubelets,
            kubectl,
            scheduler: None,
            controllers: None,
            api: Mutex::default(),
            etcd: None,
        };

        this.etcd = Some(etcd::Etcd::start(&this.directory)?);
        this.write_keys()?;
        if let Some(shown) = options.shown {
            this.write_admission(shown)?;
        }
        if options.recording {
            fs::write(this.directory.join(AUDIT), AUDIT_POLICY)?;
        }
        let api = this.start_api_server()?;
        for user in ["admin", "scheduler", "controllers"] {
            let user = User {
                token: user,
                ..User::default()
            };
            this.write_kubeconfig(user.token, user)?;
        }
        this.start_scheduler()?;
        // The controllers exit if the API server is not ready soon.
        this.wait_for(&api)?;
        let manager = this.start_controllers()?;
        manager.wait_until("the controllers to work", START, || {
            this.kubectl
                .run(&["get", "serviceaccount", "default"])
                .map(Some)
        })?;
        this.check_scheduler()?;
        this.controllers = Some(manager);
        this.api = Mutex::new(Some(api));
        Ok(this)
    }

    fn wait_for(&self, api: &Process) -> Result<()> {
        api.wait_until("the API server to be ready", START, || {
            self.kubectl.run(&["get", "--raw", "/readyz"]).map(Some)
        })
        .map(drop)
    }

    /// Kills the API server and starts it again. For a few seconds there is none.
    ///
    /// # Errors
    /// When it does not come back.
    pub fn restart_api_server(&self) -> Result<()> {
        let mut api = self.api.lock().unwrap_or_else(PoisonError::into_inner);
        drop(api.take());
        let started = self.start_api_server()?;
        self.wait_for(&started)?;
        *api = Some(started);
        Ok(())
    }

    /// Returns the CPU time that the API server has used so far.
    ///
    /// # Errors
    /// When it does not run.
    pub fn api_server_cpu(&self) -> Result<Duration> {
        let api = self.api.lock().unwrap_or_else(PoisonError::into_inner);
        api.as_ref().context("the API server does not run")?.cpu()
    }

    /// Returns all requests so far, as events of `audit.k8s.io/v1`, of a control plane that records
    /// them.
    ///
    /// # Errors
    /// When it does not record.
    pub fn requests(&self) -> Result<Vec<Value>> {
        let path = self.directory.join(AUDIT_LOG);
        let text = fs::read_to_string(&path).with_context(|| {
            format!(
                "cannot read {}: start it with Options::recording",
                path.display()
            )
        })?;
        let lines = text.lines().map(serde_json::from_str);
        // The last line may be incomplete.
        Ok(lines.map_while(Result::ok).collect())
    }

    /// Returns kubectl as the administrator.
    #[must_use]
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// Returns the administrator's kubeconfig file.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        self.kubectl.kubeconfig()
    }

    /// Writes a kubeconfig file for any user, such as `alice` or `system:serviceaccount:ci:runner`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn kubeconfig_for(&self, user: &str) -> Result<PathBuf> {
        let name = user.replace(':', "-");
        let user = User {
            token: "admin",
            name: Some(user),
            groups: &[],
        };
        self.write_kubeconfig(&name, user)
    }

    /// Writes a kubeconfig file for a program of a node, which reaches the API server at `url`.
    pub(crate) fn write_kubeconfig_at(
        &self,
        url: &str,
        path: &Path,
        user: &str,
        groups: &[&str],
    ) -> Result<()> {
        let server = Server {
            url,
            authority: &self.authority(),
            name: Some("localhost"),
        };
        let user = User {
            token: "admin",
            name: Some(user),
            groups,
        };
        kubeconfig::write(path, &server, user)
    }

    /// Returns the port of the API server on loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Reports whether it was started for kubelets.
    pub(crate) fn is_for_kubelets(&self) -> bool {
        self.kubelets
    }

    /// Returns kubectl as any user.
    ///
    /// # Errors
    /// When the kubeconfig cannot be written.
    pub fn kubectl_as(&self, user: &str) -> Result<Kubectl> {
        Kubectl::new(self.kubeconfig_for(user)?)
    }

    /// Returns the address of etcd, or `None` before it has started.
    #[must_use]
    pub fn etcd(&self) -> Option<&str> {
        self.etcd.as_ref().map(|etcd| etcd.url.as_str())
    }

    /// Returns a client with the administrator's rights, for the current runtime.
    ///
    /// # Errors
    /// When the kubeconfig is not accepted.
    pub async fn client(&self) -> Result<kube::Client> {
        kubeconfig::client(self.kubeconfig()).await
    }

    /// Creates a namespace, waits until it is ready for pods, and returns kubectl for it.
    ///
    /// # Errors
    /// When it is refused.
    pub fn namespace(&self, name: &str, labels: &Value, annotations: &Value) -> Result<Kubectl> {
        self.kubectl.create(&json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": labels, "annotations": annotations},
        }))?;
        let kubectl = self.kubectl.in_namespace(name);
        wait_until("the namespace's service account", SETTLE, || {
            kubectl.run(&["get", "serviceaccount", "default"]).map(Some)
        })?;
        Ok(kubectl)
    }

    /// Returns the file of the CA that signed the API server's certificate.
    pub(crate) fn authority(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    fn write_kubeconfig(&self, name: &str, user: User<'_>) -> Result<PathBuf> {
        let path = self.directory.join(format!("{name}.kubeconfig"));
        kubeconfig::write(
            &path,
            &Server {
                url: &self.url,
                authority: &self.authority(),
                name: None,
            },
            user,
        )?;
        Ok(path)
    }

    /// Writes the API server's certificate and the keys of service accounts.
    fn write_keys(&self) -> Result<()> {
        let authority = Authority::new("control plane of the tests")?;
        fs::write(self.directory.join("ca.pem"), &authority.certificate)?;
        authority.issue_for("kube-apiserver", &IN_CLUSTER, &self.directory)?;
        authority.client(KUBELET_CLIENT, &self.directory)?;
        signing_keys("service-accounts", &self.directory).map(drop)
    }

    /// Writes the configuration by which the API server shows the certificate `shown`.
    fn write_admission(&self, shown: &ServerFiles) -> Result<()> {
        let users = self.directory.join("webhooks.kubeconfig");
        let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "users": [
            {"name": "*", "user": {
                "client-certificate": shown.certificate, "client-key": shown.key
            }}
        ]});
        fs::write(&users, kubeconfig.to_string())?;
        let admission = json!({
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration",
            "plugins": [{"name": "MutatingAdmissionWebhook", "configuration": {
                "apiVersion": "apiserver.config.k8s.io/v1",
                "kind": "WebhookAdmissionConfiguration",
                "kubeConfigFile": users
            }}]
        });
        fs::write(self.directory.join(ADMISSION), admission.to_string())?;
        Ok(())
    }

    fn start_api_server(&self) -> Result<Process> {
        let directory = &self.directory;
        let etcd = self.etcd().context("etcd does not run yet")?;
        let mut api = command(assets::path("kube-apiserver")?);
        api.arg(format!("--etcd-servers={etcd}"))
            .arg(format!("--secure-port={}", self.port));
        for (flag, file) in [
            ("--tls-cert-file", "kube-apiserver.pem"),
            ("--tls-private-key-file", "kube-apiserver.key"),
            ("--service-account-key-file", "service-accounts.pub"),
            ("--service-account-signing-key-file", "service-accounts.key"),
            ("--token-auth-file", "tokens.csv"),
            ("--cert-dir", ""),
        ] {
            api.arg(flag).arg(directory.join(file));
        }
        api.args([
            "--bind-address=127.0.0.1",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=Node,RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--allow-privileged=true",
            "--endpoint-reconciler-type=none",
            "--enable-priority-and-fairness=false",
        ]);
        api.args(assets::taint_rules());
        self.set_up_kubelets(&mut api);
        let admission = directory.join(ADMISSION);
        if admission.exists() {
            api.arg("--admission-control-config-file").arg(admission);
        }
        let audit = directory.join(AUDIT);
        if audit.exists() {
            api.arg("--audit-policy-file").arg(audit);
            api.arg("--audit-log-path").arg(directory.join(AUDIT_LOG));
            api.arg("--audit-log-mode=blocking-strict");
        }
        Process::start("kube-apiserver", directory, api)
    }

    fn set_up_kubelets(&self, api: &mut Command) {
        if !self.kubelets {
            // Nothing mounts tokens or removes the taint of a new node.
            api.arg("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition");
            return;
        }
        for (flag, extension) in [("certificate", "pem"), ("key", "key")] {
            let file = format!("{KUBELET_CLIENT}.{extension}");
            api.arg(format!("--kubelet-client-{flag}"))
                .arg(self.directory.join(file));
        }
        api.args([
            "--kubelet-preferred-address-types=InternalIP",
            "--enable-admission-plugins=NodeRestriction",
            // No controller removes the taint of a new node.
            "--disable-admission-plugins=TaintNodesByCondition",
            // The API server calls webhooks at the addresses of their pods: it has no kube-proxy.
            "--enable-aggregator-routing=true",
        ]);
    }

    fn start_controllers(&self) -> Result<Process> {
        let mut controllers = CONTROLLERS.to_vec();
        // The job controller then creates pods with its own account, as in a real cluster.
        let mut arguments = vec!["--use-service-account-credentials".to_owned()];
        if self.kubelets {
            controllers.extend(CONTROLLERS_FOR_KUBELETS);
            arguments.push(format!("--root-ca-file={}", self.authority().display()));
        }
        arguments.push(format!("--controllers={}", controllers.join(",")));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.start_client("kube-controller-manager", "controllers", &arguments)
    }

    fn start_client(&self, program: &str, user: &str, arguments: &[&str]) -> Result<Process> {
        let mut client = command(assets::path(program)?);
        client
            .arg("--kubeconfig")
            .arg(self.directory.join(format!("{user}.kubeconfig")));
        client
            .args(["--leader-elect=false", "--secure-port=0"])
            .args(arguments);
        client.args(["--kube-api-qps=500", "--kube-api-burst=1000"]);
        client.args(assets::taint_rules().first());
        Process::start(program, &self.directory, client)
    }
}
