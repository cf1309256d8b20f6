//! The `policies` subcommand, which prints the policies or compares them with those of a cluster.

use std::process::ExitCode;

use anyhow::{Context, anyhow};
use kube::{
    Client, ResourceExt,
    api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams},
};
use nvlink_admission::policies::{Differing, Site, documents, index::index, text};
use nvlink_api::{crd::DomainClass, pod, yaml};
use nvlink_runtime::{
    client::{self, Limits},
    stdout::print,
};
use serde_json::{Value, json};

mod current;

pub(crate) use current::Inspector;

/// What `policies` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Prints the policies.
    Print,
    /// Compares them with those of the cluster, and names those that differ.
    Check,
    /// The same, and prints the differences.
    Diff,
    /// Prints the index of the classes of the cluster.
    Index,
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
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    if task == Task::Index {
        print(&runtime.block_on(index_of_cluster())?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let wanted = documents(site)?;
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
        differing.remedy(task == Task::Diff, site)
    );
    Ok(ExitCode::FAILURE)
}

async fn ask(wanted: &[Value]) -> anyhow::Result<Vec<Value>> {
    found(&connect().await?, wanted).await
}

async fn connect() -> anyhow::Result<Client> {
    let connected = client::connect(Limits::default()).await;
    connected.map_err(|error| anyhow!("no access to the cluster: {}", client::reason(&error)))
}

/// Returns the index of the classes of the cluster, as YAML.
async fn index_of_cluster() -> anyhow::Result<String> {
    let api: Api<DynamicObject> =
        Api::all_with(connect().await?, &ApiResource::erase::<DomainClass>(&()));
    let classes = api.list(&ListParams::default()).await;
    let classes =
        classes.map_err(|error| anyhow!("cannot list classes: {}", client::reason(&error)))?;
    let classes = classes.items.iter();
    let classes: Vec<_> = classes
        .map(|class| (class.name_any(), &class.data))
        .collect();
    let index = index(classes.iter().map(|(name, class)| (name.as_str(), *class)))?;
    Ok(yaml::write(&[json!(index)])?)
}

/// Reads the objects with the names of `wanted` from the cluster; null for each missing object.
pub(super) async fn found(client: &Client, wanted: &[Value]) -> anyhow::Result<Vec<Value>> {
    let mut found = Vec::new();
    for document in wanted {
        let (kind, name) = (
            pod::text(document, &["kind"]),
            pod::text(document, &["metadata", "name"]),
        );
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
