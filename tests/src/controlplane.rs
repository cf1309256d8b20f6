//! A real Kubernetes control plane on loopback: etcd, API server, scheduler
//! and controller manager.
//!
//! There is no kubelet: pods are scheduled and bound, and stay Pending.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::{
    assets,
    certificates::{Authority, ServerFiles, signing_keys},
    kubeconfig::{self, Server},
    kubectl::Kubectl,
    port,
    process::{Process, command},
    wait::wait_until,
    workdir,
};

const START: Duration = Duration::from_secs(120);
const SETTLE: Duration = Duration::from_secs(60);

/// The controllers that create pods and clean up. The controller that taints nodes with a silent
/// kubelet is left out, because there are no kubelets.
const CONTROLLERS: [&str; 10] = [
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "replicaset-controller",
    "resourceclaim-controller",
    "serviceaccount-controller",
    "statefulset-controller",
];

/// The file of the AdmissionConfiguration, if there is one.
const ADMISSION: &str = "admission.yaml";

/// Users with a token of their own. The administrator impersonates everybody else.
const TOKENS: &str = "\
admin,admin,1,system:masters
scheduler,system:kube-scheduler,2
controllers,system:kube-controller-manager,3
";

/// A running control plane. It ends when dropped.
#[derive(Debug)]
pub struct ControlPlane {
    directory: PathBuf,
    url: String,
    port: u16,
    kubectl: Kubectl,
    // Dropped in this order: the clients before the servers.
    clients: Vec<Process>,
    api: Mutex<Option<Process>>,
    etcd: Option<(Process, String)>,
}

impl ControlPlane {
    /// Starts a control plane. Builds it first if it was never built on this machine.
    ///
    /// # Errors
    /// When a part does not come up; shows the end of its log.
    pub fn start() -> Result<Self> {
        Self::start_showing(None)
    }

    /// Starts a control plane whose API server shows the certificate `shown` to all webhooks.
    ///
    /// # Errors
    /// When a part does not come up; shows the end of its log.
    pub fn start_showing(shown: Option<&ServerFiles>) -> Result<Self> {
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
            kubectl,
            clients: Vec::new(),
            api: Mutex::default(),
            etcd: None,
        };

        this.etcd = Some(start_etcd(&this.directory)?);
        this.write_keys()?;
        if let Some(shown) = shown {
            this.write_admission(shown)?;
        }
        let api = this.start_api_server()?;
        for user in ["admin", "scheduler", "controllers"] {
            this.write_kubeconfig(user, user, None)?;
        }
        let scheduler = this.start_client("kube-scheduler", "scheduler", &[])?;
        // The controllers exit if the API server is not ready soon.
        this.wait_for(&api)?;
        let controllers = format!("--controllers={}", CONTROLLERS.join(","));
        // The job controller then creates pods with its own account, as in a real cluster.
        let accounts = "--use-service-account-credentials";
        let manager = this.start_client(
            "kube-controller-manager",
            "controllers",
            &[&controllers, accounts],
        )?;
        manager.wait_until("the controllers to work", START, || {
            this.kubectl
                .run(&["get", "serviceaccount", "default"])
                .map(Some)
        })?;
        scheduler.check_running()?;
        this.clients = vec![scheduler, manager];
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
        self.write_kubeconfig(&user.replace(':', "-"), "admin", Some(user))
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
        self.etcd.as_ref().map(|(_, url)| url.as_str())
    }

    /// Returns a client with the administrator's rights, for the current runtime.
    ///
    /// # Errors
    /// When the kubeconfig is not accepted.
    pub async fn client(&self) -> Result<kube::Client> {
        let file = kube::config::Kubeconfig::read_from(self.kubeconfig())?;
        let config = kube::Config::from_custom_kubeconfig(file, &Default::default()).await?;
        Ok(kube::Client::try_from(config)?)
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

    fn write_kubeconfig(&self, name: &str, token: &str, user: Option<&str>) -> Result<PathBuf> {
        let path = self.directory.join(format!("{name}.kubeconfig"));
        kubeconfig::write(
            &path,
            &Server {
                url: &self.url,
                authority: &self.authority(),
            },
            token,
            user,
        )?;
        Ok(path)
    }

    /// Writes the API server's certificate and the keys of service accounts.
    fn write_keys(&self) -> Result<()> {
        let authority = Authority::new("control plane of the tests")?;
        fs::write(self.directory.join("ca.pem"), &authority.certificate)?;
        authority.issue("kube-apiserver", &self.directory)?;
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
        let (_, etcd) = self.etcd.as_ref().context("etcd does not run yet")?;
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
            // Without kubelets, nothing mounts tokens or removes the taint of a new node.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--allow-privileged=true",
            "--endpoint-reconciler-type=none",
            "--enable-priority-and-fairness=false",
        ]);
        let admission = directory.join(ADMISSION);
        if admission.exists() {
            api.arg("--admission-control-config-file").arg(admission);
        }
        Process::start("kube-apiserver", directory, api)
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
        Process::start(program, &self.directory, client)
    }
}

fn start_etcd(directory: &Path) -> Result<(Process, String)> {
    let url = format!("http://127.0.0.1:{}", port::free()?);
    let peers = format!("http://127.0.0.1:{}", port::free()?);
    let mut etcd = command(assets::path("etcd")?);
    // On other architectures, etcd 3.4 starts only with this variable.
    match std::env::consts::ARCH {
        "x86_64" => {}
        "aarch64" => drop(etcd.env("ETCD_UNSUPPORTED_ARCH", "arm64")),
        other => drop(etcd.env("ETCD_UNSUPPORTED_ARCH", other)),
    }
    etcd.arg("--data-dir").arg(directory.join("etcd"));
    etcd.args([
        "--listen-client-urls",
        &url,
        "--advertise-client-urls",
        &url,
    ]);
    etcd.args([
        "--listen-peer-urls",
        &peers,
        "--initial-advertise-peer-urls",
        &peers,
    ]);
    etcd.args([
        "--initial-cluster",
        &format!("default={peers}"),
        "--unsafe-no-fsync",
    ]);
    let process = Process::start("etcd", directory, etcd)?;
    process.wait_until("etcd to answer", START, || {
        crate::http::text(&format!("{url}/health")).map(Some)
    })?;
    Ok((process, url))
}
