//! The `policies` subcommand: print them, or compare them with a cluster's.

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

/// Prints the policies, or, to `check` them, compares them with those of the
/// cluster: exit status 1, and what differs, where they are not the same; 2
/// where the cluster cannot be asked.
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
            // Not the status of policies that differ.
            eprintln!("error: {error:#}");
            return Ok(ExitCode::from(2));
        }
    };
    let differences = differences(&found, &wanted)?;
    if differences.is_empty() {
        eprintln!(
            "the cluster has the {} policies and bindings as they should be",
            wanted.len()
        );
        return Ok(ExitCode::SUCCESS);
    }
    print(&differences)?;
    eprintln!("error: the cluster's policies differ\n{}", remedy(exempt));
    Ok(ExitCode::FAILURE)
}

async fn ask(wanted: &[Value]) -> anyhow::Result<Vec<Value>> {
    let connected = client::connect(Limits::default()).await;
    let no_access = |error| anyhow!("no access to the cluster: {}", client::reason(&error));
    let client = connected.map_err(no_access)?;
    found(&client, wanted).await
}

/// The commands that put the policies right. An apply would add to the lists
/// that somebody else has changed, so what is there is replaced.
fn remedy(exempt: &[String]) -> String {
    let exempt = exempt.join(",");
    let print = format!("nvlink-webhook policies --exempt-namespace={exempt}");
    format!(
        "to add what is missing: {print} | kubectl apply --server-side -f -\n\
         to put right what was changed: {print} | kubectl replace -f -"
    )
}

/// What the cluster has under the names of `wanted`; null where it has nothing.
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

/// The differences between what a cluster has and what it should have, as a
/// unified diff; empty where there are none. Of what it has, only the spec counts.
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
