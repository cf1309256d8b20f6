//! Finds the third-party programs that the harness runs.
//!
//! Kubernetes' own are in `$KUBEBUILDER_ASSETS`, or in the user's cache where
//! `controlplane/build` puts them; etcd and Prometheus come with the system.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use anyhow::{Context, Result, anyhow, bail};

const MODULE: &str = include_str!("../controlplane/go.mod");
const BUILD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/controlplane/build");

/// The Kubernetes programs that a control plane needs.
pub const KUBERNETES: [&str; 4] = [
    "kube-apiserver",
    "kube-scheduler",
    "kube-controller-manager",
    "kubectl",
];

/// Returns the Kubernetes version that the tests run, such as `v1.36.3`.
#[must_use]
pub fn kubernetes_version() -> &'static str {
    let require = |line: &'static str| line.trim().trim_start_matches("require ").split_once(' ');
    let mut modules = MODULE.lines().filter_map(require);
    let found = modules.find(|(module, _)| *module == "k8s.io/kubernetes");
    found.map_or("unknown", |(_, rest)| {
        rest.split_whitespace().next().unwrap_or_default()
    })
}

/// Reports whether all Kubernetes programs exist, so that nothing has to be built.
#[must_use]
pub fn ready() -> bool {
    KUBERNETES.iter().all(|name| find(name).is_some())
}

/// Builds the missing Kubernetes programs and prints progress to standard error.
///
/// # Errors
/// When the build fails.
pub fn build() -> Result<()> {
    static BUILT: OnceLock<bool> = OnceLock::new();
    let run = || {
        Command::new(BUILD)
            .stdin(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    if ready() || *BUILT.get_or_init(run) {
        return Ok(());
    }
    bail!("cannot build the control plane; to retry, run `make control-plane`")
}

/// Returns the path of the program `name`.
///
/// # Errors
/// When it is missing, with what to do about it.
pub fn path(name: &str) -> Result<PathBuf> {
    find(name).ok_or_else(|| anyhow!("cannot find {name}: run `make packages control-plane`"))
}

fn find(name: &str) -> Option<PathBuf> {
    let assets = env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let places = if KUBERNETES.contains(&name) {
        // Another version on the PATH is ignored.
        assets.into_iter().chain(cache().ok()).collect()
    } else {
        let system = env::var_os("PATH").unwrap_or_default();
        assets
            .into_iter()
            .chain(env::split_paths(&system))
            .collect::<Vec<_>>()
    };
    places
        .into_iter()
        .map(|place| place.join(name))
        .find(|path| path.is_file())
}

fn cache() -> Result<PathBuf> {
    let base = match env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => Path::new(&env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(base
        .join("nvlink-domains")
        .join(format!("control-plane-{}", kubernetes_version())))
}
