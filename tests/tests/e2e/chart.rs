//! The Helm chart: what it renders, and what it does to a cluster.
//!
//! It uses its own control planes, because it installs the real registration and the policies. Each
//! runs one test at a time.

mod drain;
mod faults;
mod files;
mod lifecycle;
mod node;
mod render;
mod rights;
mod schema;
mod security;
mod uninstall;
mod unpublish;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::MutexGuard,
    time::Duration,
};

use nvlink_tests::{ControlPlane, Helm, Kubectl, controlplane::Options};
use serde_json::Value;

use crate::shared::Turns;

const SOON: Duration = Duration::from_secs(60);

/// Returns a control plane, and a guard that reserves it for one test.
fn control_plane() -> (&'static ControlPlane, MutexGuard<'static, ()>) {
    static TURNS: Turns<2> = Turns::new();
    TURNS.take(|| {
        ControlPlane::start_with(Options {
            recording: true,
            ..Options::default()
        })
        .unwrap()
    })
}

/// Installs the chart; uninstalls it when dropped.
struct Installed {
    helm: Helm,
    system: Kubectl,
}

impl Installed {
    fn with(control_plane: &ControlPlane, values: &str) -> Self {
        let helm = Helm::on(control_plane.kubectl()).unwrap();
        helm.release(
            "install",
            values,
            &["--create-namespace", "--take-ownership"],
        )
        .unwrap();
        let system = control_plane.kubectl().in_namespace("nvlink-system");
        Self { helm, system }
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        // No kubelet would run the hook.
        let flags = ["--ignore-not-found", "--no-hooks"];
        drop(self.helm.on_release("uninstall", &flags));
        // Nor would one end the pods that the scheduler bound to a node of a test: their namespace would
        // stay for ever.
        let end = ["delete", "pods", "--all", "--force", "--grace-period=0"];
        drop(self.system.run(&end));
    }
}

/// Returns the path of a file of the chart.
fn chart(path: &str) -> PathBuf {
    Path::new(nvlink_tests::CHART).join(path)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns all documents of a YAML text, except empty ones.
fn documents(text: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    documents
        .into_iter()
        .filter(|document| !document.is_null())
        .collect()
}
