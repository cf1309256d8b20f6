//! The list of cases against the pure decision: `cases/access.json`.

#![allow(clippy::unwrap_used)]

#[path = "cases/list.rs"]
mod list;

use std::time::Instant;

use list::{Action, Case, List};
use nvlink_webhook::{
    admit::Admission,
    authorize::{Authorizer, Grant, RELEASE, Subject, USE, User},
    class::Class,
    decide::{Settings, guard},
    pod,
    view::{SharedView, View},
};
use serde_json::Value;

/// The rights of the list.
struct Rights(Vec<list::Grant>);

impl Rights {
    fn has(&self, user: &User, verb: &str, class: Option<&str>, namespace: &str) -> Grant {
        let account = user.username.strip_prefix("system:serviceaccount:");
        let account = account.map(|name| name.replacen(':', "/", 1));
        let found = self.0.iter().any(|grant| {
            let who = grant.user.as_ref() == Some(&user.username)
                || grant.account.is_some() && grant.account == account
                || grant
                    .group
                    .as_ref()
                    .is_some_and(|group| user.groups.contains(group));
            who && grant.verb == verb
                && grant.class.as_deref().is_none_or(|own| Some(own) == class)
                && grant
                    .namespace
                    .as_deref()
                    .is_none_or(|own| own == namespace)
        });
        if found { Grant::Granted } else { Grant::Denied }
    }
}

impl Authorizer for Rights {
    async fn may_use(&self, subject: &Subject, class: &str, namespace: &str, _: Instant) -> Grant {
        let user = self.has(&subject.user, USE, Some(class), namespace);
        match user {
            Grant::Granted => user,
            _ => self.has(&subject.as_user(namespace), USE, Some(class), namespace),
        }
    }

    async fn may_release(&self, user: &User, namespace: &str, _: Instant) -> Grant {
        self.has(user, RELEASE, None, namespace)
    }
}

fn admission(list: &List) -> Admission<Rights> {
    let mut view = View::default();
    for (name, spec) in &list.classes {
        let spec = serde_json::from_value(spec.clone()).unwrap();
        view.set_class(name, Ok(Class::new(name, &spec).unwrap()));
    }
    for (name, namespace) in &list.namespaces {
        view.set_default_class(name, namespace.default.as_deref());
    }
    Admission {
        view: SharedView::new(view),
        authorizer: Rights(list.grants.clone()),
        settings: Settings::default(),
    }
}

/// What the decision says: `allowed`, or the rule, and the text for the user.
async fn decide(admission: &Admission<Rights>, list: &List, case: &Case) -> (String, String) {
    let before = list.pod(case);
    let user = User {
        username: case.by.clone(),
        groups: case.groups.clone(),
        ..User::default()
    };
    let subject = Subject {
        user,
        service_account: pod::service_account(&before).to_owned(),
    };
    let namespace = &case.namespace;
    let decision = match &case.change {
        None => admission.admit(before, namespace, &subject).await,
        Some(change) => {
            let mut after: Value = before.clone();
            change.apply(&mut after);
            let action = match change.action {
                Action::Update => guard::Action::Update,
                Action::Debug => guard::Action::Debug,
                Action::Resize => guard::Action::Resize,
            };
            admission
                .change(action, &before, after, namespace, &subject)
                .await
        }
    };
    match decision {
        Ok(_) => ("allowed".to_owned(), String::new()),
        Err(refusal) => (refusal.rule.as_str().to_owned(), refusal.answer()),
    }
}

#[tokio::test]
async fn the_decision_agrees_with_each_case() {
    let list = list::read();
    let admission = admission(&list);
    assert!(list.cases.len() >= 150, "{} cases", list.cases.len());
    let mut wrong = Vec::new();
    // What is exempt is so by the registration, before any decision.
    let reached = |case: &&Case| !list.namespaces[&case.namespace].exempt;
    for case in list.cases.iter().filter(reached) {
        let (said, text) = decide(&admission, &list, case).await;
        if said != case.expect {
            wrong.push(format!(
                "{}: {said}, not {}: {text}",
                case.name, case.expect
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} cases:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[tokio::test]
async fn a_denial_of_the_right_names_class_subject_rule_and_remedy() {
    let list = list::read();
    let admission = admission(&list);
    let rights = ["not-authorized", "toleration", "node-name", "node-selector"];
    let denied = |case: &&Case| rights.contains(&case.expect.as_str());
    for case in list.cases.iter().filter(denied) {
        let (_, text) = decide(&admission, &list, case).await;
        let rule = format!("rule {}:", case.expect);
        for part in [&rule, "class \"case-", &case.by, "To grant it", "kubectl "] {
            assert!(
                text.contains(part),
                "{}: {part} is not in {text}",
                case.name
            );
        }
    }
}

#[tokio::test]
async fn the_remedy_of_a_ci_project_is_its_place_in_the_class() {
    let list = list::read();
    let admission = admission(&list);
    let named = |name: &str| list.cases.iter().find(|case| case.name == name).unwrap();
    let case = named("gitlab, a project that is not listed");
    let (_, text) = decide(&admission, &list, case).await;
    let command = "kubectl patch domainclasses.nvlink-domains.io case-gold --type=json -p '[{\"op\":\"add\",\"path\":\"/spec/access/ciProjects/0/projectIds/-\",\"value\":43}]'";
    assert!(text.ends_with(command), "{text}");
    let case = named("tekton, another service account");
    let (_, text) = decide(&admission, &list, case).await;
    let value = r#""value":{"namespace":"team","serviceAccount":"default"}"#;
    assert!(
        text.contains("ciProjects/0/identities/-") && text.contains(value),
        "{text}"
    );
}
