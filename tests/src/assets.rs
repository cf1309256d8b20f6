//! Finds the third-party programs that the harness runs.
//!
//! Kubernetes' own and containerd are in `$KUBEBUILDER_ASSETS`, or in the user's cache where
//! `controlplane/build` puts them, Kubernetes in the version that `$KUBERNETES` names; helm is `$HELM`, or in the cache where `helm/build` puts it;
//! etcd and Prometheus come with the system.

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, OnceLock, PoisonError},
};

use anyhow::{Context, Result, anyhow, bail};

const MODULE: &str = include_str!("../controlplane/go.mod");
/// The modules of the versions that `$KUBERNETES` may choose.
const OLDER: [(&str, &str); 1] = [("1.30", include_str!("../controlplane/1.30/go.mod"))];
const CONTAINERD_MODULE: &str = include_str!("../controlplane/containerd/go.mod");
const PROW_MODULE: &str = include_str!("../controlplane/prow/go.mod");
const KARPENTER_MODULE: &str = include_str!("../controlplane/karpenter/go.mod");
const TRAINING_MODULE: &str = include_str!("../controlplane/training-operator/go.mod");
const BUILD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/controlplane/build");
const HELM_MODULE: &str = include_str!("../helm/go.mod");
const HELM_BUILD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/helm/build");

/// The Kubernetes programs that a control plane needs.
pub const KUBERNETES: [&str; 4] = [
    "kube-apiserver",
    "kube-scheduler",
    "kube-controller-manager",
    "kubectl",
];

/// The programs that a node needs besides.
pub const NODE: [&str; 5] = [
    "kubelet",
    "kube-proxy",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
];

/// What makes pods of jobs: Prow's controller, and Kubeflow's training operator; and Karpenter, which
/// makes nodes.
pub(crate) const OPERATORS: [&str; 3] =
    ["prow-controller-manager", "training-operator", "karpenter"];

/// Returns the Kubernetes version that the tests run, such as `v1.36.3`: that of `$KUBERNETES`, such
/// as `1.30`, else the newest.
#[must_use]
pub fn kubernetes_version() -> &'static str {
    let wanted = env::var("KUBERNETES").unwrap_or_default();
    let older = OLDER.iter().find(|(version, _)| *version == wanted);
    required(
        older.map_or(MODULE, |(_, module)| module),
        "k8s.io/kubernetes",
    )
}

/// Returns the version of containerd that nodes run, such as `v2.4.2`.
#[must_use]
pub fn containerd_version() -> &'static str {
    required(CONTAINERD_MODULE, "github.com/containerd/containerd/v2")
}

/// Reports whether the chosen Kubernetes is older than 1.`minor`, and says that a test of a `feature`
/// of that version does nothing.
#[must_use]
pub fn lacks(feature: &str, minor: u32) -> bool {
    let version = kubernetes_version();
    let chosen = version.split('.').nth(1).and_then(|text| text.parse().ok());
    let lacks = chosen.is_some_and(|chosen: u32| chosen < minor);
    if lacks {
        eprintln!("Kubernetes {version} has no {feature}, which came with 1.{minor}");
    }
    lacks
}

/// Returns the flags that switch on DeviceTaintRules: the first for all programs, the second for
/// the API server. None where the chosen Kubernetes does not have their beta.
pub(crate) fn taint_rules() -> &'static [&'static str] {
    if lacks_taint_rules() {
        return &[];
    }
    &[
        "--feature-gates=DRADeviceTaintRules=true",
        "--runtime-config=resource.k8s.io/v1beta2=true",
    ]
}

/// Reports whether the chosen Kubernetes lacks the beta of DeviceTaintRules, like [`lacks`].
#[must_use]
pub fn lacks_taint_rules() -> bool {
    lacks("beta of DeviceTaintRules", 36)
}

/// Returns the version of `module` that the text of a go.mod requires.
fn required(text: &'static str, module: &str) -> &'static str {
    let require = |line: &'static str| line.trim().trim_start_matches("require ").split_once(' ');
    let mut modules = text.lines().filter_map(require);
    let found = modules.find(|(name, _)| *name == module);
    found.map_or("unknown", |(_, rest)| {
        rest.split_whitespace().next().unwrap_or_default()
    })
}

/// Reports whether all programs of a control plane exist, so that nothing has to be built.
#[must_use]
pub fn ready() -> bool {
    all_exist(&KUBERNETES)
}

/// Builds the missing programs of a control plane and prints progress to standard error.
///
/// # Errors
/// When the build fails.
pub fn build() -> Result<()> {
    static BUILT: OnceLock<bool> = OnceLock::new();
    build_missing(&KUBERNETES, &BUILT)
}

/// Builds the missing programs of a node and prints progress to standard error.
///
/// # Errors
/// When the build fails.
pub fn build_node() -> Result<()> {
    static BUILT: OnceLock<bool> = OnceLock::new();
    build_missing(&NODE, &BUILT)
}

/// Builds what makes pods of jobs and nodes, if it is missing, and prints progress to standard error.
///
/// # Errors
/// When the build fails.
pub(crate) fn build_operators() -> Result<()> {
    static BUILT: OnceLock<bool> = OnceLock::new();
    build_missing(&OPERATORS, &BUILT)
}

/// Builds one of the Go programs in `controlplane` once, such as `device-manager`, and returns its
/// path.
///
/// # Errors
/// When the build fails; shows what Go said.
pub fn go_program(name: &str) -> Result<PathBuf> {
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = built.get(name) {
        return Ok(program.clone());
    }
    let program = build_go_program(name)?;
    built.insert(name.to_owned(), program.clone());
    Ok(program)
}

fn build_go_program(name: &str) -> Result<PathBuf> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/controlplane");
    let program = crate::workdir::fresh(name)?.join(name);
    let mut go = Command::new("go");
    go.args(["build", "-trimpath", "-o"]).arg(&program);
    go.arg(format!("./{name}")).current_dir(directory);
    let output = go
        .env("CGO_ENABLED", "0")
        .output()
        .context("cannot run go")?;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(program),
        false => bail!("cannot build {directory}/{name}: {said}"),
    }
}

/// Tries only once: a failure takes minutes and would repeat itself.
fn build_missing(names: &[&str], built: &OnceLock<bool>) -> Result<()> {
    if all_exist(names) || *built.get_or_init(|| succeeds(BUILD, names)) {
        return Ok(());
    }
    bail!(
        "cannot build {}; to retry, run `make control-plane`",
        names.join(", ")
    )
}

fn all_exist(names: &[&str]) -> bool {
    names.iter().all(|name| find(name).is_some())
}

fn succeeds(script: &str, arguments: &[&str]) -> bool {
    let mut script = Command::new(script);
    let status = script.args(arguments).stdin(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Returns the path of helm: `$HELM`, or the one in the user's cache, which is built if it is
/// missing.
///
/// # Errors
/// When the build fails.
pub fn helm() -> Result<PathBuf> {
    static BUILT: OnceLock<bool> = OnceLock::new();
    if let Some(path) = env::var_os("HELM").filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let path = cache("helm", required(HELM_MODULE, "helm.sh/helm/v4"))?.join("helm");
    if path.is_file() || *BUILT.get_or_init(|| succeeds(HELM_BUILD, &[])) {
        return Ok(path);
    }
    bail!("cannot build helm; to retry, run `make helm`")
}

/// Returns the path of the program `name`.
///
/// # Errors
/// When it is missing, with what to do about it.
pub fn path(name: &str) -> Result<PathBuf> {
    find(name).ok_or_else(|| anyhow!("cannot find {name}: run `make packages control-plane`"))
}

fn find(name: &str) -> Option<PathBuf> {
    let assets = env::var_os("KUBEBUILDER_ASSETS").filter(|path| !path.is_empty());
    let assets = assets.map(PathBuf::from);
    let ours = [&KUBERNETES[..], &NODE, &OPERATORS].concat();
    let places = if ours.contains(&name) {
        // Another version on the PATH is ignored.
        let built = match name {
            "prow-controller-manager" => cache("prow", required(PROW_MODULE, "sigs.k8s.io/prow")),
            "karpenter" => cache(
                "karpenter",
                required(KARPENTER_MODULE, "sigs.k8s.io/karpenter"),
            ),
            "training-operator" => cache(
                "training-operator",
                required(TRAINING_MODULE, "github.com/kubeflow/training-operator"),
            ),
            kubernetes if kubernetes.starts_with("kube") => {
                cache("control-plane", kubernetes_version())
            }
            _ => cache("containerd", containerd_version()),
        };
        assets.into_iter().chain(built.ok()).collect()
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

/// Returns the directory of `subject` in the user's cache.
fn cache(subject: &str, version: &str) -> Result<PathBuf> {
    let base = match env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => Path::new(&env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(base
        .join("nvlink-domains")
        .join(format!("{subject}-{version}")))
}
