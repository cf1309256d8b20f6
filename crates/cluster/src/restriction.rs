//! The condition `Restrictable` of an open class that asks for it by an annotation: which of the
//! pods that exist would be refused if the class were restricted, and what admits each.
//!
//! The decision is made twice, with the class open and with it restricted. Of the pods of one
//! controller, one is judged.

use std::collections::{BTreeSet, HashSet};

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, ListParams},
    core::ApiResource,
};
use nvlink_admission::{
    admit::Admission,
    authorize::Subject,
    decide::Settings,
    view::{SharedView, View},
};
use nvlink_api::{
    class::condition,
    crd::{DomainClass, access::AccessMode, condition::Condition},
};
use nvlink_topology::labels;
use serde_json::Value;

use crate::authorizer::ClusterAuthorizer;

/// The type of the condition.
pub(super) const RESTRICTABLE: &str = "Restrictable";

/// The most objects that a message names.
const NAMED: usize = 5;

/// Reports whether the condition is wanted: the class is open and has the annotation.
pub(super) fn is_wanted(class: &DomainClass) -> bool {
    class.spec.access.mode != AccessMode::Restricted
        && class
            .annotations()
            .get(labels::PREVIEW_RESTRICTED)
            .is_some_and(|value| value == "true")
}

/// An object whose pods would be refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Refused {
    /// Its kind, namespace and name, such as `DaemonSet monitoring/agent`.
    pub(super) what: String,
    /// The answer to its pods.
    pub(super) answer: String,
}

/// Judges pods as if a class were restricted.
pub(super) struct Judge {
    open: Admission<ClusterAuthorizer>,
    restricted: Admission<ClusterAuthorizer>,
}

impl Judge {
    /// Returns a judge for the class `name` of `view`; `None` where the view has no such class.
    pub(super) fn new(
        view: &View,
        name: &str,
        authorizer: &ClusterAuthorizer,
        settings: &Settings,
    ) -> Option<Self> {
        let admission = |restricted| {
            Some(Admission {
                view: SharedView::new(view.with_restriction(name, restricted)?),
                authorizer: authorizer.clone(),
                settings: settings.clone(),
            })
        };
        Some(Self {
            open: admission(false)?,
            restricted: admission(true)?,
        })
    }

    /// Returns what would be refused, of all pods outside the namespaces `exempt` that have not ended.
    pub(super) async fn refused(
        &self,
        client: &Client,
        page: u32,
        exempt: &BTreeSet<String>,
    ) -> kube::Result<Vec<Refused>> {
        let resource = ApiResource::erase::<Pod>(&());
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let mut params = ListParams::default()
            .fields("status.phase!=Succeeded,status.phase!=Failed")
            .limit(page);
        let (mut seen, mut refused) = (HashSet::new(), Vec::new());
        loop {
            let pods = api.list(&params).await?;
            for pod in pods.items {
                let controller = pod
                    .owner_references()
                    .iter()
                    .find(|one| one.controller == Some(true));
                let uid = controller.map_or_else(|| pod.uid(), |owner| Some(owner.uid.clone()));
                let exempt = pod.namespace().is_some_and(|own| exempt.contains(&own));
                if exempt || !seen.insert(uid) {
                    continue;
                }
                refused.extend(self.judge(pod).await);
            }
            match pods.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => break,
            }
        }
        refused.sort();
        Ok(refused)
    }

    async fn judge(&self, pod: DynamicObject) -> Option<Refused> {
        let namespace = pod.namespace().unwrap_or_default();
        let owner = pod
            .owner_references()
            .iter()
            .find(|one| one.controller == Some(true));
        let (kind, name) = match owner {
            Some(owner) => (owner.kind.clone(), owner.name.clone()),
            None => ("Pod".to_owned(), pod.name_any()),
        };
        let mut pod = serde_json::to_value(pod).ok()?;
        // The scheduler wrote it, in nearly all pods.
        let spec = pod.get_mut("spec").and_then(Value::as_object_mut)?;
        spec.remove("nodeName");
        let account = spec.get("serviceAccountName").and_then(Value::as_str);
        let mut subject = Subject {
            service_account: account.unwrap_or("default").to_owned(),
            ..Subject::default()
        };
        subject.user = subject.as_user(&namespace);
        let refusal = self
            .restricted
            .admit(pod.clone(), &namespace, &subject)
            .await
            .err()?;
        self.open.admit(pod, &namespace, &subject).await.ok()?;
        Some(Refused {
            what: format!("{kind} {namespace}/{name}"),
            answer: refusal.answer(),
        })
    }
}

/// Returns the condition `Restrictable` of `class` at `now`.
pub(super) fn restrictable(
    class: &DomainClass,
    refused: &Result<Vec<Refused>, String>,
    now: Time,
) -> Condition {
    let name = class.name_any();
    let (status, reason, message) = match refused {
        Err(reason) => ("Unknown", "PodsUnknown", format!("cannot list the pods: {reason}")),
        Ok(refused) if refused.is_empty() => (
            "True",
            "NoneRefused",
            "if the class were restricted, none of the pods that exist now would be refused when it is made again".to_owned(),
        ),
        Ok(refused) => {
            let shown = refused.iter().take(NAMED);
            let shown: Vec<_> = shown.map(|one| format!("{}: {}", one.what, one.answer)).collect();
            let more = match refused.len().saturating_sub(NAMED) {
                0 => String::new(),
                more => format!("; and {more} more: kubectl nvlink preview --restrict {name} lists all"),
            };
            let message = format!(
                "if the class were restricted, the pods of {} object(s) would be refused when they are made again, judged by their service accounts: {}{more}",
                refused.len(),
                shown.join("; "),
            );
            ("False", "PodsRefused", message)
        }
    };
    condition(class, (RESTRICTABLE, status, reason), message, now)
}
