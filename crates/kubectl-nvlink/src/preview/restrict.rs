//! What would be refused if a class were restricted: the same decision twice, with the class open and
//! with it restricted.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, bail};
use nvlink_api::pod;
use serde_json::Value;

use super::{
    Change, Preview,
    inputs::{Cluster, flatten},
};
use crate::args::PreviewArgs;

/// At most so many of those that are refused now are named.
const NAMED: usize = 5;

/// Returns the decisions on what is refused only if `class` is restricted.
///
/// # Errors
/// When an input cannot be read, or has no such class.
pub(super) fn refused(
    args: &PreviewArgs,
    class: &str,
    documents: Vec<Value>,
) -> anyhow::Result<Vec<Change>> {
    let documents = flatten(documents).into_iter();
    let documents: Vec<_> = documents.filter(|one| !is_made(one)).collect();
    let decide = |restricted: bool| {
        let mut cluster = Cluster::load(args.cluster.iter().map(AsRef::<Path>::as_ref))?;
        set(&mut cluster, class, restricted)?;
        let preview = Preview::new(args, cluster)?;
        anyhow::Ok(
            documents
                .iter()
                .cloned()
                .map(move |one| preview.document(one)),
        )
    };
    let open = decide(false)?.flat_map(|change| change.verdicts);
    let (passed, refused): (Vec<_>, Vec<_>) = open.partition(|verdict| verdict.allowed);
    let passed: BTreeSet<_> = passed
        .into_iter()
        .map(|verdict| (verdict.namespace, verdict.name, verdict.path.to_string()))
        .collect();
    let mut changes: Vec<Change> = decide(true)?.collect();
    for change in &mut changes {
        change.verdicts.retain(|one| {
            let key = (
                one.namespace.clone(),
                one.name.clone(),
                one.path.to_string(),
            );
            !one.allowed && passed.contains(&key)
        });
    }
    changes.retain(|change| !change.verdicts.is_empty());
    let count: usize = changes.iter().map(|change| change.verdicts.len()).sum();
    eprintln!(
        "note: {count} of {} pods and templates would be refused if class {class:?} were restricted",
        passed.len()
    );
    if !refused.is_empty() {
        let names: Vec<&str> = refused.iter().map(|one| &*one.name).take(NAMED).collect();
        eprintln!(
            "note: refused already, also while the class is open: {}, such as {}; without --restrict, preview says why",
            refused.len(),
            names.join(", ")
        );
    }
    Ok(changes)
}

fn set(cluster: &mut Cluster, name: &str, restricted: bool) -> anyhow::Result<()> {
    if let Some(Err(reason)) = cluster.view.class(name) {
        bail!("class {name:?} cannot be used, because {reason}");
    }
    let view = cluster.view.with_restriction(name, restricted);
    cluster.view = view
        .context("there is no such class")
        .with_context(|| format!("--restrict {name}: add the class with --cluster PATH"))?;
    Ok(())
}

/// Reports whether a controller made the pod.
fn is_made(document: &Value) -> bool {
    let mut owners = pod::list(document, &["metadata", "ownerReferences"]);
    pod::text(document, &["kind"]) == "Pod"
        && owners.any(|owner| owner.get("controller") == Some(&Value::Bool(true)))
}
