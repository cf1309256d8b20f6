//! Runs the list of cases, `cases/access.json`, against the pure decision.

#[path = "../cases/list.rs"]
mod list;

use std::collections::BTreeSet;

use list::{Action, Case, List};
use nvlink_admission::{
    admit::Admission,
    authorize::{Authorizer, Grant, RELEASE, Subject, USE, User},
    decide::{self, Refusal, Settings},
    view::{SharedView, View},
};
use nvlink_api::{class::Class, crd::access::GrantedIn, pod};
use serde_json::{Value, json};

/// The rights of the list.
struct Rights(Vec<list::Grant>);

impl Rights {
    /// Reports whether `user` has the right; without a `namespace`, in the whole cluster.
    fn has(&self, user: &User, verb: &str, class: Option<&str>, namespace: Option<&str>) -> Grant {
        let account = user.username.strip_prefix("system:serviceaccount:");
        let account = account.map(|name| name.replacen(':', "/", 1));
        let found = self.0.iter().any(|grant| {
            let who = grant.user.as_ref() == Some(&user.username)
                || grant.account.is_some() && grant.account == account
                || grant
                    .group
                    .as_ref()
                    .is_some_and(|group| user.groups.contains(group));
            who && (grant.verb == verb || grant.verb == "*")
                && grant.class.as_deref().is_none_or(|own| Some(own) == class)
                && grant
                    .namespace
                    .as_deref()
                    .is_none_or(|own| Some(own) == namespace)
        });
        if found { Grant::Granted } else { Grant::Denied }
    }
}

impl Authorizer for Rights {
    async fn may_use(
        &self,
        subject: &Subject,
        class: &str,
        namespace: &str,
        granted_in: GrantedIn,
    ) -> Grant {
        let place = Some(namespace).filter(|_| granted_in == GrantedIn::Namespace);
        let user = self.has(&subject.user, USE, Some(class), place);
        match user {
            Grant::Granted => user,
            _ => self.has(&subject.as_user(namespace), USE, Some(class), place),
        }
    }

    async fn may_release(&self, user: &User, namespace: &str) -> Grant {
        self.has(user, RELEASE, None, Some(namespace))
    }
}

/// Cannot check anybody's rights.
struct Unknown;

impl Authorizer for Unknown {
    async fn may_use(&self, _: &Subject, _: &str, _: &str, _: GrantedIn) -> Grant {
        Grant::Failed("nobody answers".to_owned())
    }

    async fn may_release(&self, _: &User, _: &str) -> Grant {
        Grant::Failed("nobody answers".to_owned())
    }
}

fn admission<A>(list: &List, authorizer: A) -> Admission<A> {
    let mut view = View::default();
    for (name, spec) in &list.classes {
        let spec = serde_json::from_value(spec.clone()).unwrap();
        view.set_class(name, Ok(Class::new(name, &spec).unwrap()));
    }
    for (name, labels) in &list.nodes {
        view.set_node(name, labels.clone());
    }
    for (name, namespace) in &list.namespaces {
        view.set_default_class(name, namespace.default.as_deref());
    }
    Admission {
        view: SharedView::new(view),
        authorizer,
        settings: Settings::default(),
    }
}

fn rights(list: &List) -> Rights {
    Rights(list.grants.clone())
}

/// Returns the admitted pod, or the refusal.
async fn decide<A: Authorizer>(
    admission: &Admission<A>,
    list: &List,
    case: &Case,
) -> Result<Value, Refusal> {
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
                Action::Update | Action::Status => decide::Action::Update,
                Action::Debug => decide::Action::Debug,
                Action::Resize => decide::Action::Resize,
            };
            admission
                .change(action, &before, after, namespace, &subject)
                .await
        }
    };
    decision.map(|admitted| admitted.pod)
}

/// Returns `allowed`, or the rule of the refusal.
fn word(decision: &Result<Value, Refusal>) -> &str {
    match decision {
        Ok(_) => "allowed",
        Err(refusal) => refusal.rule.into_str(),
    }
}

/// Returns the cases outside exempt namespaces, which the registration excludes before any
/// decision.
fn decided(list: &List) -> impl Iterator<Item = &Case> {
    let exempt = |case: &&Case| list.namespaces[&case.namespace].exempt;
    list.cases.iter().filter(move |case| !exempt(case))
}

#[tokio::test]
async fn the_decision_agrees_with_each_case() {
    let list = list::read();
    let admission = admission(&list, rights(&list));
    let mut wrong = Vec::new();
    for case in decided(&list) {
        let said = decide(&admission, &list, case).await;
        if word(&said) != case.expect {
            wrong.push(format!("{}: not {}: {said:?}", case.name, case.expect));
        } else if let Ok(pod) = said
            && !case.is_as_wanted(&list.pod(case), &pod)
        {
            wrong.push(format!("{}: not as wanted: {pod}", case.name));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} cases:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn each_way_around_has_a_case_that_is_refused() {
    let list = list::read();
    assert!(list.cases.len() >= 150, "{} cases", list.cases.len());
    let names: BTreeSet<_> = list.cases.iter().map(|case| &case.name).collect();
    assert_eq!(names.len(), list.cases.len(), "a name exists twice");
    let refused = |way: &str| {
        let mut cases = list.cases.iter();
        cases.any(|case| case.row.as_deref() == Some(way) && case.expect != "allowed")
    };
    let open: Vec<_> = list::WAYS.iter().filter(|way| !refused(way)).collect();
    assert!(open.is_empty(), "no case of {open:?} is refused");
    let known = [&list::WAYS[..], &list::PASSES].concat();
    let rows: BTreeSet<_> = list
        .cases
        .iter()
        .filter_map(|case| case.row.as_deref())
        .collect();
    let known: BTreeSet<_> = known.into_iter().collect();
    assert_eq!(rows, known);
}

#[tokio::test]
async fn a_pod_that_needs_a_right_is_refused_if_the_right_cannot_be_checked() {
    let list = list::read();
    let known = admission(&list, rights(&list));
    let unknown = admission(&list, Unknown);
    let mut failed = 0;
    for case in decided(&list) {
        let (known, said) = (
            decide(&known, &list, case).await,
            decide(&unknown, &list, case).await,
        );
        if word(&said) != "review-failed" {
            // No right was needed: the answer is exactly the same.
            assert_eq!(said, known, "{}", case.name);
            continue;
        }
        failed += 1;
        let text = said.unwrap_err().answer();
        for part in ["rule review-failed:", "nobody answers", "try again"] {
            assert!(
                text.contains(part),
                "{}: {part} is not in {text}",
                case.name
            );
        }
    }
    let needed = |case: &&Case| case.expect == "not-authorized";
    assert!(
        failed >= list.cases.iter().filter(needed).count(),
        "{failed}"
    );
}

#[tokio::test]
async fn a_refusal_for_a_missing_right_names_class_subject_rule_and_remedy() {
    let list = list::read();
    let admission = admission(&list, rights(&list));
    let rights = ["not-authorized", "toleration", "node-name", "node-selector"];
    let denied = |case: &&Case| rights.contains(&case.expect.as_str());
    for case in list.cases.iter().filter(denied) {
        let text = text(&admission, &list, case).await;
        let rule = format!("rule {}:", case.expect);
        let account = list.pod(case);
        let account = format!("\"{}/{}\"", case.namespace, pod::service_account(&account));
        let by = format!("user {:?}", case.by);
        let several = text.contains("several classes");
        let what = ["class \"case-", "several classes"][usize::from(several)];
        // A user who names a node debugs it, and a grant would apply to all pods.
        let debugs = text.contains("kubectl debug node/");
        // Whom the runner works for is not known, so nobody can be granted anything.
        let unknown = text.contains("from version 17.9 on");
        let (remedy, command) = match (debugs, unknown) {
            (true, _) => ("-n kube-system", "kubectl "),
            (false, true) => ("upgrade the runner", "GitLab Runner writes"),
            (false, false) => ("To grant this right", "kubectl "),
        };
        for part in [&rule, what, &by, &account, remedy, command] {
            assert!(
                text.contains(part),
                "{}: {part} is not in {text}",
                case.name
            );
        }
    }
}

/// Returns the text of a refusal.
async fn text(admission: &Admission<Rights>, list: &List, case: &Case) -> String {
    let refused = decide(admission, list, case).await;
    refused.unwrap_err().answer()
}

#[tokio::test]
async fn a_refusal_of_a_legitimate_pod_contains_the_remedy() {
    let list = list::read();
    let admission = admission(&list, rights(&list));
    let mut told = 0;
    for case in decided(&list).filter(|case| case.expect != "allowed") {
        let text = match case.told.as_slice() {
            [] => continue,
            _ => text(&admission, &list, case).await,
        };
        for part in &case.told {
            assert!(
                text.contains(part),
                "{}: {part} is not in {text}",
                case.name
            );
            told += 1;
        }
    }
    assert!(told >= 40, "{told}");
}

#[tokio::test]
async fn the_remedy_for_a_ci_project_lists_it_in_the_class() {
    let list = list::read();
    let admission = admission(&list, rights(&list));
    let named = |name: &str| list.cases.iter().find(|case| case.name == name).unwrap();
    let case = named("gitlab, a project that is not listed");
    let said = text(&admission, &list, case).await;
    let command = "kubectl patch domainclasses.nvlink-domains.io case-gold --type=json -p '[{\"op\":\"add\",\"path\":\"/spec/access/ciProjects/0/projectIds/-\",\"value\":43}]'";
    assert!(said.ends_with(command), "{said}");
    let case = named("tekton, another service account");
    let said = text(&admission, &list, case).await;
    let value = r#""value":{"namespace":"team","serviceAccount":"default"}"#;
    assert!(
        said.contains("ciProjects/0/identities/-") && said.contains(value),
        "{said}"
    );
}

/// The policies do not know nodes: they believe what keeps the pod off.
#[tokio::test]
async fn a_daemon_on_another_node_is_kept_off_the_nodes_of_restricted_classes() {
    let list = list::read();
    let admission = admission(&list, rights(&list));
    let named = |name: &str| list.cases.iter().find(|case| case.name == name).unwrap();
    let terms = |pod: &Value| {
        let required = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        required["nodeSelectorTerms"].clone()
    };
    let not = |pool| json!({"key": "pool", "operator": "NotIn", "values": [pool]});
    let others = ["gold", "high", "line", "twin"].map(not);
    let field = json!([{"key": "metadata.name", "operator": "In", "values": ["open-node"]}]);
    for (name, expected) in [
        (
            "the pod of a DaemonSet on a node outside all restricted classes",
            json!([{"matchFields": field, "matchExpressions": others}]),
        ),
        (
            "a manager of disks on a node outside all restricted classes, by name",
            json!([{"matchExpressions": others}]),
        ),
    ] {
        let case = named(name);
        let pod = decide(&admission, &list, case).await.unwrap();
        assert_eq!(terms(&pod), expected, "{name}");
        let subject = Subject::default();
        let again = admission.admit(pod, "team", &subject).await.unwrap();
        assert!(again.patch.is_empty(), "{name}: {:?}", again.patch);
    }
}

#[tokio::test]
async fn a_toleration_by_hand_needs_the_right_even_without_any_class() {
    let mut list = list::read();
    list.classes.clear();
    let admission = admission(&list, rights(&list));
    let decide = async |by: &str, toleration: Value| {
        let mut pod = list.pods["gpu"].clone();
        pod["spec"]["tolerations"] = json!([toleration]);
        let user = User {
            username: by.to_owned(),
            ..User::default()
        };
        let subject = Subject {
            user,
            service_account: "default".to_owned(),
        };
        admission.admit(pod, "team", &subject).await
    };
    let any = json!({"key": "nvlink-domains.io/class", "operator": "Exists"});
    let refused = decide("alice", any.clone()).await.unwrap_err().answer();
    for part in [
        "rule toleration:",
        "the taints of several classes",
        "all domainclasses.nvlink-domains.io in namespace team",
        "--role=use-all-classes",
    ] {
        assert!(refused.contains(part), "{part} is not in {refused}");
    }
    // The right to one class does not include classes that are created later.
    decide("ursula", any.clone()).await.unwrap_err();
    decide("chief", any).await.unwrap();
    let later = json!({"key": "nvlink-domains.io/class", "operator": "Gt", "value": "1"});
    decide("alice", later).await.unwrap_err();
    // Daemons tolerate everything, and without a restricted class no taint protects anything.
    decide("alice", json!({"operator": "Exists"}))
        .await
        .unwrap();
}
