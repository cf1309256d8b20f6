//! The `policies` subcommand, which prints the policies or compares them with those of a cluster.

use std::process::ExitCode;

use anyhow::{Context, anyhow};
use kube::{
    Client,
    api::{Api, ApiResource, DynamicObject, GroupVersionKind},
};
use nvlink_api::yaml;
use nvlink_runtime::client::{self, Limits};
use serde_json::{Value, json};
use similar::TextDiff;

use super::{Site, documents, text};
use crate::{
    args::{LEASE_NAME, LEASE_NAMESPACE},
    stdout::print,
};

const POLICY: &str = "ValidatingAdmissionPolicy";
const BINDING: &str = "ValidatingAdmissionPolicyBinding";

/// What `policies` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Prints the policies.
    Print,
    /// Compares them with those of the cluster, and names those that differ.
    Check,
    /// The same, and prints the differences.
    Diff,
}

/// Prints the policies, or compares them with those of the cluster. If they differ, it names them,
/// with [`Task::Diff`] it prints the differences, and the exit status is 1; if the cluster cannot
/// be read, it is 2.
///
/// # Errors
/// When they cannot be printed.
pub fn run(task: Task, site: &Site) -> anyhow::Result<ExitCode> {
    if task == Task::Print {
        print(&text(site))?;
        return Ok(ExitCode::SUCCESS);
    }
    let wanted = documents(site)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let found = match runtime.block_on(ask(&wanted)) {
        Ok(found) => found,
        Err(error) => {
            // Exit status 1 means that the policies differ.
            eprintln!("error: {error:#}");
            return Ok(ExitCode::from(2));
        }
    };
    let differing = Differing::new(&found, &wanted);
    if differing.is_empty() {
        eprintln!(
            "the {} policies and bindings in the cluster are up to date",
            wanted.len()
        );
        return Ok(ExitCode::SUCCESS);
    }
    if task == Task::Diff {
        print(&differing.diff()?)?;
    }
    eprintln!(
        "error: the policies in the cluster differ from those of this version\n{}{}",
        differing.names(),
        differing.remedy(task, site)
    );
    Ok(ExitCode::FAILURE)
}

async fn ask(wanted: &[Value]) -> anyhow::Result<Vec<Value>> {
    let connected = client::connect(Limits::default()).await;
    let no_access = |error| anyhow!("no access to the cluster: {}", client::reason(&error));
    let client = connected.map_err(no_access)?;
    found(&client, wanted).await
}

/// Reads the objects with the names of `wanted` from the cluster; null for each missing object.
pub(super) async fn found(client: &Client, wanted: &[Value]) -> anyhow::Result<Vec<Value>> {
    let mut found = Vec::new();
    for document in wanted {
        let (kind, name) = (word(document, "/kind"), word(document, "/metadata/name"));
        let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let object = api.get_opt(name).await.map_err(|error| {
            let reason = client::reason(&error);
            anyhow!("cannot read {} {name}: {reason}", kind.kind)
        })?;
        found.push(object.map_or(Value::Null, |object| json!(object)));
    }
    Ok(found)
}

/// The wanted objects that the cluster does not have, or has with another spec, which is all that
/// is compared.
pub(super) struct Differing<'a> {
    missing: Vec<&'a Value>,
    /// Each found object, and the wanted one.
    changed: Vec<(&'a Value, &'a Value)>,
}

impl<'a> Differing<'a> {
    pub(super) fn new(found: &'a [Value], wanted: &'a [Value]) -> Self {
        let pairs = found.iter().zip(wanted);
        let differing = pairs.filter(|(found, wanted)| found.get("spec") != wanted.get("spec"));
        let (missing, changed): (Vec<_>, Vec<_>) =
            differing.partition(|(found, _)| found.is_null());
        Self {
            missing: missing.into_iter().map(|(_, wanted)| wanted).collect(),
            changed,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.changed.is_empty()
    }

    /// Returns the names, a line for each kind and kind of difference.
    pub(super) fn names(&self) -> String {
        let changed: Vec<_> = self.changed.iter().map(|(_, wanted)| *wanted).collect();
        let mut lines = String::new();
        for (what, objects) in [("missing", &self.missing), ("changed", &changed)] {
            for (kinds, kind) in [("policies", POLICY), ("bindings", BINDING)] {
                let of_kind = objects.iter().filter(|it| word(it, "/kind") == kind);
                let names: Vec<_> = of_kind.map(|it| word(it, "/metadata/name")).collect();
                if !names.is_empty() {
                    let (count, names) = (names.len(), names.join(", "));
                    lines.push_str(&format!("{what} {kinds} ({count}): {names}\n"));
                }
            }
        }
        lines
    }

    /// Returns the commands that show the differences and repair the policies. An apply would only
    /// add to lists that somebody else has changed, so existing objects are replaced.
    pub(super) fn remedy(&self, task: Task, site: &Site) -> String {
        let exempt = site.exempt.join(",");
        let mut print = format!("nvlink-webhook policies --exempt-namespace={exempt}");
        if site.lease_namespace != LEASE_NAMESPACE {
            print = format!("{print} --lease-namespace={}", site.lease_namespace);
        }
        if site.lease_name != LEASE_NAME {
            print = format!("{print} --lease-name={}", site.lease_name);
        }
        let mut lines = Vec::new();
        if task != Task::Diff && !self.changed.is_empty() {
            lines.push(format!("to see the differences: {print} --diff"));
        }
        if !self.missing.is_empty() {
            lines.push(format!(
                "to create what is missing: {print} | kubectl apply --server-side -f -"
            ));
        }
        if !self.changed.is_empty() {
            lines.push(format!(
                "to repair what was changed: {print} | kubectl replace -f -"
            ));
        }
        lines.join("\n")
    }

    /// Returns the differences as a unified diff.
    ///
    /// # Errors
    /// When a document cannot be written as YAML.
    fn diff(&self) -> anyhow::Result<String> {
        let missing = self.missing.iter().map(|wanted| (&Value::Null, *wanted));
        let mut all = String::new();
        for (found, wanted) in missing.chain(self.changed.iter().copied()) {
            let text = |document: &Value| -> anyhow::Result<String> {
                match document.get("spec") {
                    None => Ok(String::new()),
                    Some(spec) => Ok(yaml::write(std::slice::from_ref(spec))?),
                }
            };
            let (before, after) = (text(found)?, text(wanted)?);
            let name = format!(
                "{}/{}",
                word(wanted, "/kind"),
                word(wanted, "/metadata/name")
            );
            let diff = TextDiff::from_lines(&before, &after)
                .unified_diff()
                .header(
                    &format!("{name} in the cluster"),
                    &format!("{name} of this version"),
                )
                .to_string();
            all.push_str(&diff);
        }
        Ok(all)
    }
}

/// Returns the text at `pointer`; empty if there is none.
fn word<'a>(document: &'a Value, pointer: &str) -> &'a str {
    let value = document.pointer(pointer).and_then(Value::as_str);
    value.unwrap_or_default()
}
