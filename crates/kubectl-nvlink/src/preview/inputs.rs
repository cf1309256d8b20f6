//! Objects of a cluster, read from files: classes, nodes and namespaces.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail, ensure};
use kube::CustomResourceExt;
use nvlink_admission::view::View;
use nvlink_api::{
    class::Class,
    crd::{DomainClass, domain_class::ScopeLabels, unknown_fields},
    pod::{self, text},
};
use nvlink_cluster::gpus::{Gpus, Hardwares};
use nvlink_topology::{API_VERSION, KIND, NodeTopology, labels};
use serde_json::{Value, json};

use super::files;

/// The objects of a cluster.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    pub(super) view: View,
    /// Nodes whose NodeTopology a file has, by name.
    pub(super) topologies: BTreeMap<String, NodeTopology>,
    /// The file of each of them.
    files: BTreeMap<String, PathBuf>,
    /// Namespaces that a file has.
    pub(super) namespaces: BTreeSet<String>,
    /// Namespaces whose label exempts them.
    pub(super) exempt: BTreeSet<String>,
    /// By what the cluster's webhook judges scopes, if a class says so.
    pub(super) scope_labels: Option<ScopeLabels>,
}

impl Cluster {
    /// Reads `paths`: files and directories.
    ///
    /// # Errors
    /// When one cannot be read, or has an object of another kind.
    pub(super) fn load<'a>(paths: impl IntoIterator<Item = &'a Path>) -> anyhow::Result<Self> {
        let mut cluster = Self::default();
        let mut nodes = BTreeMap::<String, BTreeMap<String, String>>::new();
        for path in paths {
            for path in files::expand(path)? {
                for mut document in flatten(files::documents(&path)?) {
                    name_by_file(&mut document, &path);
                    let name = name(&document);
                    let added = cluster.add(document, &path, &mut nodes);
                    added.with_context(|| format!("{}: {name}", files::display(&path)))?;
                }
            }
        }
        for (name, labels) in nodes {
            cluster.view.set_node(&name, labels);
        }
        Ok(cluster)
    }

    fn add(
        &mut self,
        document: Value,
        path: &Path,
        nodes: &mut BTreeMap<String, BTreeMap<String, String>>,
    ) -> anyhow::Result<()> {
        let object = text(&document, &["metadata", "name"]).to_owned();
        ensure!(!object.is_empty(), "metadata.name is missing");
        let kind = text(&document, &["kind"]).to_owned();
        match kind.as_str() {
            "DomainClass" => {
                let labels = ScopeLabels::of(&document);
                self.scope_labels = self.scope_labels.take().or(labels);
                let class = class(&document)?;
                self.view.set_class(&object, Ok(class));
            }
            "Namespace" => self.namespace(object, &document),
            "NodeTopology" => {
                let published = Hardwares::default().read_json(document.clone());
                let topology: NodeTopology = serde_json::from_value(document)?;
                self.check_once(&object, path)?;
                let labels = labels::node_labels(&topology).into_iter();
                let node = nodes.entry(object.clone()).or_default();
                node.extend(labels.map(|(key, value)| (key.to_owned(), value)));
                let mut gpus = Gpus::default();
                gpus.set_topology(&object, Some(Arc::new(published)));
                let gpus = gpus.of(&object);
                self.view.set_free(&object, gpus.most_free(|_| true));
                let mig = gpus.known().is_some_and(|known| known.mig);
                self.view.set_mig(&object, mig);
                self.topologies.insert(object, topology);
            }
            "Node" => {
                let labels = entries(&document, "labels");
                nodes.entry(object).or_default().extend(labels);
            }
            "Role" | "RoleBinding" | "ClusterRole" | "ClusterRoleBinding" => {
                let path = files::display(path);
                eprintln!(
                    "note: {path}: {kind} {object:?} is ignored: name the restricted classes that everybody may use with --allow-use"
                );
            }
            _ => bail!(
                "expected a DomainClass, NodeTopology, Node or Namespace; use --filename for pods to decide on"
            ),
        }
        Ok(())
    }

    /// Checks that no other file has a topology of the node `name`. The same file may be given twice.
    fn check_once(&mut self, name: &str, path: &Path) -> anyhow::Result<()> {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let other = self.files.insert(name.to_owned(), path.to_owned());
        if let Some(other) = other.filter(|other| real(other) != real(path)) {
            bail!(
                "{} has a NodeTopology of the same name; if they are two nodes, give each its own \
                 metadata.name (nvlink-exporter record --node-name NAME)",
                files::display(&other)
            );
        }
        Ok(())
    }

    fn namespace(&mut self, name: String, document: &Value) {
        let annotations = entries(document, "annotations");
        let default = annotations.get(labels::DEFAULT_CLASS).map(String::as_str);
        self.view.set_default_class(&name, default);
        let labels = entries(document, "labels");
        if labels
            .get(labels::OPT_OUT)
            .is_some_and(|value| value == "ignore")
        {
            self.exempt.insert(name.clone());
        }
        self.namespaces.insert(name);
    }
}

/// Returns the class of a file that has one DomainClass; other objects in it, such as the Roles of its
/// users, do not matter.
///
/// # Errors
/// When it cannot be read, is invalid, or has no or several DomainClasses.
pub(crate) fn read_class(path: &Path) -> anyhow::Result<Class> {
    let name = files::display(path);
    let documents = flatten(files::documents(path)?);
    let is_class = |document: &&Value| text(document, &["kind"]) == "DomainClass";
    let classes: Vec<&Value> = documents.iter().filter(is_class).collect();
    match classes[..] {
        [document] => class(document).with_context(|| name),
        _ => bail!(
            "{name}: expected one DomainClass, and it has {}: put the one to use into a file of its own",
            classes.len()
        ),
    }
}

fn class(document: &Value) -> anyhow::Result<Class> {
    ensure!(
        text(document, &["apiVersion"]) == API_VERSION,
        "expected apiVersion {API_VERSION}"
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
    let class: DomainClass = serde_path_to_error::deserialize(document)?;
    Ok(Class::new(
        text(document, &["metadata", "name"]),
        &class.spec,
    )?)
}

/// Gives a NodeTopology without a name that of its file, without the extension.
fn name_by_file(document: &mut Value, path: &Path) {
    let nameless = text(document, &["metadata", "name"]).is_empty();
    if text(document, &["kind"]) == KIND
        && nameless
        && path != Path::new("-")
        && let Some(stem) = path.file_stem().and_then(|stem| stem.to_str())
    {
        if !document["metadata"].is_object() {
            document["metadata"] = json!({});
        }
        document["metadata"]["name"] = stem.into();
    }
}

/// Returns the documents, with Lists replaced by their items.
pub(super) fn flatten(documents: Vec<Value>) -> Vec<Value> {
    let flat = documents.into_iter().flat_map(|mut document| {
        match document.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => items,
            _ => vec![document],
        }
    });
    flat.collect()
}

/// Returns the labels or annotations.
fn entries(document: &Value, map: &str) -> BTreeMap<String, String> {
    pod::entries(document, &["metadata", map])
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

fn name(document: &Value) -> String {
    let (kind, name) = (
        text(document, &["kind"]),
        text(document, &["metadata", "name"]),
    );
    format!("{kind} {name:?}")
}
