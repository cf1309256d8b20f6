//! The admission decision, made offline from files.

use std::{path::Path, process::ExitCode};

use anyhow::{Context, ensure};
use nvlink_admission::{
    admit::Admission,
    authorize::ListedAuthorizer,
    decide::{Admitted, Refusal, Rule, Settings, affinity},
    policies::exempt_names,
    view::SharedView,
};
use nvlink_api::crd::domain_class::ScopeLabels;
use nvlink_runtime::stdout::print;
use nvlink_topology::labels;
use serde_json::Value;

use crate::args::{Output, PreviewArgs};

mod files;
mod inputs;
mod links;
mod maker;
mod render;
mod restrict;
mod template;
mod verdict;

use inputs::Cluster;
pub(crate) use inputs::read_class;
use maker::Dress;
use template::Template;
use verdict::{Fit, Verdict};

/// The exit status if a pod is refused, or with `--strict` fits no node, and if an input cannot be
/// read.
const REFUSED: u8 = 1;
const BAD_INPUT: u8 = 2;

/// Runs `preview`. Returns status 1 if a pod is refused, or with `--strict` if no node can hold it,
/// and 2 if an input cannot be read.
///
/// # Errors
/// When nothing can be printed.
pub fn run(args: &PreviewArgs) -> anyhow::Result<ExitCode> {
    let changes = match decide(args) {
        Ok(changes) => changes,
        Err(error) => {
            eprintln!("error: {error:#}");
            return Ok(ExitCode::from(BAD_INPUT));
        }
    };
    let verdicts: Vec<_> = changes.iter().flat_map(|change| &change.verdicts).collect();
    let unplaced: Vec<_> = verdicts
        .iter()
        .filter_map(|verdict| Some((&verdict.name, verdict.unplaceable()?)))
        .filter(|_| args.strict)
        .collect();
    let failed = !unplaced.is_empty() || verdicts.iter().any(|verdict| !verdict.allowed);
    match args.output {
        Output::Text => print(&render::text(&verdicts))?,
        Output::Report => print(&format!("{:#}\n", serde_json::json!(verdicts)))?,
        _ => {
            eprint!("{}", render::text(&verdicts));
            if !failed && args.restrict.is_none() {
                print(&render::documents(&changes, args.output)?)?;
            }
        }
    }
    for (name, why) in unplaced {
        eprintln!("error: no node can hold {name}: {why}");
    }
    Ok(ExitCode::from(if failed { REFUSED } else { 0 }))
}

/// Removes the node from a pod that comes from a cluster: there the scheduler chose
/// the node, and not the pod's author.
fn node_of_scheduler(template: &Template, pod: &mut Value) -> Option<Value> {
    let stored = template.is_pod() && pod.pointer("/metadata/uid").is_some_and(Value::is_string);
    let spec = pod.get_mut("spec").and_then(Value::as_object_mut);
    spec.filter(|_| stored)?.remove("nodeName")
}

/// A document before and after.
struct Change {
    before: Value,
    after: Value,
    verdicts: Vec<Verdict>,
}

fn decide(args: &PreviewArgs) -> anyhow::Result<Vec<Change>> {
    let mut documents = Vec::new();
    for path in &args.filenames {
        for path in files::expand(path)? {
            documents.extend(files::documents(&path)?);
        }
    }
    if let Some(class) = &args.restrict {
        return restrict::refused(args, class, documents);
    }
    let cluster = Cluster::load(args.cluster.iter().map(AsRef::<Path>::as_ref))?;
    ensure!(
        !args.strict || cluster.view.has_nodes(),
        "--strict needs nodes: add Nodes or NodeTopologies with --cluster PATH"
    );
    let preview = Preview::new(args, cluster)?;
    let documents = documents.into_iter();
    let changes: Vec<_> = documents.map(|one| preview.document(one)).collect();
    if changes.iter().all(|change| change.verdicts.is_empty()) {
        let none = "the input has no pods and no pod templates: nothing is checked; of a Workflow, TaskRun, ProwJob or CI file, preview a pod that it created";
        ensure!(!args.strict, "{none}");
        eprintln!("note: {none}");
    } else if args.cluster.is_empty() {
        eprintln!("note: there are no classes: add them with --cluster FILE");
    }
    Ok(changes)
}

/// Returns by what scopes are judged: as the flags say, else as the cluster's webhook does.
fn settings(args: &PreviewArgs, labels: Option<ScopeLabels>) -> Settings {
    let known = labels.unwrap_or_default();
    let flag = |flag: &Option<String>, known| flag.clone().unwrap_or(known);
    Settings {
        rack_label: flag(&args.rack_label, known.rack),
        network_labels: known.network,
        zone_label: flag(&args.zone_label, known.zone),
    }
}

struct Preview<'a> {
    args: &'a PreviewArgs,
    cluster: Cluster,
    admission: Admission<ListedAuthorizer>,
    runtime: tokio::runtime::Runtime,
}

impl<'a> Preview<'a> {
    fn new(args: &'a PreviewArgs, mut cluster: Cluster) -> anyhow::Result<Self> {
        Ok(Self {
            args,
            admission: Admission {
                view: SharedView::new(std::mem::take(&mut cluster.view)),
                authorizer: ListedAuthorizer::new(args.allow_use.iter().cloned()),
                settings: settings(args, cluster.scope_labels.take()),
            },
            cluster,
            runtime: tokio::runtime::Builder::new_current_thread()
                .build()
                .context("cannot start")?,
        })
    }

    fn document(&self, before: Value) -> Change {
        let mut change = Change {
            after: before.clone(),
            before,
            verdicts: Vec::new(),
        };
        for template in template::find(&change.before) {
            let path = template.path.as_str();
            let pod = change.before.pointer(path).cloned();
            let (mut verdict, after) =
                self.template(&template, &change.before, pod.unwrap_or_default());
            let unheard = template::unheard(&change.before, &template);
            verdict.notes.extend(unheard);
            change.verdicts.push(verdict);
            if let (Some(after), Some(place)) = (after, change.after.pointer_mut(path)) {
                *place = after;
            }
        }
        change
    }

    /// Decides on the pods of `template`. Returns the verdict and the resulting template.
    fn template(
        &self,
        template: &Template,
        document: &Value,
        before: Value,
    ) -> (Verdict, Option<Value>) {
        let namespace = template.object.namespace.as_deref();
        let namespace = namespace.unwrap_or(&self.args.namespace);
        let user = maker::user(&self.args.user);
        let subject = maker::subject(template, &before, user);
        let mut verdict = Verdict::new(template, namespace, &subject);
        if let Some(why) = self.exempt(namespace) {
            verdict.notes.push(why);
            return (verdict, None);
        }
        self.default_class(namespace);
        let dress = Dress::of(template, document);
        let mut pod = match &dress {
            Some(dress) => dress.put_on(&before),
            None => before.clone(),
        };
        let node = node_of_scheduler(template, &mut pod);
        let pods = dress
            .as_ref()
            .and_then(|_| nvlink_queue::gang_size(&pod, document));
        let decision = self.admission.admit_part(pod, namespace, &subject, pods);
        match self.runtime.block_on(decision) {
            Err(refusal) => {
                self.refuse(&mut verdict, template, refusal);
                (verdict, None)
            }
            Ok(mut admitted) => {
                let mut pod = std::mem::take(&mut admitted.pod);
                let own = std::mem::take(&mut admitted.patch);
                if let Some(node) = node {
                    pod["spec"]["nodeName"] = node;
                }
                self.explain(&mut verdict, admitted);
                let (after, patch) = match dress {
                    None => (pod, own),
                    Some(_) if own.is_empty() => (before, own),
                    // The pod's own patch has labels that the template does not have.
                    Some(dress) => {
                        let after = dress.take_off(pod, &before);
                        let patch = json_patch::diff(&before, &after);
                        (after, patch)
                    }
                };
                verdict.patch(patch);
                (verdict, Some(after))
            }
        }
    }

    /// Returns why the pods of `namespace` are not checked, if they are not.
    fn exempt(&self, namespace: &str) -> Option<String> {
        let names = exempt_names(&self.args.exempt.exempt_namespaces);
        if names.iter().any(|name| name == namespace) {
            return Some(format!("not checked: namespace {namespace} is exempt"));
        }
        self.cluster.exempt.contains(namespace).then(|| {
            format!(
                "not checked: namespace {namespace} has the label {}=ignore",
                labels::OPT_OUT
            )
        })
    }

    fn default_class(&self, namespace: &str) {
        if !self.cluster.namespaces.contains(namespace) {
            let class = self.args.namespace_default.as_deref();
            let mut view = self.admission.view.write();
            view.set_default_class(namespace, class);
        }
    }

    fn refuse(&self, verdict: &mut Verdict, template: &Template, refusal: Refusal) {
        let right = [
            Rule::NotAuthorized,
            Rule::Toleration,
            Rule::NodeName,
            Rule::NodeSelector,
        ];
        if right.contains(&refusal.rule) {
            if !template.is_pod() {
                verdict.notes.push(format!(
                    "a controller creates the pods of a {}, so the service account of the pods needs the right, not the user who creates the {0}",
                    template.object.kind
                ));
            }
            verdict.notes.push(
                "only a cluster knows who may use a class: --allow-use CLASS assumes the right, \
                 kubectl create --dry-run=server --as USER -f POD checks it; for a pod of a CI \
                 system, name the account of its runner with --as"
                    .to_owned(),
            );
        }
        verdict.refuse(refusal);
    }

    fn explain(&self, verdict: &mut Verdict, admitted: Admitted) {
        verdict.warnings = admitted.warnings;
        let Some(record) = admitted.record else {
            verdict.notes.extend(self.passed_over());
            return;
        };
        let view = self.admission.view.read();
        if view.has_nodes()
            && let (Some(Ok(class)), Ok(scope)) = (view.class(&record.class), record.scope.parse())
        {
            let need = affinity::domain_size(scope, record.gpus).unwrap_or(1);
            let fitting = view.matching_nodes(class, need);
            let off_nvlink = links::off_nvlink(&record, class, &fitting, &self.cluster.topologies);
            verdict.notes.extend(off_nvlink);
            let slow = links::too_slow(&view, class, &self.cluster.topologies);
            verdict.notes.extend(slow);
            verdict
                .notes
                .extend(links::behind_siblings(&fitting, &self.cluster.topologies));
            verdict.nodes = Some(Fit {
                fitting: fitting.into_iter().map(str::to_owned).collect(),
                all: view.nodes().len(),
            });
        }
        verdict.class = Some(record.class.clone());
        verdict.decision = Some(record);
    }

    /// Returns a note on restricted classes that claim pods but were passed over.
    fn passed_over(&self) -> Option<String> {
        let view = self.admission.view.read();
        let allows = |name: &str| self.admission.authorizer.allows(name);
        let claiming = view.claiming().iter();
        let names: Vec<_> = claiming
            .filter(|class| class.restricted && !allows(&class.name))
            .map(|class| class.name.as_str())
            .collect();
        (!names.is_empty()).then(|| {
            format!(
                "restricted classes claim only pods that may use them; to see their effect, add --allow-use {}",
                names.join(",")
            )
        })
    }
}
