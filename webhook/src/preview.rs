//! The decision of admission, made offline from files.

use std::{path::Path, process::ExitCode};

use anyhow::Context;
use nvlink_topology::labels;
use serde_json::Value;

use crate::{
    admission::admit::Admission,
    args::{Output, PreviewArgs},
    authorize::ListedAuthorizer,
    cluster::view::SharedView,
    decide::{Admitted, Refusal, Rule, affinity},
    policies::exempt_names,
    stdout::print,
};

mod files;
mod inputs;
mod links;
mod maker;
mod render;
mod template;
mod verdict;

use inputs::Cluster;
use maker::Dress;
use template::Template;
use verdict::{Fit, Verdict};

/// Pods are refused by this status, and input that cannot be read by the next one.
const REFUSED: u8 = 1;
const BAD_INPUT: u8 = 2;

/// Runs `preview`: status 1 where a pod is refused, 2 where an input cannot be read.
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
    let refused = verdicts.iter().any(|verdict| !verdict.allowed);
    match args.output {
        Output::Text => print(&render::text(&verdicts))?,
        Output::Report => print(&format!("{:#}\n", serde_json::json!(verdicts)))?,
        _ => {
            eprint!("{}", render::text(&verdicts));
            if !refused {
                print(&render::documents(&changes, args.output)?)?;
            }
        }
    }
    Ok(ExitCode::from(if refused { REFUSED } else { 0 }))
}

/// Takes the node from a pod that a cluster has: there the scheduler named it,
/// and no author past the scheduler.
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
    let cluster = Cluster::load(args.cluster.iter().map(AsRef::<Path>::as_ref))?;
    let preview = Preview::new(args, cluster)?;
    let mut changes = Vec::new();
    for document in documents {
        changes.push(preview.document(document)?);
    }
    if changes.iter().all(|change| change.verdicts.is_empty()) {
        eprintln!("note: there is no pod and no template of pods in what was given");
    } else if args.cluster.is_empty() {
        eprintln!("note: no classes were given: use --cluster FILE");
    }
    Ok(changes)
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
                settings: args.scopes.clone().into(),
            },
            cluster,
            runtime: tokio::runtime::Builder::new_current_thread()
                .build()
                .context("cannot start")?,
        })
    }

    fn document(&self, before: Value) -> anyhow::Result<Change> {
        let mut change = Change {
            after: before.clone(),
            before,
            verdicts: Vec::new(),
        };
        for template in template::find(&change.before) {
            let pod = change.before.pointer(&template.path).cloned();
            let (mut verdict, after) = self.template(&template, pod.unwrap_or_default())?;
            let unheard = template::unheard(&change.before, &template);
            verdict.notes.extend(unheard);
            change.verdicts.push(verdict);
            if let (Some(after), Some(place)) = (after, change.after.pointer_mut(&template.path)) {
                *place = after;
            }
        }
        Ok(change)
    }

    /// What is decided on the pods of `template`, and what becomes of it.
    fn template(
        &self,
        template: &Template,
        before: Value,
    ) -> anyhow::Result<(Verdict, Option<Value>)> {
        let namespace = template.object.namespace.as_deref();
        let namespace = namespace.unwrap_or(&self.args.namespace);
        let user = maker::user(&self.args.user);
        let subject = maker::subject(template, &before, user);
        let mut verdict = Verdict::new(template, namespace, &subject);
        if let Some(why) = self.exempt(namespace) {
            verdict.notes.push(why);
            return Ok((verdict, None));
        }
        self.default_class(namespace);
        let dress = Dress::of(template);
        let mut pod = match &dress {
            Some(dress) => dress.put_on(&before),
            None => before.clone(),
        };
        let node = node_of_scheduler(template, &mut pod);
        let decision = self.admission.admit(pod, namespace, &subject);
        match self.runtime.block_on(decision) {
            Err(refusal) => {
                self.refuse(&mut verdict, template, refusal);
                Ok((verdict, None))
            }
            Ok(admitted) => {
                let mut pod = admitted.pod.clone();
                let own: json_patch::Patch = serde_json::from_slice(&admitted.patch.to_json())?;
                if let Some(node) = node {
                    pod["spec"]["nodeName"] = node;
                }
                self.explain(&mut verdict, admitted);
                let (after, patch) = match dress {
                    None => (pod, own),
                    Some(_) if own.is_empty() => (before, own),
                    // The pod's own patch knows labels that the template has not.
                    Some(dress) => {
                        let after = dress.take_off(pod, &before);
                        let patch = json_patch::diff(&before, &after);
                        (after, patch)
                    }
                };
                verdict.patch(&template.path, &patch)?;
                Ok((verdict, Some(after)))
            }
        }
    }

    /// Why nobody looks at the pods of `namespace`, if nobody does.
    fn exempt(&self, namespace: &str) -> Option<String> {
        let names = exempt_names(&self.args.exempt.exempt_namespaces);
        if names.iter().any(|name| name == namespace) {
            return Some(format!("not looked at: namespace {namespace} is exempt"));
        }
        self.cluster.exempt.contains(namespace).then(|| {
            format!(
                "not looked at: namespace {namespace} has the label {}=ignore",
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
                    "a controller makes the pods of a {}, so what counts is the right of the service account that they run as, and not that of who makes the {0}",
                    template.object.kind
                ));
            }
            verdict.notes.push(
                "who may use a class is the cluster's to say: --allow-use CLASS takes it as given, \
                 kubectl create --dry-run=server --as USER -f POD asks the cluster"
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
            let off_nvlink = links::off_nvlink(&record, &fitting, &self.cluster.topologies);
            verdict.notes.extend(off_nvlink);
            verdict.nodes = Some(Fit {
                fitting: fitting.into_iter().map(str::to_owned).collect(),
                all: view.nodes().len(),
            });
        }
        verdict.class = Some(record.class.clone());
        verdict.decision = Some(record);
    }

    /// What to tell of restricted classes that claim pods, but not of those who may not use them.
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
                "restricted classes claim only pods of those who may use them; to see what they would do: --allow-use {}",
                names.join(",")
            )
        })
    }
}
