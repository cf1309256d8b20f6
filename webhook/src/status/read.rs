//! Reads the objects of the cluster with the rights of whoever asks.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, ListParams, PostParams},
    core::ApiResource,
    discovery,
};
use nvlink_runtime::{client, topology};
use nvlink_topology::{GROUP, labels};
use serde_json::Value;

use super::objects::{Kind, Objects, key};
use crate::{
    authorize::{RESOURCE, USE},
    crd::DomainClass,
    decide::pod,
    queue::{self, Object},
};

/// The most objects of one answer of the API server.
const PAGE: u32 = 500;
/// The most restricted classes whose right is asked for.
const CLASSES: usize = 64;

/// Returns where objects of a kind are read.
pub(super) fn api(
    client: &Client,
    resource: &ApiResource,
    namespace: Option<&str>,
) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

/// The kinds that are read.
pub(super) fn classes() -> ApiResource {
    ApiResource::erase::<DomainClass>(&())
}

pub(super) fn nodes() -> ApiResource {
    ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&())
}

pub(super) fn pods() -> ApiResource {
    ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&())
}

/// Reads what may be read. `namespace` is that of the pods that are asked for.
///
/// # Errors
/// When the API server does not answer.
pub(super) async fn objects(client: &Client, namespace: &str) -> Result<Objects, kube::Error> {
    let (classes, topologies, nodes, all) = futures::try_join!(
        list(client, classes(), None, "domainclasses"),
        list(client, topology::resource(), None, "nodetopologies"),
        list(client, nodes(), None, "nodes"),
        list(client, pods(), None, "pods in all namespaces"),
    )?;
    let (pods, only) = match all.hidden {
        None => (all, None),
        Some(_) => {
            let what = format!("pods in namespace {namespace}");
            let pods = list(client, pods(), Some(namespace), &what).await?;
            (pods, Some(namespace.to_owned()))
        }
    };
    let mut objects = Objects {
        classes,
        topologies,
        nodes,
        namespace: only.filter(|_| pods.hidden.is_none()),
        pods,
        ..Objects::default()
    };
    owners(client, &mut objects).await;
    Ok(objects)
}

/// Adds one pod that may be read although pods may not be listed.
///
/// # Errors
/// When the API server does not answer.
pub(super) async fn pod(
    client: &Client,
    namespace: &str,
    name: &str,
    objects: &mut Objects,
) -> Result<(), kube::Error> {
    if objects.pods.hidden.is_none() {
        return Ok(());
    }
    match api(client, &pods(), Some(namespace)).get_opt(name).await {
        Ok(found) => {
            objects.pods = Kind::of(found.and_then(slim));
            objects.namespace = Some(namespace.to_owned());
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 403 => {
            objects.pods.hidden = Some(format!("you may not read pod {name}: {}", status.message));
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Lists objects, page by page.
async fn list(
    client: &Client,
    resource: ApiResource,
    namespace: Option<&str>,
    what: &str,
) -> Result<Kind, kube::Error> {
    let api = api(client, &resource, namespace);
    let mut found = BTreeMap::new();
    let mut params = ListParams::default().limit(PAGE);
    let mut again = true;
    loop {
        match api.list(&params).await {
            Ok(page) => {
                let kept = page.items.into_iter().filter_map(slim);
                found.extend(kept.map(|object| (key(&object), object)));
                match page.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => params = params.continue_token(&token),
                    None => break,
                }
            }
            // The list took so long that the API server forgot its beginning.
            Err(kube::Error::Api(status)) if status.code == 410 && again => {
                again = false;
                found.clear();
                params = ListParams::default();
            }
            Err(kube::Error::Api(status)) if status.code == 403 => {
                return Ok(Kind::hidden(format!("you may not list {what}")));
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                return Ok(Kind::hidden(format!(
                    "the cluster has no {what}: nvlink-domains is not installed"
                )));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Kind {
        objects: found,
        hidden: None,
    })
}

/// Returns an object without what nobody needs; `None` for a pod that requests no device and has
/// no class.
pub(super) fn slim(mut object: DynamicObject) -> Option<Value> {
    object.metadata.managed_fields = None;
    let classless = object.labels().get(labels::CLASS).is_none();
    let object = serde_json::to_value(object).ok()?;
    let devices = |one: &pod::Container<'_>| one.resources().any(|name| name.contains('/'));
    let is_pod = pod::at(&object, &["spec", "containers"]).is_some();
    let none = is_pod && classless && !pod::containers(&object).iter().any(devices);
    (!none).then_some(object)
}

/// Reads the objects that say how many pods a job has. Those that may not be read are left out:
/// the report says which pods miss theirs.
pub(super) async fn owners(client: &Client, objects: &mut Objects) {
    let waiting = objects.pods.objects.iter();
    let waiting = waiting.filter(|(_, pod)| crate::decide::gate::is_queued(pod));
    let wanted: BTreeSet<(String, Object)> = waiting
        .filter_map(|((namespace, _), pod)| Some((namespace.clone(), queue::object(pod)?)))
        .filter(|place| !objects.owners.contains_key(place))
        .collect();
    let mut resources: BTreeMap<(&str, &str), Option<ApiResource>> = BTreeMap::new();
    for (namespace, object) in wanted {
        let kind = (object.group, object.kind);
        if !resources.contains_key(&kind) {
            let group = discovery::group(client, object.group).await;
            let found = group
                .ok()
                .and_then(|group| group.recommended_kind(object.kind));
            resources.insert(kind, found.map(|(resource, _)| resource));
        }
        let Some(Some(resource)) = resources.get(&kind) else {
            continue;
        };
        let read = api(client, resource, Some(&namespace))
            .get_opt(&object.name)
            .await;
        if let Some(found) = read.ok().flatten()
            && let Ok(found) = serde_json::to_value(found)
        {
            objects.owners.insert((namespace, object), found);
        }
    }
}

/// Asks which restricted classes whoever asks may use in `namespace`.
pub(super) async fn rights(client: &Client, namespace: &str, objects: &mut Objects) {
    let restricted = objects.classes.objects.iter().filter(|(_, class)| {
        let mode = pod::at(class, &["spec", "access", "mode"]);
        mode.and_then(Value::as_str) == Some("Restricted")
    });
    let asked = restricted
        .take(CLASSES)
        .map(|((_, name), class)| async move {
            let everywhere = pod::at(class, &["spec", "access", "grantedIn"]);
            let everywhere = everywhere.and_then(Value::as_str) == Some("Cluster");
            let place = Some(namespace).filter(|_| !everywhere);
            may_use(client, place, name).await.then(|| name.clone())
        });
    let answers = futures::future::join_all(asked).await;
    objects.usable = answers.into_iter().flatten().collect();
}

async fn may_use(client: &Client, namespace: Option<&str>, class: &str) -> bool {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(GROUP.to_owned()),
                resource: Some(RESOURCE.to_owned()),
                name: Some(class.to_owned()),
                namespace: namespace.map(str::to_owned),
                verb: Some(USE.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await;
    answer.is_ok_and(|answer| answer.status.is_some_and(|status| status.allowed))
}

/// Returns what to say when the API server does not answer.
pub(super) fn unanswered(error: &kube::Error) -> anyhow::Error {
    anyhow::anyhow!("cannot read the cluster: {}", client::reason(error))
}
