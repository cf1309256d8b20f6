//! `nvlink-webhook serve`, running and registered with an API server.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;

use crate::{
    balancer::Backend,
    certificates::Authority,
    http,
    kubectl::Kubectl,
    port,
    process::{Process, command},
    programs::{self, WEBHOOK},
    workdir,
};

/// A busy machine, or a large cluster.
const START: Duration = Duration::from_secs(120);

/// A running webhook; gone when dropped, but its registration stays.
#[derive(Debug)]
pub struct Webhook {
    /// The address that the API server calls.
    pub url: String,
    pub replica: Replica,
    /// The file of the certificate that its own is from.
    pub authority: PathBuf,
}

/// One running `nvlink-webhook serve`; gone when dropped.
#[derive(Debug)]
pub struct Replica {
    /// Where it takes admission requests.
    pub address: SocketAddr,
    /// `127.0.0.1:PORT` of its metrics and probes.
    pub admin: String,
    pub process: Process,
}

impl Replica {
    /// Starts one on a free port, with further `arguments` (where its
    /// certificate is from), and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready; shows the end of its log.
    pub fn start(kubeconfig: &Path, arguments: &[&str]) -> Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], port::free()?));
        Self::start_on(address, kubeconfig, arguments)
    }

    /// The same, on `address`.
    ///
    /// # Errors
    /// When it does not become ready; shows the end of its log.
    pub fn start_on(address: SocketAddr, kubeconfig: &Path, arguments: &[&str]) -> Result<Self> {
        let directory = workdir::fresh("webhook")?;
        let admin = format!("127.0.0.1:{}", port::free()?);
        let mut webhook = command(programs::path(WEBHOOK)?);
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

    /// What it says of itself.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn metrics(&self) -> Result<String> {
        http::text(&format!("http://{}/metrics", self.admin))
    }

    /// The replica as a [`crate::Balancer`] wants it.
    #[must_use]
    pub fn backend(&self) -> Backend {
        Backend {
            address: self.address,
            readyz: format!("http://{}/readyz", self.admin),
        }
    }
}

/// Applies the CRDs that the webhook prints, as an administrator would.
///
/// # Errors
/// When the API server refuses one.
pub fn install_crds(kubectl: &Kubectl) -> Result<()> {
    kubectl.apply(&programs::run(WEBHOOK, &["crds"], "")?)?;
    let names = [
        "crd/domainclasses.nvlink-domains.io",
        "crd/nodetopologies.nvlink-domains.io",
    ];
    let wait = ["wait", "--for=condition=Established", "--timeout=30s"];
    kubectl.run(&[&wait[..], &names].concat()).map(drop)
}

impl Webhook {
    /// Starts `nvlink-webhook serve` with a certificate of its own and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready; shows the end of its log.
    pub fn start(kubeconfig: &Path) -> Result<Self> {
        Self::start_with(kubeconfig, &[])
    }

    /// The same, with further `arguments`.
    ///
    /// # Errors
    /// When it does not become ready; shows the end of its log.
    pub fn start_with(kubeconfig: &Path, arguments: &[&str]) -> Result<Self> {
        let directory = workdir::fresh("webhook")?;
        let ca = Authority::new("webhook of the tests")?;
        let files = ca.issue("webhook", &directory)?;
        let authority = directory.join("ca.pem");
        fs::write(&authority, &ca.certificate)?;
        let files = [&files.certificate, &files.key].map(|path| path.to_string_lossy());
        let own = ["--tls-cert", &files[0], "--tls-key", &files[1]];
        let replica = Replica::start(kubeconfig, &[&own, arguments].concat())?;
        Ok(Self {
            url: format!("https://{}", replica.address),
            replica,
            authority,
        })
    }

    /// The registration for the API server, as `nvlink-webhook registration` prints it.
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

    /// Registers it: from now on the API server asks it about pods.
    ///
    /// # Errors
    /// When the API server refuses the registration.
    pub fn register(&self, kubectl: &Kubectl) -> Result<()> {
        kubectl.apply(&self.registration()?).map(drop)
    }
}
