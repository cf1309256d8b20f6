//! Finds pods on the nodes of a restricted class, or waiting for them, that were
//! not admitted for it: pods that are older than the class or its taint.
//!
//! There is no watch on pods. They are listed when the class or its nodes change,
//! and from time to time: the pods of each node, or all pods in pages where the nodes are
//! many, and the waiting pods in pages.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use k8s_openapi::api::core::v1::{Namespace, Pod, Toleration};
use kube::{
    Api, Client, ResourceExt,
    api::ListParams,
    core::{ApiResource, NotUsed, Object, PartialObjectMeta},
};
use nvlink_admission::{
    authorize::{Authorizer, Grant, Subject},
    decide::Settings,
    view::View,
};
use nvlink_api::class::Class;
use nvlink_topology::labels;
use serde::Deserialize;

use super::isolated::Stray;
use crate::{
    authorizer::ClusterAuthorizer,
    restriction::{Judge, Refused},
};

/// Pods per page of a list.
const PAGE: u32 = 500;
/// For up to so many nodes, the pods of each are listed. The API server has an index for that, but
/// with more nodes a few large lists cost less than many small ones.
pub(super) const FEW: usize = 50;
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
    settings: Settings,
}

impl Search {
    pub(super) fn new(client: Client, exempt: Vec<String>, settings: Settings) -> Self {
        Self {
            authorizer: ClusterAuthorizer::new(client.clone()),
            client,
            exempt,
            settings,
        }
    }

    /// Returns a judge of pods as if the class `name` of `view` were restricted; `None` where it has no
    /// such class.
    pub(super) fn judge(&self, view: &View, name: &str) -> Option<Judge> {
        Judge::new(view, name, &self.authorizer, &self.settings)
    }

    /// Returns what `judge` refuses.
    pub(super) async fn refused(&self, judge: &Judge) -> kube::Result<Vec<Refused>> {
        judge
            .refused(&self.client, PAGE, &self.exempt().await?)
            .await
    }

    /// Returns pods on `nodes`, which have the taint of `class`, and waiting pods
    /// that tolerate it, if they do not belong to the class and their service
    /// account may not use it.
    pub(super) async fn strays(&self, class: &Class, nodes: &[String]) -> kube::Result<Vec<Stray>> {
        let mut exempt = self.exempt().await?;
        exempt.extend(class.daemon_namespaces.iter().cloned());
        let strange = |pod: &Found| !belongs(pod, &class.name, &exempt);
        let mut found = self.on(nodes, strange).await?;
        let waiting = ListParams::default().fields("spec.nodeName=,status.phase=Pending");
        let may_go = |pod: &Found| {
            let mut tolerations = pod.spec.tolerations.iter();
            strange(pod) && tolerations.any(|one| tolerates(one, &class.name))
        };
        found.extend(self.list(waiting.limit(PAGE), may_go).await?);
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

    /// Returns the wanted pods on `nodes` that have not ended.
    async fn on(
        &self,
        nodes: &[String],
        wanted: impl Fn(&Found) -> bool,
    ) -> kube::Result<Vec<Found>> {
        const LIVE: &str = "status.phase!=Succeeded,status.phase!=Failed";
        if nodes.len() > FEW {
            let bound = ListParams::default().fields(&format!("spec.nodeName!=,{LIVE}"));
            let nodes: HashSet<&str> = nodes.iter().map(String::as_str).collect();
            let is_there = |pod: &Found| {
                let node = pod.spec.node_name.as_deref();
                node.is_some_and(|node| nodes.contains(node)) && wanted(pod)
            };
            return self.list(bound.limit(PAGE), is_there).await;
        }
        let mut found = Vec::new();
        for node in nodes {
            // From the API server's cache, which indexes pods by node.
            let running = ListParams::default().fields(&format!("spec.nodeName={node},{LIVE}"));
            found.extend(self.list(running.match_any(), &wanted).await?);
        }
        Ok(found)
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

    /// Returns the wanted pods of a list, which may have many others.
    async fn list(
        &self,
        mut params: ListParams,
        wanted: impl Fn(&Found) -> bool,
    ) -> kube::Result<Vec<Found>> {
        let pods = ApiResource::erase::<Pod>(&());
        let pods: Api<Found> = Api::all_with(self.client.clone(), &pods);
        let mut found = Vec::new();
        loop {
            let page = pods.list(&params).await?;
            found.extend(page.items.into_iter().filter(&wanted));
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// Returns a search in a cluster where each of 100 nodes has a pod, and the lists of pods that
    /// it asks for.
    fn search() -> (Search, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let lists = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (path, query) = (
                request.uri().path(),
                request.uri().query().unwrap_or_default(),
            );
            let query = percent(query);
            let answer = match path {
                "/api/v1/pods" => {
                    lists.lock().unwrap().push(query.clone());
                    pods(&query)
                }
                "/api/v1/namespaces" => json!({"metadata": {}, "items": []}),
                _ => json!({"status": {"allowed": false}, "metadata": {}, "spec": {}}),
            };
            let body = Body::from(answer.to_string().into_bytes());
            let response = Response::builder().status(StatusCode::OK);
            async move { Ok::<_, tower::BoxError>(response.body(body)?) }
        });
        (
            Search::new(
                Client::new(service, "default"),
                Vec::new(),
                Settings::default(),
            ),
            asked,
        )
    }

    /// Undoes the escapes of a query that occur here.
    fn percent(query: &str) -> String {
        let pairs = [("%3D", "="), ("%21", "!"), ("%2C", ","), ("%2F", "/")];
        pairs
            .iter()
            .fold(query.to_owned(), |text, (escape, plain)| {
                text.replace(escape, plain)
            })
    }

    fn pods(query: &str) -> Value {
        let pod = |node: usize| {
            json!({
                "metadata": {"name": format!("on-{node}"), "namespace": "team"},
                "spec": {"nodeName": format!("n{node}"), "serviceAccountName": "x"},
            })
        };
        let all = match query {
            _ if query.contains("nodeName=,") => Vec::new(),
            _ if query.contains("nodeName!=,") => (0..100).map(pod).collect(),
            _ => (0..100)
                .filter(|node| query.contains(&format!("nodeName=n{node},")))
                .map(pod)
                .collect(),
        };
        json!({"metadata": {}, "items": all})
    }

    #[tokio::test]
    async fn the_pods_of_many_nodes_are_listed_at_once() {
        let class = Class::new("gold", &serde_json::from_value(json!({})).unwrap()).unwrap();
        for (count, requests) in [(2, 3), (FEW, FEW + 1), (FEW + 1, 2), (90, 2)] {
            let nodes: Vec<String> = (0..count).map(|node| format!("n{node}")).collect();
            let (search, asked) = search();
            let strays = search.strays(&class, &nodes).await.unwrap();
            assert_eq!(strays.len(), count, "the pods of these nodes and no others");
            assert_eq!(asked.lock().unwrap().len(), requests, "{count} nodes");
        }
    }
}
