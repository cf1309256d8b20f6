//! The decision of admission, made offline from files.

use std::process::ExitCode;

use anyhow::Context;
use serde_json::Value;

use crate::{
    admit::Admission,
    args::PreviewArgs,
    authorize::{ListedAuthorizer, Subject, User},
    decide::{Admitted, affinity},
    pod,
    run::print,
    view::{SharedView, View},
};

mod files;
mod render;
mod template;

use template::Template;

/// Runs `preview`.
///
/// # Errors
/// When an input cannot be read.
pub fn run(args: &PreviewArgs) -> anyhow::Result<ExitCode> {
    let before = files::documents(&args.filename)?;
    let mut view = View::default();
    for path in &args.classes {
        files::load_classes(path, &mut view)?;
    }
    if let Some(path) = &args.nodes {
        files::load_nodes(path, &mut view)?;
    }
    let preview = Preview {
        args,
        runtime: tokio::runtime::Builder::new_current_thread()
            .build()
            .context("cannot start")?,
        admission: Admission {
            view: SharedView::new(view),
            authorizer: ListedAuthorizer::new(args.allow_use.iter().cloned()),
            settings: args.scopes.clone().into(),
        },
    };
    let mut changes = Vec::new();
    let mut refused = false;
    for document in before {
        match preview.document(document) {
            Ok(change) => changes.push(change),
            Err(message) => {
                eprintln!("error: {message}");
                refused = true;
            }
        }
    }
    if refused {
        return Ok(ExitCode::FAILURE);
    }
    print(&render::render(&changes, args.output)?)?;
    Ok(ExitCode::SUCCESS)
}

/// A document before and after.
struct Change {
    before: Value,
    after: Value,
    patch: Vec<Value>,
}

struct Preview<'a> {
    args: &'a PreviewArgs,
    admission: Admission<ListedAuthorizer>,
    runtime: tokio::runtime::Runtime,
}

impl Preview<'_> {
    fn document(&self, before: Value) -> Result<Change, String> {
        let mut change = Change {
            after: before.clone(),
            before,
            patch: Vec::new(),
        };
        for template in template::find(&change.before) {
            if let Some(unheard) = template::unheard(&change.before, &template) {
                eprintln!("{}: note: {unheard}", template.name);
            }
            self.template(&template, &mut change)?;
        }
        Ok(change)
    }

    fn template(&self, template: &Template, change: &mut Change) -> Result<(), String> {
        let Some(pod) = change.before.pointer(&template.path).cloned() else {
            return Ok(());
        };
        let namespace = template
            .namespace
            .as_deref()
            .unwrap_or(&self.args.namespace);
        let user = User {
            username: self.args.user.clone(),
            ..User::default()
        };
        let subject = Subject {
            user,
            service_account: pod::service_account(&pod).to_owned(),
        };
        let default = self.args.namespace_default.as_deref();
        self.admission
            .view
            .write()
            .set_default_class(namespace, default);
        let decision = self
            .runtime
            .block_on(self.admission.admit(pod, namespace, &subject));
        let admitted =
            decision.map_err(|refusal| format!("{}: refused: {refusal}", template.name))?;
        self.explain(template, &admitted);
        for operation in admitted.patch {
            let mut operation = serde_json::json!(operation);
            let path = format!(
                "{}{}",
                template.path,
                operation["path"].as_str().unwrap_or_default()
            );
            operation["path"] = path.into();
            change.patch.push(operation);
        }
        if let Some(place) = change.after.pointer_mut(&template.path) {
            *place = admitted.pod;
        }
        Ok(())
    }

    /// Restricted classes that claim pods, but not those of this user.
    fn passed_over(&self) -> String {
        let view = self.admission.view.read();
        let claims = |name: &&str| {
            let allowed = self
                .args
                .allow_use
                .iter()
                .any(|one| one == name || one == "*");
            let class = view.class(name).and_then(Result::ok);
            !allowed && class.is_some_and(|class| class.restricted && class.applies_to.is_some())
        };
        let names: Vec<&str> = view.class_names().filter(claims).collect();
        if names.is_empty() {
            return String::new();
        }
        format!(
            " (restricted classes claim only pods of those who may use them; to see what they \
             would do: --allow-use {})",
            names.join(",")
        )
    }

    fn explain(&self, template: &Template, admitted: &Admitted) {
        let name = &template.name;
        let Some(record) = &admitted.record else {
            let why = if admitted.warnings.is_empty() {
                format!("not changed: no class applies{}", self.passed_over())
            } else {
                admitted.warnings.join("; ")
            };
            eprintln!("{name}: {why}");
            return;
        };
        for (index, line) in admitted.warnings.iter().enumerate() {
            eprintln!(
                "{}{line}",
                if index == 0 {
                    format!("{name}: ")
                } else {
                    "  note: ".to_owned()
                }
            );
        }
        eprintln!("  why: {}", record.why);
        if !record.kept.is_empty() {
            eprintln!("  kept as the pod sets them: {}", record.kept.join(", "));
        }
        let view = self.admission.view.read();
        if self.args.nodes.is_some()
            && let (Some(Ok(class)), Ok(scope)) = (view.class(&record.class), record.scope.parse())
        {
            let need = affinity::domain_size(scope, record.gpus).unwrap_or(1);
            let nodes = view.matching_nodes(class, need);
            let all = view.nodes().len();
            let list = if nodes.is_empty() {
                "none".to_owned()
            } else {
                nodes.join(", ")
            };
            eprintln!("  nodes that fit: {list} ({} of {all})", nodes.len());
        }
    }
}
