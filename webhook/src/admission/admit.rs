//! From a pod to an answer: choose, ask who may, apply.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{
    authorize::{Authorizer, Grants, Subject},
    cluster::view::SharedView,
    decide::{
        self, Action, Admitted, Choice, Refusal, Settings,
        guard::{self, Answered, Question},
    },
};

/// What all access reviews of one pod may take together: the API server waits
/// 5 seconds for the answer.
const REVIEWS: Duration = Duration::from_secs(4);

/// What decisions are made with.
#[derive(Clone, Debug, Default)]
pub struct Admission<A> {
    /// Classes, namespaces and nodes.
    pub view: SharedView,
    /// Who may use restricted classes.
    pub authorizer: A,
    /// What holds for the whole cluster.
    pub settings: Settings,
}

impl<A: Authorizer> Admission<A> {
    /// Decides on `pod`, which `subject` creates in `namespace`.
    ///
    /// # Errors
    /// When the pod is refused.
    pub async fn admit(
        &self,
        pod: Value,
        namespace: &str,
        subject: &Subject,
    ) -> Result<Admitted, Refusal> {
        let mut grants = Grants::new();
        let deadline = Instant::now() + REVIEWS;
        loop {
            let question = {
                let view = self.view.read();
                match decide::choose(&pod, namespace, subject, &grants, &view)? {
                    Choice::Ask(class) => class,
                    Choice::Leave(warnings) => return Ok(left(pod, warnings)),
                    Choice::Shield(warnings, class) => {
                        return decide::shield(pod, warnings, &class);
                    }
                    Choice::Take(chosen) => {
                        return decide::apply(pod, &chosen, &view, &self.settings);
                    }
                }
            };
            let asked = self
                .authorizer
                .may_use(subject, &question, namespace, deadline);
            let grant = asked.await;
            grants.insert(question, grant);
        }
    }

    /// Decides on the change of a pod from `old` to `pod`, which `subject`
    /// makes in `namespace`. A change is let in or not, and never changed.
    ///
    /// # Errors
    /// When the change is refused.
    pub async fn change(
        &self,
        action: Action,
        old: &Value,
        pod: Value,
        namespace: &str,
        subject: &Subject,
    ) -> Result<Admitted, Refusal> {
        let mut answered = Answered::default();
        let deadline = Instant::now() + REVIEWS;
        loop {
            let question = {
                let view = self.view.read();
                guard::update(action, old, &pod, namespace, subject, &answered, &view)?
            };
            match question {
                None => return Ok(left(pod, Vec::new())),
                Some(Question::Use(class)) => {
                    let asked = self
                        .authorizer
                        .may_use(subject, &class, namespace, deadline);
                    let grant = asked.await;
                    answered.uses.insert(class, grant);
                }
                Some(Question::Release) => {
                    let user = &subject.user;
                    let asked = self.authorizer.may_release(user, namespace, deadline);
                    answered.release = Some(asked.await);
                }
            }
        }
    }
}

fn left(pod: Value, warnings: Vec<String>) -> Admitted {
    Admitted {
        pod,
        patch: Vec::new(),
        record: None,
        warnings,
    }
}
