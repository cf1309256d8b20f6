//! Tolerations of the classes' taint that the pod's author wrote.
//!
//! A pod of a class gets its toleration from the webhook. A toleration that the author writes
//! requires the right to the class, whether the class is restricted, open or missing: nothing
//! checks a waiting pod again when a class of that name is created or restricted.

use std::collections::BTreeSet;

use nvlink_api::pod::list;
use serde_json::Value;

use super::{Case, reach};
use crate::{
    authorize::{ALL, Grant, Grants},
    decide::{
        denial,
        refusal::{Refusal, Rule},
    },
};

/// Checks the tolerations that the pod has and `before` did not have. If a class is returned, the
/// right to it must be checked first.
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

/// Returns the class whose taint the author tolerates; [`ALL`] for several classes.
/// A pod with GPUs gets the toleration of its own class from the webhook, so that one is skipped.
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
