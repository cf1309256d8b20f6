//! What makes the pods of jobs, as itself: Prow's controller (plank), and the controllers of Kubeflow's
//! training operator. And Karpenter, which makes nodes, with its provider kwok: the nodes have no kubelet.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::{
    Kubectl, assets, port,
    process::{Process, command},
    workdir,
};

/// A running operator.
#[derive(Debug)]
pub struct Operator(Process);

impl Operator {
    /// Starts plank, which makes the pods of the ProwJobs of the namespace `jobs` in the namespace `pods`.
    ///
    /// # Errors
    /// When it cannot be built or started, or its kind not be installed.
    pub fn prow(kubectl: &Kubectl, kubeconfig: &Path, jobs: &str, pods: &str) -> Result<Self> {
        assets::build_operators()?;
        // Its status is no subresource.
        let job = ["prow.k8s.io/v1", "ProwJob", "prowjobs"];
        install(kubectl, job, "Namespaced", false)?;
        let directory = workdir::fresh("prow")?;
        let config = directory.join("config.yaml");
        let settings = json!({"prowjob_namespace": jobs, "pod_namespace": pods});
        fs::write(&config, settings.to_string())?;
        let mut plank = command(assets::path("prow-controller-manager")?);
        plank.arg("--dry-run=false");
        for (flag, path) in [("config-path", &*config), ("kubeconfig", kubeconfig)] {
            plank.arg(format!("--{flag}={}", path.display()));
        }
        for flag in ["health-port", "metrics-port", "pprof-port"] {
            plank.arg(format!("--{flag}={}", port::free()?));
        }
        Ok(Self(Process::start("prow", &directory, plank)?))
    }

    /// Starts the training operator for PyTorchJobs and MPIJobs.
    ///
    /// # Errors
    /// When it cannot be built or started, or its kinds not be installed.
    pub fn training(kubectl: &Kubectl, kubeconfig: &Path) -> Result<Self> {
        assets::build_operators()?;
        for (kind, plural) in [("PyTorchJob", "pytorchjobs"), ("MPIJob", "mpijobs")] {
            let kind = ["kubeflow.org/v1", kind, plural];
            install(kubectl, kind, "Namespaced", true)?;
        }
        let directory = workdir::fresh("training-operator")?;
        let mut operator = command(assets::path("training-operator")?);
        operator.arg(format!("--kubeconfig={}", kubeconfig.display()));
        Ok(Self(Process::start(
            "training-operator",
            &directory,
            operator,
        )?))
    }

    /// Starts Karpenter, which makes nodes with so many GPUs for a NodePool of class `kwok`, and with these
    /// labels.
    ///
    /// # Errors
    /// When it cannot be built or started, or its kinds not be installed.
    pub fn karpenter(
        kubectl: &Kubectl,
        kubeconfig: &Path,
        gpus: u32,
        labels: &Value,
    ) -> Result<Self> {
        assets::build_operators()?;
        for (kind, plural) in [("NodePool", "nodepools"), ("NodeClaim", "nodeclaims")] {
            install(kubectl, ["karpenter.sh/v1", kind, plural], "Cluster", true)?;
        }
        let overlay = ["karpenter.sh/v1alpha1", "NodeOverlay", "nodeoverlays"];
        install(kubectl, overlay, "Cluster", true)?;
        let class = [
            "karpenter.kwok.sh/v1alpha1",
            "KWOKNodeClass",
            "kwoknodeclasses",
        ];
        install(kubectl, class, "Cluster", false)?;
        let directory = workdir::fresh("karpenter")?;
        let instances = directory.join("instances.json");
        fs::write(&instances, instance_types(gpus).to_string())?;
        let mut karpenter = command(assets::path("karpenter")?);
        karpenter.env("KUBECONFIG", kubeconfig);
        karpenter.arg("--disable-leader-election");
        for flag in ["metrics-port", "health-probe-port"] {
            karpenter.arg(format!("--{flag}={}", port::free()?));
        }
        let path = instances.display();
        karpenter.arg(format!("--instance-types-file-path={path}"));
        let this = Self(Process::start("karpenter", &directory, karpenter)?);
        for object in pool(labels) {
            kubectl.create(&object)?;
        }
        Ok(this)
    }

    /// Returns its log.
    #[must_use]
    pub fn log(&self) -> String {
        self.0.log()
    }
}

/// Returns the only type of instances, in the form of Karpenter's provider kwok.
fn instance_types(gpus: u32) -> Value {
    let is = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    let requirements = [
        is("karpenter.sh/capacity-type", "on-demand"),
        is("topology.kubernetes.io/zone", "z"),
    ];
    json!([{
        "name": "gpu-amd64-linux", "architecture": "amd64", "operatingSystems": ["linux"],
        "offerings": [{"Price": 10.0, "Available": true, "Requirements": requirements}],
        "resources": {
            "cpu": "64", "memory": "512Gi", "ephemeral-storage": "200Gi", "pods": "110",
            "nvidia.com/gpu": gpus.to_string(),
        },
    }])
}

/// Returns a NodePool and its class.
fn pool(labels: &Value) -> [Value; 2] {
    let class = json!({
        "apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "kwok"},
        "spec": {},
        "status": {"conditions": [{
            "type": "Ready", "status": "True", "reason": "Ready", "message": "",
            "lastTransitionTime": "2024-01-01T01:01:01Z",
        }]},
    });
    let reference = json!({"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "kwok"});
    let linux = json!({"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]});
    let pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "gpus"},
        "spec": {
            "template": {
                "metadata": {"labels": labels},
                "spec": {"nodeClassRef": reference, "requirements": [linux], "expireAfter": "Never"},
            },
            "disruption": {
                "consolidationPolicy": "WhenEmpty", "consolidateAfter": "5m", "budgets": [{"nodes": "10%"}],
            },
        },
    });
    [class, pool]
}

/// Installs a kind without the schema of its fields: the operators' own CRDs have half a megabyte each.
fn install(
    kubectl: &Kubectl,
    [version, kind, plural]: [&str; 3],
    scope: &str,
    status: bool,
) -> Result<()> {
    let (group, version) = version.split_once('/').context("no group")?;
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let mut served = json!({
        "name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": any},
    });
    if status {
        served["subresources"] = json!({"status": {}});
    }
    let crd: Value = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{group}"),
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": group, "scope": scope, "versions": [served],
            "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": kind.to_lowercase()},
        },
    });
    kubectl.create(&crd)?;
    let name = format!("crd/{plural}.{group}");
    kubectl.run(&[
        "wait",
        "--for=condition=Established",
        "--timeout=60s",
        &name,
    ])?;
    Ok(())
}
