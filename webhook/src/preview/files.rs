//! Input files of `preview`.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    path::Path,
};

use anyhow::{Context, bail, ensure};
use kube::CustomResourceExt;
use nvlink_topology::{API_VERSION, NodeTopology, labels};
use serde_json::Value;

use crate::{
    class::Class,
    cluster,
    crd::{DomainClass, unknown_fields},
    view::View,
    yaml,
};

/// A larger file is not what anybody meant.
const MAX_FILE: u64 = 64 << 20;

/// The documents of a file; `-` is stdin.
pub(super) fn documents(path: &Path) -> anyhow::Result<Vec<Value>> {
    let name = display(path);
    let bytes = read(path).with_context(|| format!("cannot read {name}"))?;
    ensure!(
        bytes.len() as u64 <= MAX_FILE,
        "{name} is larger than {} MiB",
        MAX_FILE >> 20
    );
    let text = String::from_utf8(bytes).map_err(|_| anyhow::anyhow!("{name} is not UTF-8 text"))?;
    let documents = yaml::read(text.strip_prefix('\u{feff}').unwrap_or(&text))
        .map_err(|error| anyhow::anyhow!("{name}: {error}"))?;
    ensure!(!documents.is_empty(), "{name} holds no document");
    match documents.iter().find(|document| !document.is_object()) {
        Some(_) => bail!("{name} holds a document that is not an object"),
        None => Ok(documents),
    }
}

fn display(path: &Path) -> String {
    if path == Path::new("-") {
        "stdin".to_owned()
    } else {
        path.display().to_string()
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = MAX_FILE + 1;
    if path == Path::new("-") {
        io::stdin().lock().take(limit).read_to_end(&mut bytes)?;
    } else {
        fs::File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Loads the DomainClasses of a file.
pub(super) fn load_classes(path: &Path, view: &mut View) -> anyhow::Result<()> {
    for document in flatten(documents(path)?) {
        let class =
            class(&document).with_context(|| format!("{}: {}", path.display(), name(&document)))?;
        view.set_class(&class.name.clone(), Ok(class));
    }
    Ok(())
}

fn class(document: &Value) -> anyhow::Result<Class> {
    ensure!(
        text(document, "/kind") == "DomainClass",
        "expected a DomainClass"
    );
    ensure!(
        text(document, "/apiVersion") == API_VERSION,
        "expected apiVersion {API_VERSION}"
    );
    ensure!(
        !text(document, "/metadata/name").is_empty(),
        "metadata.name is missing"
    );
    let crd = DomainClass::crd();
    let schema = crd.spec.versions.first().and_then(|version| {
        let root = version.schema.as_ref()?.open_api_v3_schema.as_ref()?;
        root.properties.as_ref()?.get("spec")
    });
    if let Some(schema) = schema {
        let unknown = unknown_fields(schema, document.get("spec").unwrap_or(&Value::Null));
        ensure!(
            unknown.is_empty(),
            "unknown field spec.{}",
            unknown.join(", spec.")
        );
    }
    let class: DomainClass = serde_json::from_value(document.clone())?;
    Ok(Class::new(text(document, "/metadata/name"), &class.spec)?)
}

/// Loads the NodeTopology and Node files of a directory.
pub(super) fn load_nodes(directory: &Path, view: &mut View) -> anyhow::Result<()> {
    let context = || format!("cannot read the directory {}", directory.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).with_context(context)? {
        paths.push(entry.with_context(context)?.path());
    }
    paths.retain(|path| {
        path.extension()
            .is_some_and(|it| ["json", "yaml", "yml"].iter().any(|known| it == *known))
    });
    paths.sort();
    ensure!(
        !paths.is_empty(),
        "{} holds no .json, .yaml or .yml file",
        directory.display()
    );
    let mut nodes = BTreeMap::<String, BTreeMap<String, String>>::new();
    for path in &paths {
        load_node_file(path, &mut nodes, view)?;
    }
    for (name, labels) in nodes {
        view.set_node(&name, labels);
    }
    Ok(())
}

fn load_node_file(
    path: &Path,
    nodes: &mut BTreeMap<String, BTreeMap<String, String>>,
    view: &mut View,
) -> anyhow::Result<()> {
    for document in flatten(documents(path)?) {
        let context = || format!("{}: {}", path.display(), name(&document));
        let node = nodes
            .entry(text(&document, "/metadata/name").to_owned())
            .or_default();
        match text(&document, "/kind") {
            "NodeTopology" => {
                let topology: NodeTopology =
                    serde_json::from_value(document.clone()).with_context(context)?;
                let labels = labels::node_labels(&topology);
                node.extend(
                    labels
                        .into_iter()
                        .map(|(key, value)| (key.to_owned(), value)),
                );
                view.set_free(&topology.metadata.name, cluster::free(&topology));
            }
            "Node" => {
                let labels = document
                    .pointer("/metadata/labels")
                    .and_then(Value::as_object);
                let labels = labels
                    .into_iter()
                    .flatten()
                    .filter_map(|(key, value)| Some((key, value.as_str()?)));
                node.extend(labels.map(|(key, value)| (key.clone(), value.to_owned())));
            }
            _ => bail!("{}: expected a NodeTopology or a Node", context()),
        }
    }
    Ok(())
}

/// The documents, with Lists replaced by their items.
fn flatten(documents: Vec<Value>) -> Vec<Value> {
    let flat = documents.into_iter().flat_map(|mut document| {
        match document.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => items,
            _ => vec![document],
        }
    });
    flat.collect()
}

fn text<'a>(document: &'a Value, pointer: &str) -> &'a str {
    document
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn name(document: &Value) -> String {
    format!(
        "{} {:?}",
        text(document, "/kind"),
        text(document, "/metadata/name")
    )
}
