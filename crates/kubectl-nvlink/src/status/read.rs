//! Reads the objects of the cluster with the rights of whoever asks.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, stream};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, PostParams},
    core::ApiResource,
};
use nvlink_admission::{
    authorize::{RESOURCE, USE},
    decide::gate,
};
use nvlink_api::{crd::DomainClass, node_topology, pod};
use nvlink_cluster::gpus::Slice;
use nvlink_queue::{
    Life, Limits,
    feed::{
        Place,
        entry::concerns,
        load::{self, Load},
    },
    owners::Owners,
};
use nvlink_runtime::client;
use nvlink_topology::{GROUP, labels};
use serde_json::Value;

use super::{
    objects::{Kind, Objects, key},
    plan::parse,
};

/// The most objects of one answer of the API server.
const PAGE: u32 = 500;
/// The most objects that are read at a time.
const CALLS: usize = 16;
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
    let every = |resource, what| list(client, resource, None, what);
    let (classes, topologies, nodes, slices, claims, device_classes, all) = futures::try_join!(
        every(classes(), "domainclasses"),
        every(node_topology::resource(), "nodetopologies"),
        every(nodes(), "nodes"),
        every(ApiResource::erase::<ResourceSlice>(&()), "resourceslices"),
        every(
            ApiResource::erase::<ResourceClaim>(&()),
            "resourceclaims in all namespaces"
        ),
        every(ApiResource::erase::<DeviceClass>(&()), "deviceclasses"),
        every(pods(), "pods in all namespaces"),
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
        nodes: match unseen(&classes, &slices, [&claims, &device_classes]) {
            Some(why) => Kind::hidden(why),
            None => nodes,
        },
        classes,
        topologies,
        slices,
        claims,
        device_classes,
        leases: leases(client).await,
        namespace: only.filter(|_| pods.hidden.is_none()),
        pods,
        ..Objects::default()
    };
    owners(client, &mut objects).await;
    Ok(objects)
}

/// Reads the Leases of the leader. Few may, and nothing depends on it, so an error is no error.
pub(super) async fn leases(client: &Client) -> Kind {
    let all = api(client, &ApiResource::erase::<Lease>(&()), None);
    let named = ListParams::default().fields(&format!("metadata.name={}", nvlink_api::LEASE));
    let found = all.list(&named).await.map(|page| page.items);
    Kind::of(found.unwrap_or_default().into_iter().filter_map(slim))
}

/// Returns why nobody can say which GPUs are free, if a class gives GPUs by claims or a driver lists
/// GPUs.
fn unseen(classes: &Kind, slices: &Kind, others: [&Kind; 2]) -> Option<String> {
    let mapping = |class: &Value| pod::at(class, &["spec", "devices", "mapping"]).cloned();
    let mut classes = classes.objects.values();
    let mut listed = slices
        .objects
        .values()
        .filter_map(|one| parse(one.get("spec")));
    let used = classes.any(|class| mapping(class) == Some("Claim".into()))
        || listed.any(|spec| matches!(Slice::of(&spec), Some(Slice::Gpus(_))));
    let mut dra = others.into_iter().chain([slices]);
    let hidden = dra.find_map(|kind| kind.hidden.clone());
    hidden.filter(|_| used)
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

/// Returns an object without what nobody needs; `None` for a pod without devices that is on no node.
pub(super) fn slim(mut object: DynamicObject) -> Option<Value> {
    object.metadata.managed_fields = None;
    let object = serde_json::to_value(object).ok()?;
    let is_pod = pod::at(&object, &["spec", "containers"]).is_some();
    match is_pod && !concerns(&object) {
        true => Load::of(&object).map(|_| load::slim(&object)),
        false => Some(object),
    }
}

/// Reads the objects that say how many pods the waiting jobs have, and when a Job that runs ends,
/// as far as they may be read.
pub(super) async fn owners(client: &Client, objects: &mut Objects) {
    // Without all pods, nobody's start is computed.
    let all = objects.namespace.is_none();
    let runs = |pod: &Value| {
        let classed = pod::metadata(pod, "labels", labels::CLASS).is_some();
        let job = nvlink_queue::object(pod).is_some_and(|object| object.is_job());
        all && classed && job && Life::of(pod).is_live() && Limits::of(pod, None).is_unknown()
    };
    let pods = objects.pods.objects.iter();
    let wanted: BTreeSet<Place> = pods
        .filter(|(_, pod)| gate::is_queued(pod) || runs(pod))
        .filter_map(|((namespace, _), pod)| Some((namespace.clone(), nvlink_queue::object(pod)?)))
        .filter(|place| !objects.owners.contains_key(place))
        .collect();
    let owners = Owners::new(client);
    let read = wanted.into_iter().map(|place| owners.clone().get(place));
    let read = stream::iter(read).buffer_unordered(CALLS);
    let found = read.filter_map(|(place, object)| async move { Some((place, object?)) });
    objects.owners.extend(found.collect::<Vec<_>>().await);
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
