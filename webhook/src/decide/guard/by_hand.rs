//! Tolerations of the classes' taint that the pod's author wrote.
//!
//! A pod of a class gets its toleration from the webhook. One that somebody
//! writes by hand takes the right to the class, whether the class is
//! restricted, open or not there at all: nobody looks at a pod again when a
//! class of that name is made or restricted while the pod waits.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Case, reach};
use crate::{
    authorize::{ALL, Grant, Grants},
    decide::{
        denial,
        pod::list,
        refusal::{Refusal, Rule},
    },
};

/// Checks the tolerations that the pod has and `before` had not. A class that
/// comes back must be asked about first.
pub(super) fn check(
    case: Case<'_>,
    before: Option<&Value>,
    grants: &Grants,
) -> Result<Option<String>, Refusal> {
    let Some(class) = tolerated(case, before) else {
        return Ok(None);
    };
    match grants.get(class) {
        None => Ok(Some(class.to_owned())),
        Some(Grant::Granted) => Ok(None),
        Some(Grant::Failed(reason)) => Err(denial::unknown(class, reason)),
        Some(Grant::Denied) => {
            let message = denial::toleration(case.subject, class, case.namespace);
            Err(Refusal::new(Rule::Toleration, message).about(class))
        }
    }
}

/// The class whose taint is tolerated by hand; [`ALL`] where it is several.
/// Of its own class a pod with GPUs has the toleration from the webhook.
fn tolerated<'a>(case: Case<'a>, before: Option<&Value>) -> Option<&'a str> {
    let own = case.class().filter(|_| case.held.gpus);
    let before: BTreeSet<_> = before.into_iter().flat_map(classes).collect();
    let mut added = classes(case.pod).filter(|&class| {
        let is_own = class != ALL && own == Some(class);
        !is_own && !before.contains(class)
    });
    let first = added.next()?;
    Some(if added.all(|class| class == first) {
        first
    } else {
        ALL
    })
}

fn classes(pod: &Value) -> impl Iterator<Item = &str> {
    list(pod, &["spec", "tolerations"]).filter_map(reach::class_of)
}
