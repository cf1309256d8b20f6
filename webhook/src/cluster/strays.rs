//! Finds pods on the nodes of a restricted class, or waiting for them, that were
//! not admitted for it: pods that are older than the class or its taint.
//!
//! There is no watch on pods. They are listed when the class or its nodes change,
//! and from time to time: the pods of each node, and the waiting pods in pages.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Namespace, Pod, Toleration};
use kube::{
    Api, Client, ResourceExt,
    api::ListParams,
    core::{ApiResource, NotUsed, Object, PartialObjectMeta},
};
use nvlink_topology::labels;
use serde::Deserialize;

use super::isolated::Stray;
use crate::{
    authorize::{Authorizer, ClusterAuthorizer, Grant, Subject},
    class::Class,
};

/// Waiting pods per page of the list.
const PAGE: u32 = 500;
/// The most service accounts reviewed for one class; pods of others count as strays.
const ACCOUNTS: usize = 100;

/// The fields of a pod that are needed.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
    #[serde(default)]
    service_account_name: String,
    #[serde(default)]
    tolerations: Vec<Toleration>,
}

type Found = Object<Spec, NotUsed>;

/// Searches for pods that should not be on the nodes of a class.
#[derive(Clone)]
pub(super) struct Search {
    client: Client,
    authorizer: ClusterAuthorizer,
    /// Namespaces to whose pods no rule applies.
    exempt: Vec<String>,
}

impl Search {
    pub(super) fn new(client: Client, exempt: Vec<String>) -> Self {
        Self {
            authorizer: ClusterAuthorizer::new(client.clone()),
            client,
            exempt,
        }
    }

    /// Returns pods on `nodes`, which have the taint of `class`, and waiting pods
    /// that tolerate it, if they do not belong to the class and their service
    /// account may not use it.
    pub(super) async fn strays(&self, class: &Class, nodes: &[String]) -> kube::Result<Vec<Stray>> {
        let mut exempt = self.exempt().await?;
        exempt.extend(class.daemon_namespaces.iter().cloned());
        let mut found = Vec::new();
        for node in nodes {
            let running =
                format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
            // From the API server's cache, which indexes pods by node.
            let running = ListParams::default().fields(&running).match_any();
            found.extend(self.list(running).await?);
        }
        let waiting = ListParams::default().fields("spec.nodeName=,status.phase=Pending");
        let mut waiting = self.list(waiting.limit(PAGE)).await?;
        waiting.retain(|pod| {
            pod.spec
                .tolerations
                .iter()
                .any(|one| tolerates(one, &class.name))
        });
        found.extend(waiting);
        found.retain(|pod| !belongs(pod, &class.name, &exempt));
        let mut rights = BTreeMap::new();
        let mut strays = Vec::new();
        for pod in found {
            let namespace = pod.namespace().unwrap_or_default();
            let account = match pod.spec.service_account_name.as_str() {
                "" => "default",
                name => name,
            };
            let key = (namespace.clone(), account.to_owned());
            let may = match rights.get(&key) {
                Some(&may) => may,
                None if rights.len() >= ACCOUNTS => false,
                None => {
                    let may = self.may_use(class, &namespace, account).await;
                    rights.insert(key, may);
                    may
                }
            };
            if !may {
                strays.push(Stray {
                    name: pod.name_any(),
                    namespace,
                    node: pod.spec.node_name.filter(|node| !node.is_empty()),
                });
            }
        }
        Ok(strays)
    }

    async fn may_use(&self, class: &Class, namespace: &str, account: &str) -> bool {
        let mut subject = Subject {
            service_account: account.to_owned(),
            ..Subject::default()
        };
        subject.user = subject.as_user(namespace);
        let place = class.granted_in;
        let asked = self
            .authorizer
            .may_use(&subject, &class.name, namespace, place);
        asked.await == Grant::Granted
    }

    /// Returns all exempt namespaces: those exempt by name, and those by their label.
    async fn exempt(&self) -> kube::Result<BTreeSet<String>> {
        let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(self.client.clone());
        let out = ListParams::default().labels(&format!("{}=ignore", labels::OPT_OUT));
        let out = namespaces.list_metadata(&out.match_any()).await?;
        let named = self.exempt.iter().cloned();
        Ok(named.chain(out.iter().map(ResourceExt::name_any)).collect())
    }

    async fn list(&self, mut params: ListParams) -> kube::Result<Vec<Found>> {
        let pods = ApiResource::erase::<Pod>(&());
        let pods: Api<Found> = Api::all_with(self.client.clone(), &pods);
        let mut found = Vec::new();
        loop {
            let page = pods.list(&params).await?;
            found.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(found),
            }
        }
    }
}

/// Reports whether a pod belongs to the class, or no rule applies to it.
fn belongs(pod: &Found, class: &str, exempt: &BTreeSet<String>) -> bool {
    pod.labels().get(labels::CLASS).is_some_and(|own| own == class)
        || pod.namespace().is_some_and(|own| exempt.contains(&own))
        // A static pod: the kubelet runs it from a file, whatever the API server does.
        || pod.annotations().contains_key("kubernetes.io/config.mirror")
}

/// Reports whether `toleration` tolerates the taint of `class`, whose effect is `NoSchedule`.
fn tolerates(toleration: &Toleration, class: &str) -> bool {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let exists = text(&toleration.operator) == "Exists";
    let key = text(&toleration.key);
    matches!(text(&toleration.effect).as_str(), "" | "NoSchedule")
        && (key.is_empty() && exists
            || key == labels::CLASS && (exists || text(&toleration.value) == class))
}
