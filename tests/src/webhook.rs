//! Runs `nvlink-webhook serve` and `controller`, and registers the webhook with an API server.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, ensure};

use crate::{
    balancer::Backend,
    certificates::Authority,
    http,
    kubectl::Kubectl,
    port,
    process::{Process, command, feed},
    programs::{self, WEBHOOK},
    workdir,
};

/// Long enough for a busy machine or a large cluster.
const START: Duration = Duration::from_secs(120);

/// A running webhook. It ends when dropped, but its registration stays.
#[derive(Debug)]
pub struct Webhook {
    /// The address that the API server calls.
    pub url: String,
    pub replica: Replica,
    /// The file of the CA that signed its certificate.
    pub authority: PathBuf,
}

/// One running `nvlink-webhook serve`. It ends when dropped.
#[derive(Debug)]
pub struct Replica {
    /// Where it accepts admission requests.
    pub address: SocketAddr,
    /// `127.0.0.1:PORT` of its metrics and probes.
    pub admin: String,
    pub process: Process,
}

impl Replica {
    /// Starts a replica on a free port, with further `arguments` (such as its certificate), and
    /// waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready; shows the end of its log.
    pub fn start(kubeconfig: &Path, arguments: &[&str]) -> Result<Self> {
        Self::start_on(port::address()?, kubeconfig, arguments)
    }

    /// Starts a replica on `address` and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready; shows the end of its log.
    pub fn start_on(address: SocketAddr, kubeconfig: &Path, arguments: &[&str]) -> Result<Self> {
        Self::of(&programs::path(WEBHOOK)?, address, kubeconfig, arguments)
    }

    /// Does the same with another `program`, such as one of a [`crate::Foreign`].
    ///
    /// # Errors
    /// As [`Replica::start_on`].
    pub fn of(
        program: &Path,
        address: SocketAddr,
        kubeconfig: &Path,
        arguments: &[&str],
    ) -> Result<Self> {
        let directory = workdir::fresh("webhook")?;
        let admin = format!("127.0.0.1:{}", port::free()?);
        let mut webhook = command(program);
        webhook.args(["serve", "--listen", &address.to_string()]);
        webhook.args(["--admin-listen", &admin]).args(arguments);
        webhook.env("KUBECONFIG", kubeconfig);
        let process = Process::start(WEBHOOK, &directory, webhook)?;
        process.wait_until("the webhook to be ready", START, || {
            http::text(&format!("http://{admin}/readyz")).map(Some)
        })?;
        Ok(Self {
            address,
            admin,
            process,
        })
    }

    /// Returns its metrics.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn metrics(&self) -> Result<String> {
        http::text(&format!("http://{}/metrics", self.admin))
    }

    /// Returns the replica as a backend of a [`crate::Balancer`].
    #[must_use]
    pub fn backend(&self) -> Backend {
        Backend {
            address: self.address,
            readyz: format!("http://{}/readyz", self.admin),
        }
    }
}

/// One running `nvlink-webhook controller`. It ends when dropped.
#[derive(Debug)]
pub struct Controller {
    /// `127.0.0.1:PORT` of its metrics and probes.
    pub admin: String,
    pub process: Process,
}

impl Controller {
    /// Starts a controller with `arguments`, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready; shows the end of its log.
    pub fn start(kubeconfig: &Path, arguments: &[&str]) -> Result<Self> {
        let directory = workdir::fresh("controller")?;
        let admin = format!("127.0.0.1:{}", port::free()?);
        let mut controller = command(programs::path(WEBHOOK)?);
        controller.args(["controller", "--admin-listen", &admin]);
        controller.args(arguments).env("KUBECONFIG", kubeconfig);
        let process = Process::start("nvlink-webhook controller", &directory, controller)?;
        process.wait_until("the controller to be ready", START, || {
            http::text(&format!("http://{admin}/readyz")).map(Some)
        })?;
        Ok(Self { admin, process })
    }

    /// Returns its metrics.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn metrics(&self) -> Result<String> {
        http::text(&format!("http://{}/metrics", self.admin))
    }
}

/// Applies the CRDs that the webhook prints, and waits until they are established.
///
/// # Errors
/// When the API server refuses one.
pub fn install_crds(kubectl: &Kubectl) -> Result<()> {
    kubectl.apply(&programs::run(WEBHOOK, &["crds"], "")?)?;
    let names = [
        "crd/classindexes.nvlink-domains.io",
        "crd/domainclasses.nvlink-domains.io",
        "crd/nodetopologies.nvlink-domains.io",
    ];
    let wait = ["wait", "--for=condition=Established", "--timeout=30s"];
    kubectl.run(&[&wait[..], &names].concat()).map(drop)
}

/// Writes the index of the classes as they are now, for policies where no controller does.
///
/// # Errors
/// When the API server refuses it.
pub fn write_index(kubectl: &Kubectl) -> Result<()> {
    let mut print = command(programs::path(WEBHOOK)?);
    print.args(["policies", "--index"]);
    print.env("KUBECONFIG", kubectl.kubeconfig());
    let output = feed(&mut print, "")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the index: {said}");
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    kubectl
        .run_with(&apply, &String::from_utf8(output.stdout)?)
        .map(drop)
}

impl Webhook {
    /// Starts `nvlink-webhook serve` with a certificate of its own and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready; shows the end of its log.
    pub fn start(kubeconfig: &Path) -> Result<Self> {
        Self::start_with(kubeconfig, &[])
    }

    /// Starts `nvlink-webhook serve` with further `arguments` and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready; shows the end of its log.
    pub fn start_with(kubeconfig: &Path, arguments: &[&str]) -> Result<Self> {
        Self::of(&programs::path(WEBHOOK)?, kubeconfig, arguments)
    }

    /// Does the same with another `program`, such as one of a [`crate::Foreign`].
    ///
    /// # Errors
    /// As [`Webhook::start_with`].
    pub fn of(program: &Path, kubeconfig: &Path, arguments: &[&str]) -> Result<Self> {
        let directory = workdir::fresh("webhook")?;
        let ca = Authority::new("webhook of the tests")?;
        let files = ca.issue("webhook", &directory)?;
        let authority = directory.join("ca.pem");
        fs::write(&authority, &ca.certificate)?;
        let files = [&files.certificate, &files.key].map(|path| path.to_string_lossy());
        let own = ["--tls-cert", &files[0], "--tls-key", &files[1]];
        let address = port::address()?;
        let arguments = [&own, arguments].concat();
        let replica = Replica::of(program, address, kubeconfig, &arguments)?;
        Ok(Self {
            url: format!("https://{}", replica.address),
            replica,
            authority,
        })
    }

    /// Returns the registration that `nvlink-webhook registration` prints.
    ///
    /// # Errors
    /// When it prints none.
    pub fn registration(&self) -> Result<String> {
        let authority = self.authority.to_string_lossy();
        programs::run(
            WEBHOOK,
            &["registration", "--url", &self.url, "--ca-file", &authority],
            "",
        )
    }

    /// Registers the webhook: from now on, the API server calls it for pods.
    ///
    /// # Errors
    /// When the API server refuses the registration.
    pub fn register(&self, kubectl: &Kubectl) -> Result<()> {
        kubectl.apply(&self.registration()?).map(drop)
    }
}
