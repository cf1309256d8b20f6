//! From a pod to an answer: choose, ask who may, apply.

use serde_json::Value;

use crate::{
    authorize::{Authorizer, Grants, Subject},
    decide::{self, Admitted, Choice, Refusal, Settings},
    view::SharedView,
};

/// Restricted classes that are asked about for one pod; a class that would
/// come after so many refusals is not given.
const MAX_QUESTIONS: usize = 16;

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
        loop {
            let question = {
                let view = self.view.read();
                match decide::choose(&pod, namespace, subject, &grants, &view)? {
                    Choice::Ask(class) if grants.len() < MAX_QUESTIONS => class,
                    Choice::Ask(_) => return Ok(left(pod, Vec::new())),
                    Choice::Leave(warnings) => return Ok(left(pod, warnings)),
                    Choice::Take(chosen) => {
                        return decide::apply(pod, namespace, &chosen, &view, &self.settings);
                    }
                }
            };
            let grant = self.authorizer.may_use(subject, &question, namespace).await;
            grants.insert(question, grant);
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
