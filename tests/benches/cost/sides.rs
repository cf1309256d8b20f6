//! The sides. Each has its own namespace, for which only its own handlers are called.

use std::{net::TcpStream, ops::Range, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use nvlink_tests::{
    ControlPlane, Process, Webhook, certificates::Authority, command, port, programs, wait_until,
    webhook::write_index, workdir,
};
use serde_json::{Value, json};

use crate::load::pod;

const SOON: Duration = Duration::from_secs(60);
const GO_MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/gohandler");

/// The handlers that the API server calls for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Bare,
    Floor,
    Go,
    Webhook,
    Policies,
}

pub(crate) const SIDES: [Side; 5] = [
    Side::Bare,
    Side::Floor,
    Side::Go,
    Side::Webhook,
    Side::Policies,
];

impl Side {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bare => "no handler",
            Self::Floor => "policy that never applies",
            Self::Go => "smallest Go handler",
            Self::Webhook => "webhook",
            Self::Policies => "webhook and policies",
        }
    }

    pub(crate) fn namespace(self) -> &'static str {
        match self {
            Self::Bare => "side-bare",
            Self::Floor => "side-floor",
            Self::Go => "side-go",
            Self::Webhook => "side-webhook",
            Self::Policies => "side-policies",
        }
    }
}

/// All sides, running.
pub(crate) struct Sides<'a> {
    plane: &'a ControlPlane,
    go: Process,
    webhook: Webhook,
}

impl<'a> Sides<'a> {
    pub(crate) fn start(plane: &'a ControlPlane) -> Result<Self> {
        for side in SIDES {
            let labels = json!({"side": side.namespace()});
            plane.namespace(side.namespace(), &labels, &json!({}))?;
        }
        install_floor(plane)?;
        install_policies(plane)?;
        let go = start_go(plane)?;
        let webhook = Webhook::start(plane.kubeconfig())?;
        let mut registration = as_json(plane, &webhook.registration()?)?;
        for entry in registration["webhooks"]
            .as_array_mut()
            .into_iter()
            .flatten()
        {
            let expressions = &mut entry["namespaceSelector"]["matchExpressions"];
            let expressions = expressions
                .as_array_mut()
                .context("an entry has no namespaceSelector expressions")?;
            expressions.push(only(&[Side::Webhook, Side::Policies]));
        }
        plane.kubectl().apply(&registration.to_string())?;
        Ok(Self { plane, go, webhook })
    }

    pub(crate) fn api_cpu(&self) -> Result<Duration> {
        self.plane.api_server_cpu()
    }

    pub(crate) fn handler_cpu(&self, side: Side) -> Result<Duration> {
        match side {
            Side::Bare | Side::Floor => Ok(Duration::ZERO),
            Side::Go => self.go.cpu(),
            Side::Webhook | Side::Policies => self.webhook.replica.process.cpu(),
        }
    }

    /// Creates more classes, every second one open, and waits until all sides know them.
    pub(crate) fn create_classes(&self, numbers: Range<usize>) -> Result<()> {
        let last = numbers.end - 1;
        for number in numbers {
            let mode = if number % 2 == 0 {
                "Restricted"
            } else {
                "Open"
            };
            let class = json!({
                "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
                "metadata": {"name": class(number)},
                "spec": {
                    "nodeSelector": {"matchLabels": {"pool": format!("pool-{number}")}},
                    "access": {"mode": mode}
                }
            });
            self.plane.kubectl().create(&class)?;
        }
        let enforced = [
            "wait",
            "--for=condition=Enforced",
            "--timeout=120s",
            "domainclass",
            "--all",
        ];
        self.plane.kubectl().run(&enforced)?;
        let mut pod = pod("probe", true);
        pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": class(last)});
        for side in [Side::Webhook, Side::Policies] {
            wait_for_answer(self.plane, side, &pod, "nvlink-domains.io/decision")?;
        }
        Ok(())
    }
}

/// Returns the name of a class.
pub(crate) fn class(number: usize) -> String {
    format!("class-{number:03}")
}

/// Applies a policy on what this benchmark writes, whose condition ends its evaluation at once.
fn install_floor(plane: &ControlPlane) -> Result<()> {
    let metadata = json!({"name": "floor.example.com"});
    let kind = |kind: &str, spec: Value| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": metadata, "spec": spec
        })
    };
    let policy = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
            "resources": ["pods", "pods/status"]
        }]},
        "matchConditions": [{"name": "never", "expression": "false"}],
        "validations": [{"expression": "true"}]
    });
    let binding = json!({
        "policyName": "floor.example.com", "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchExpressions": [only(&[Side::Floor])]}}
    });
    for object in [
        kind("ValidatingAdmissionPolicy", policy),
        kind("ValidatingAdmissionPolicyBinding", binding),
    ] {
        plane.kubectl().apply(&object.to_string())?;
    }
    Ok(())
}

/// Applies the policies for one side, and waits until they are in effect.
fn install_policies(plane: &ControlPlane) -> Result<()> {
    let policies = as_json(plane, &programs::run(programs::WEBHOOK, &["policies"], "")?)?;
    for mut document in policies["items"].as_array().cloned().unwrap_or_default() {
        if document["kind"] == "ValidatingAdmissionPolicyBinding" {
            let selector = &mut document["spec"]["matchResources"]["namespaceSelector"];
            // One selects the webhook's own namespace.
            if selector["matchLabels"].is_null() {
                *selector = json!({"matchExpressions": [only(&[Side::Policies])]});
            }
        }
        plane.kubectl().apply(&document.to_string())?;
    }
    // Without it, the policies do not apply. The webhook keeps it.
    write_index(plane.kubectl())?;
    let mut pod = pod("probe", false);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": ""});
    wait_for_answer(plane, Side::Policies, &pod, "ValidatingAdmissionPolicy")
}

/// Waits until the API server's answer to `pod` on a side contains `wanted`.
fn wait_for_answer(plane: &ControlPlane, side: Side, pod: &Value, wanted: &str) -> Result<()> {
    let kubectl = plane.kubectl().in_namespace(side.namespace());
    let create = ["create", "--dry-run=server", "-f", "-", "-o", "json"];
    wait_until(&format!("{side:?} to be in effect"), SOON, || {
        let output = kubectl.output(&create, &pod.to_string())?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        ensure!(said.contains(wanted), "{said}");
        Ok(Some(()))
    })
}

/// Returns a selector requirement for the namespaces of `sides`.
fn only(sides: &[Side]) -> Value {
    let values: Vec<_> = sides.iter().map(|side| side.namespace()).collect();
    json!({"key": "side", "operator": "In", "values": values})
}

fn as_json(plane: &ControlPlane, yaml: &str) -> Result<Value> {
    let arguments = ["create", "--dry-run=client", "-f", "-", "-o", "json"];
    let text = plane.kubectl().run_with(&arguments, yaml)?;
    let documents = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let mut documents = documents.collect::<Result<Vec<_>, _>>()?;
    match documents.len() {
        1 => Ok(documents.remove(0)),
        _ => Ok(json!({"items": documents})),
    }
}

/// Builds and starts the Go handler, and registers it.
fn start_go(plane: &ControlPlane) -> Result<Process> {
    let directory = workdir::fresh("gohandler")?;
    let program = build_go(directory.join("gohandler"))?;
    let ca = Authority::new("Go handler of the benchmark")?;
    ca.issue("webhook", &directory)?;
    let port = port::free()?;
    let mut handler = command(program);
    handler.arg(format!("--port={port}"));
    handler.arg("--cert-dir").arg(&directory);
    let process = Process::start("gohandler", &directory, handler)?;
    process.wait_until("the Go handler to listen", SOON, || {
        Ok(Some(TcpStream::connect(("127.0.0.1", port))?))
    })?;
    let registration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "gohandler"},
        "webhooks": [{
            "name": "gohandler.example.com", "admissionReviewVersions": ["v1"],
            "sideEffects": "None", "failurePolicy": "Fail", "timeoutSeconds": 5,
            "clientConfig": {
                "url": format!("https://127.0.0.1:{port}/mutate"),
                "caBundle": STANDARD.encode(&ca.certificate)
            },
            "namespaceSelector": {"matchExpressions": [only(&[Side::Go])]},
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["CREATE"], "resources": ["pods"]
            }]
        }]
    });
    plane.kubectl().apply(&registration.to_string())?;
    wait_for_answer(plane, Side::Go, &pod("probe", true), "gohandler")?;
    Ok(process)
}

fn build_go(program: PathBuf) -> Result<PathBuf> {
    let mut go = Command::new("go");
    go.args(["build", "-trimpath", "-ldflags=-s -w", "-o"])
        .arg(&program);
    go.env("CGO_ENABLED", "0").current_dir(GO_MODULE);
    let status = go
        .status()
        .context("run `go` to build the handler; install Go from https://go.dev/dl")?;
    ensure!(status.success(), "`go build` of the Go handler failed");
    Ok(program)
}
