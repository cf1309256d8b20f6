//! The `policies` subcommand, which prints the policies or compares them with those of a cluster.

use std::process::ExitCode;

use anyhow::{Context, anyhow};
use kube::{
    Client,
    api::{Api, ApiResource, DynamicObject, GroupVersionKind},
};
use nvlink_runtime::client::{self, Limits};
use serde_json::{Value, json};
use similar::TextDiff;

use super::{documents, text};
use crate::{stdout::print, yaml};

/// Prints the policies, or with `check` compares them with those of the cluster. If they differ, it
/// prints the differences and the exit status is 1; if the cluster cannot be read, it is 2.
///
/// # Errors
/// When they cannot be printed.
pub fn run(check: bool, exempt: &[String]) -> anyhow::Result<ExitCode> {
    if !check {
        print(&text(exempt))?;
        return Ok(ExitCode::SUCCESS);
    }
    let wanted = documents(exempt)?;
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
    let differences = differences(&found, &wanted)?;
    if differences.is_empty() {
        eprintln!(
            "the {} policies and bindings in the cluster are up to date",
            wanted.len()
        );
        return Ok(ExitCode::SUCCESS);
    }
    print(&differences)?;
    eprintln!(
        "error: the policies in the cluster differ from those of this version\n{}",
        remedy(exempt)
    );
    Ok(ExitCode::FAILURE)
}

async fn ask(wanted: &[Value]) -> anyhow::Result<Vec<Value>> {
    let connected = client::connect(Limits::default()).await;
    let no_access = |error| anyhow!("no access to the cluster: {}", client::reason(&error));
    let client = connected.map_err(no_access)?;
    found(&client, wanted).await
}

/// Returns the commands that repair the policies. An apply would only add to lists that somebody
/// else has changed, so existing objects are replaced.
fn remedy(exempt: &[String]) -> String {
    let exempt = exempt.join(",");
    let print = format!("nvlink-webhook policies --exempt-namespace={exempt}");
    format!(
        "to create what is missing: {print} | kubectl apply --server-side -f -\n\
         to repair what was changed: {print} | kubectl replace -f -"
    )
}

/// Reads the objects with the names of `wanted` from the cluster; null for each missing object.
async fn found(client: &Client, wanted: &[Value]) -> anyhow::Result<Vec<Value>> {
    let mut found = Vec::new();
    for document in wanted {
        let text = |pointer| {
            document
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or("")
        };
        let (kind, name) = (text("/kind"), text("/metadata/name"));
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

/// Returns the differences between the found and the wanted objects as a unified diff; empty if
/// there are none. Only their specs are compared.
///
/// # Errors
/// When a document cannot be written as YAML.
fn differences(found: &[Value], wanted: &[Value]) -> anyhow::Result<String> {
    let mut all = String::new();
    for (found, wanted) in found.iter().zip(wanted) {
        if found.get("spec") == wanted.get("spec") {
            continue;
        }
        let text = |document: &Value| -> anyhow::Result<String> {
            match document.get("spec") {
                None => Ok(String::new()),
                Some(spec) => Ok(yaml::write(std::slice::from_ref(spec))?),
            }
        };
        let (before, after) = (text(found)?, text(wanted)?);
        let word = |pointer| {
            wanted
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or("")
        };
        let name = format!("{}/{}", word("/kind"), word("/metadata/name"));
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
