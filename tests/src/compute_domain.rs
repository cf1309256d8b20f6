//! NVIDIA's driver for ComputeDomains on nodes without machines: its kinds, its controller, and the parts
//! of its kubelet plugins and daemons that the API server sees.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::{
    Kubectl, assets,
    controlplane::ControlPlane,
    process::{Process, command},
    workdir,
};

const START: Duration = Duration::from_secs(60);
const GROUP: &str = "resource.nvidia.com";
const DRIVER: &str = "compute-domain.nvidia.com";
const ACCOUNT: &str = "compute-domain-daemon-service-account";

/// The running driver. It ends when dropped, and leaves its kinds and what it made.
#[derive(Debug)]
pub struct ComputeDomains(Process);

impl ComputeDomains {
    /// The namespace of the daemons and of the ComputeDomainCliques.
    pub const NAMESPACE: &str = "dra-driver-nvidia-gpu";

    /// Starts the driver, with a plugin on each of the nodes, which exist: by name, with the clique of the
    /// GPUs, such as `UUID.1`. Waits until their devices are published.
    ///
    /// # Errors
    /// When it cannot be built or started, or its kinds not be installed.
    pub fn start(control_plane: &ControlPlane, nodes: &[(&str, Option<&str>)]) -> Result<Self> {
        Self::start_with(control_plane, nodes, &[])
    }

    /// Does the same with more flags of the program, such as `-daemon-start=10s`, the time until a daemon
    /// is ready.
    ///
    /// # Errors
    /// As [`ComputeDomains::start`].
    pub fn start_with(
        control_plane: &ControlPlane,
        nodes: &[(&str, Option<&str>)],
        flags: &[&str],
    ) -> Result<Self> {
        let kubectl = control_plane.kubectl();
        Self::install_crds(kubectl)?;
        for object in surroundings() {
            kubectl.apply(&object.to_string())?;
        }
        let of = nodes.iter().map(|(name, clique)| match clique {
            Some(clique) => format!("{name}={clique}"),
            None => (*name).to_owned(),
        });
        let mut driver = command(assets::go_program("compute-domain")?);
        driver.arg("-kubeconfig").arg(control_plane.kubeconfig());
        driver.args(["-namespace", Self::NAMESPACE, "-nodes"]);
        driver.arg(of.collect::<Vec<_>>().join(",")).args(flags);
        let directory = workdir::fresh("compute-domain")?;
        let this = Self(Process::start("compute-domain", &directory, driver)?);
        this.wait_until_published(kubectl, nodes)?;
        Ok(this)
    }

    /// Installs the kinds ComputeDomain and ComputeDomainClique only: nothing makes anything of them.
    ///
    /// # Errors
    /// When they are refused.
    pub fn install_crds(kubectl: &Kubectl) -> Result<()> {
        for (kind, plural, schema, status) in [
            ("ComputeDomain", "computedomains", domain(), true),
            (
                "ComputeDomainClique",
                "computedomaincliques",
                clique(),
                false,
            ),
        ] {
            kubectl.apply(&definition(kind, plural, &schema, status).to_string())?;
            let name = format!("crd/{plural}.{GROUP}");
            let wait = ["wait", "--for=condition=Established", "--timeout=60s"];
            kubectl.run(&[&wait[..], &[&name]].concat())?;
        }
        Ok(())
    }

    /// Returns its log.
    #[must_use]
    pub fn log(&self) -> String {
        self.0.log()
    }

    fn wait_until_published(
        &self,
        kubectl: &Kubectl,
        nodes: &[(&str, Option<&str>)],
    ) -> Result<()> {
        let selector = format!("spec.driver={DRIVER}");
        let what = ["resourceslices", "--field-selector", &selector];
        self.0.wait_until("the devices to be published", START, || {
            let slices = kubectl.get(&what)?;
            let slices = slices["items"].as_array().into_iter().flatten();
            let known = slices.filter_map(|slice| slice["spec"]["nodeName"].as_str());
            let known: BTreeSet<&str> = known.collect();
            let missing = nodes.iter().find(|(name, _)| !known.contains(name));
            ensure!(missing.is_none(), "none of {missing:?}");
            Ok(Some(()))
        })
    }
}

/// Returns what the daemons and the claims need besides the kinds.
fn surroundings() -> [Value; 4] {
    let namespace = ComputeDomains::NAMESPACE;
    let class = |name: &str, rule: &str| {
        let driver = format!("device.driver == '{DRIVER}'");
        let expression = format!("{driver} && {rule}");
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
            "metadata": {"name": format!("compute-domain-{name}.nvidia.com")},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        })
    };
    let of = format!("device.attributes['{DRIVER}']");
    let channel = format!("{of}.type == 'channel' && {of}.id == 0");
    [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": ACCOUNT, "namespace": namespace},
        }),
        class("daemon", &format!("{of}.type == 'daemon'")),
        class("default-channel", &channel),
    ]
}

/// Returns the definition of a kind.
fn definition(kind: &str, plural: &str, schema: &Value, status: bool) -> Value {
    let mut version = json!({
        "name": "v1beta1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
    });
    if status {
        version["subresources"] = json!({"status": {}});
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": "Namespaced", "versions": [version],
            "names": {
                "kind": kind, "listKind": format!("{kind}List"),
                "plural": plural, "singular": kind.to_lowercase(),
            },
        },
    })
}

/// Returns the schema of an object with these fields.
fn object(fields: &Value, required: &[&str]) -> Value {
    let mut schema = json!({"type": "object", "properties": fields});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

/// Returns the schema of a status, which is `NotReady` where nothing is said.
fn readiness() -> Value {
    json!({"type": "string", "enum": ["Ready", "NotReady"], "default": "NotReady"})
}

/// Returns the schema of a list of nodes, whose names have the field `name`.
fn nodes(name: &str) -> Value {
    let fields = json!({
        name: {"type": "string"}, "ipAddress": {"type": "string"}, "cliqueID": {"type": "string"},
        "index": {"type": "integer"}, "status": readiness(),
    });
    json!({
        "type": "array", "items": object(&fields, &["cliqueID", "ipAddress", name]),
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [name],
    })
}

fn root(fields: &[(&str, Value)]) -> Value {
    let mut schema = object(
        &json!({
            "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
        }),
        &[],
    );
    for (name, of) in fields {
        schema["properties"][name] = of.clone();
    }
    schema
}

fn domain() -> Value {
    let template = object(&json!({"name": {"type": "string"}}), &["name"]);
    let mode = json!({"type": "string", "enum": ["All", "Single"], "default": "Single"});
    let channel = json!({"allocationMode": mode, "resourceClaimTemplate": template});
    let channel = object(&channel, &["resourceClaimTemplate"]);
    let count = json!({"type": "integer", "minimum": 0, "default": 0});
    let mut spec = object(
        &json!({"channel": channel, "numNodes": count}),
        &["channel"],
    );
    spec["x-kubernetes-validations"] =
        json!([{"rule": "self == oldSelf", "message": "A computeDomain.spec is immutable"}]);
    let status = json!({"nodes": nodes("name"), "status": readiness()});
    root(&[("spec", spec), ("status", object(&status, &["status"]))])
}

fn clique() -> Value {
    root(&[("daemons", nodes("nodeName"))])
}
