//! From a pod to a decision: choose a class, check the right to it, apply it.

use std::convert::Infallible;

use serde_json::Value;

use crate::{
    authorize::{Authorizer, Grants, Subject},
    decide::{
        self, Action, Admitted, Choice, Chosen, Facts, Refusal, Settings,
        guard::{self, Answered, Change, Question},
    },
    view::SharedView,
};

/// The inputs of decisions.
#[derive(Clone, Debug, Default)]
pub struct Admission<A> {
    /// Classes, namespaces and nodes.
    pub view: SharedView,
    /// Checks who may use restricted classes.
    pub authorizer: A,
    /// Settings of the whole cluster.
    pub settings: Settings,
}

/// What is known of a new pod besides itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origin<'a> {
    /// The id of the request; empty if there is none.
    pub request: &'a str,
    /// The number of pods of its job, by the object that they are created from.
    pub pods: Option<u32>,
}

/// Allows every decision to wait.
fn always() -> Result<(), Infallible> {
    Ok(())
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
        self.admit_part(pod, namespace, subject, None).await
    }

    /// Decides as [`Self::admit`] does on one of the `pods` of a job.
    ///
    /// # Errors
    /// When the pod is refused.
    pub async fn admit_part(
        &self,
        pod: Value,
        namespace: &str,
        subject: &Subject,
        pods: Option<u32>,
    ) -> Result<Admitted, Refusal> {
        let origin = Origin { request: "", pods };
        let Ok(decided) = self.create(pod, namespace, subject, origin, always).await;
        decided
    }

    /// Decides on the change of a pod from `old` to `pod`, which `subject`
    /// makes in `namespace`. A change is admitted or refused, but never modified.
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
        let change = Change::of(action, old, &pod, namespace, subject);
        let Ok(decided) = self.update(&change, always).await;
        decided.map(|()| left(pod, Vec::new()))
    }

    /// Decides as [`Self::admit`] does. Calls `wait` before each request to the API server; an error
    /// of `wait` ends the decision.
    pub async fn create<E>(
        &self,
        pod: Value,
        namespace: &str,
        subject: &Subject,
        origin: Origin<'_>,
        wait: impl FnMut() -> Result<(), E>,
    ) -> Result<Result<Admitted, Refusal>, E> {
        let prepared = guard::prepare(pod, subject, &self.view.read());
        let Admitted {
            pod,
            patch,
            mut warnings,
            ..
        } = match prepared {
            Ok(prepared) => prepared,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let decided = self.decide(pod, namespace, subject, origin, wait).await?;
        Ok(decided.map(|mut admitted| {
            admitted.patch.0.splice(..0, patch.0);
            warnings.append(&mut admitted.warnings);
            Admitted {
                warnings,
                ..admitted
            }
        }))
    }

    /// Decides as [`Self::create`] does on a pod that is prepared for it.
    async fn decide<E>(
        &self,
        pod: Value,
        namespace: &str,
        subject: &Subject,
        origin: Origin<'_>,
        mut wait: impl FnMut() -> Result<(), E>,
    ) -> Result<Result<Admitted, Refusal>, E> {
        let variables = self.view.read().variables();
        let facts = match Facts::of(&pod, namespace, subject, &variables) {
            Ok(facts) => facts.of_request(origin.request).of_pods(origin.pods),
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut grants = Grants::new();
        loop {
            let choice = decide::choose(&facts, &grants, &self.view.read());
            let class = match choice {
                Ok(Choice::Ask(class)) => class,
                Ok(Choice::Leave(warnings)) => return Ok(Ok(left(pod, warnings))),
                Ok(Choice::Shield(warnings, class)) => {
                    return Ok(decide::shield(pod, warnings, class.as_deref()));
                }
                Ok(Choice::Take(chosen)) => return Ok(self.apply(pod, &chosen)),
                Err(refusal) => return Ok(Err(refusal)),
            };
            wait()?;
            let place = self.view.read().granted_in(&class);
            let asked = self.authorizer.may_use(subject, &class, namespace, place);
            let grant = asked.await;
            grants.insert(class, grant);
        }
    }

    fn apply(&self, pod: Value, chosen: &Chosen) -> Result<Admitted, Refusal> {
        let mut admitted = decide::apply(pod, chosen, &self.settings)?;
        let prospects = decide::prospects(chosen, &self.view.read());
        admitted.warnings.extend(prospects);
        Ok(admitted)
    }

    /// Decides as [`Self::change`] does, with `wait` as in [`Self::create`].
    pub async fn update<E>(
        &self,
        change: &Change<'_>,
        mut wait: impl FnMut() -> Result<(), E>,
    ) -> Result<Result<(), Refusal>, E> {
        let Change {
            namespace, subject, ..
        } = change;
        let mut answered = Answered::default();
        loop {
            let question = guard::update(change, &answered, &self.view.read());
            match question {
                Ok(None) => return Ok(Ok(())),
                Err(refusal) => return Ok(Err(refusal)),
                Ok(Some(Question::Use(class))) => {
                    wait()?;
                    let place = self.view.read().granted_in(&class);
                    let asked = self.authorizer.may_use(subject, &class, namespace, place);
                    let grant = asked.await;
                    answered.uses.insert(class, grant);
                }
                Ok(Some(Question::Release)) => {
                    wait()?;
                    let asked = self.authorizer.may_release(&subject.user, namespace);
                    answered.release = Some(asked.await);
                }
            }
        }
    }
}

fn left(pod: Value, warnings: Vec<String>) -> Admitted {
    Admitted {
        pod,
        warnings,
        ..Admitted::default()
    }
}
