//! Classes that claim pods: such a class may be skipped, but is never a reason to refuse a pod.

use std::sync::atomic::{AtomicUsize, Ordering};

use nvlink_admission::{
    admit::Admission,
    authorize::{Authorizer, Grant, Subject},
    decide::{Admitted, Refusal, Rule, Settings},
    view::{SharedView, View},
};
use nvlink_api::{class::Class, crd::access::GrantedIn};
use nvlink_topology::labels;

use crate::fixture::{pod, subject};
use serde_json::{Value, json};

/// Returns the same answer to every question, and counts the questions.
struct Always(Grant, AtomicUsize);

impl Authorizer for Always {
    async fn may_use(&self, _: &Subject, _: &str, _: &str, _: GrantedIn) -> Grant {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.clone()
    }
}

fn admit(
    classes: &[(String, Value)],
    grant: Grant,
    pod: Value,
) -> (Result<Admitted, Refusal>, usize) {
    let mut view = View::default();
    for (name, spec) in classes {
        let spec = serde_json::from_value(spec.clone()).unwrap();
        let class = Class::new(name, &spec).map_err(|error| error.to_string());
        view.set_class(name, class);
    }
    let admission = Admission {
        view: SharedView::new(view),
        authorizer: Always(grant, AtomicUsize::new(0)),
        settings: Settings::default(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let admitted = runtime.block_on(admission.admit(pod, "ci", &subject()));
    (admitted, admission.authorizer.1.into_inner())
}

/// Returns this number of restricted classes, and an open class of lower precedence.
fn crowd(restricted: usize) -> Vec<(String, Value)> {
    let closed = json!({"access": {"mode": "Restricted"}, "appliesTo": {"precedence": 1}});
    let mut classes: Vec<_> = (0..restricted)
        .map(|index| (format!("closed-{index}"), closed.clone()))
        .collect();
    classes.push(("open".to_owned(), json!({"appliesTo": {}})));
    classes
}

fn class(admitted: &Admitted) -> &str {
    &admitted.record.as_ref().unwrap().class
}

#[test]
fn an_open_class_is_reached_behind_many_restricted_ones() {
    let (admitted, questions) = admit(&crowd(40), Grant::Denied, pod(2, json!({})));
    let admitted = admitted.unwrap();
    assert_eq!((class(&admitted), questions), ("open", 16));
    let said = admitted.warnings.join("; ");
    assert!(said.contains("24 restricted classes"), "{said}");
}

#[test]
fn a_claiming_class_is_skipped_after_a_failed_review() {
    let failed = Grant::Failed("no answer".to_owned());
    let (admitted, _) = admit(&crowd(2), failed, pod(2, json!({})));
    let admitted = admitted.unwrap();
    assert_eq!(class(&admitted), "open");
    let said = admitted.warnings.join("; ");
    assert!(said.contains("closed-0, closed-1"), "{said}");
}

#[test]
fn a_claiming_class_is_skipped_if_its_scope_cannot_hold_the_pod() {
    let classes = [
        (
            "a",
            json!({"appliesTo": {"precedence": 1}, "placement": {"scope": "gpu"}}),
        ),
        ("b", json!({"appliesTo": {}})),
    ]
    .map(|(name, spec)| (name.to_owned(), spec));
    let chosen = |pod| admit(&classes, Grant::Granted, pod).0;
    assert_eq!(class(&chosen(pod(1, json!({}))).unwrap()), "a");
    assert_eq!(class(&chosen(pod(2, json!({}))).unwrap()), "b");
    let gang = pod(1, json!({labels::GANG: "g"}));
    assert_eq!(class(&chosen(gang).unwrap()), "a", "one GPU a pod");
    // The pod's own scope is an error of the pod, so it is refused.
    let own = pod(2, json!({labels::SCOPE: "gpu"}));
    assert_eq!(chosen(own).unwrap_err().rule, Rule::Scope);
}

#[test]
fn a_broken_class_claims_nothing() {
    let typo = json!({
        "appliesTo": {"precedence": 1}, "nodeSelector": {"matchLabels": {"pool ": "gpu"}}
    });
    let classes = [("typo", typo), ("open", json!({"appliesTo": {}}))]
        .map(|(name, spec)| (name.to_owned(), spec));
    let chosen = |pod| admit(&classes, Grant::Granted, pod).0;
    assert_eq!(class(&chosen(pod(2, json!({}))).unwrap()), "open");
    let refusal = chosen(pod(2, json!({labels::CLASS: "typo"}))).unwrap_err();
    assert_eq!(refusal.rule, Rule::BrokenClass);
    assert!(
        refusal.message.contains("not a valid label key"),
        "{refusal}"
    );
}

#[test]
fn a_preemptible_class_does_not_claim_a_job_that_would_lose_its_work() {
    let spot = json!({"appliesTo": {"precedence": 1}, "placement": {"preemptible": true}});
    let classes = [("spot", spot), ("standard", json!({"appliesTo": {}}))]
        .map(|(name, spec)| (name.to_owned(), spec));
    let chosen = |pod| admit(&classes, Grant::Granted, pod).0.unwrap();
    assert_eq!(class(&chosen(pod(1, json!({})))), "spot");
    let resumes = json!({labels::CHECKPOINT: "true"});
    assert_eq!(class(&chosen(pod(2, resumes))), "spot");
    for loses in [json!({}), json!({labels::CHECKPOINT: "false"})] {
        let admitted = chosen(pod(2, loses));
        assert_eq!(class(&admitted), "standard");
        let said = admitted.warnings.join("; ");
        let part = "\"spot\", which claims this pod, was skipped";
        assert!(
            said.contains(part) && said.contains(labels::CHECKPOINT),
            "{said}"
        );
    }
}
