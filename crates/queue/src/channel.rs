//! IMEX channels, for classes with `environment.mnnvl: Managed`: the ComputeDomain of a gang, and the
//! claims by which its pods get their channels. Pure.
//!
//! The driver makes a ResourceClaimTemplate for each ComputeDomain, and the queue makes the claim of each
//! pod from it. A pod whose gang gets no channel has a claim without requests, because its spec was
//! final before that was known.

use k8s_openapi::api::resource::v1::{
    CELDeviceSelector, DeviceClaim, DeviceSelector, ResourceClaimSpec, ResourceClaimTemplate,
};
use kube::ResourceExt;
use nvlink_api::pod;
use nvlink_topology::{descriptor::hash, labels};
use serde_json::{Value, json};

use super::Placement;

/// The version of the driver's API.
pub const GROUP_VERSION: &str = "resource.nvidia.com/v1beta1";
/// Label of a template: the UID of its ComputeDomain. Label of a node: the UID of the ComputeDomain whose
/// channel a pod there has.
pub const OF: &str = "resource.nvidia.com/computeDomain";
/// The driver that gives channels.
const DRIVER: &str = "compute-domain.nvidia.com";
/// The DeviceClass of the channel that a node gives.
const CLASS: &str = "compute-domain-default-channel.nvidia.com";
/// The most characters of a gang's name in that of its ComputeDomain.
const SHOWN: usize = 40;

/// Returns the name of the claim by which a pod gets its channel; `None` if it gets none from the queue.
#[must_use]
pub fn named(pod: &Value) -> Option<&str> {
    let mut entries = pod::list(pod, &["spec", "resourceClaims"]);
    let ours = entries.find(|entry| pod::text(entry, &["name"]) == labels::CHANNEL)?;
    ours.get("resourceClaimName")?.as_str()
}

/// Returns the name of the ComputeDomain of a gang, of which the pods with these UIDs start together: if
/// they start anew, they are other pods, and get another one.
#[must_use]
pub fn domain_name<'a>(gang: &str, uids: impl IntoIterator<Item = &'a str>) -> String {
    let hash = of_pods(uids);
    let name = gang.rsplit([' ', '/']).next().unwrap_or_default();
    let name = name.to_ascii_lowercase();
    let name = name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-');
    let name: String = name.take(SHOWN).collect();
    match name.trim_matches('-') {
        "" => format!("{}{hash}", labels::CLAIM_PREFIX),
        name => format!("{}{name}-{hash}", labels::CLAIM_PREFIX),
    }
}

/// Reports whether a ComputeDomain is made for exactly the pods with these UIDs. If not, they join the
/// others, and it must be there.
#[must_use]
pub fn is_made_for<'a>(domain: &str, uids: impl IntoIterator<Item = &'a str>) -> bool {
    domain.ends_with(&of_pods(uids))
}

fn of_pods<'a>(uids: impl IntoIterator<Item = &'a str>) -> String {
    let mut uids: Vec<&str> = uids.into_iter().collect();
    uids.sort_unstable();
    format!("{:016x}", hash(&uids.join("/")))
}

/// Returns the ComputeDomain `name` of pods that start together. They own it, so Kubernetes deletes it
/// with the last of them.
///
/// Its `numNodes` is 0, as the driver recommends since v25.8 (`ComputeDomainSpec` of
/// <https://github.com/NVIDIA/k8s-dra-driver-gpu>): a pod starts as soon as the daemon of its node is ready.
#[must_use]
pub fn domain<'a>(name: &str, pods: impl IntoIterator<Item = &'a Value>, term: i32) -> Value {
    let pods: Vec<&Value> = pods.into_iter().collect();
    let namespace = pods
        .first()
        .map(|pod| pod::text(pod, &["metadata", "namespace"]));
    let class = pods
        .first()
        .and_then(|pod| pod::metadata(pod, "labels", labels::CLASS));
    let owners: Vec<Value> = pods.iter().map(|pod| owner(pod)).collect();
    let mut domain = json!({
        "apiVersion": GROUP_VERSION,
        "kind": "ComputeDomain",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {labels::QUEUE_TERM: term.to_string()},
            "ownerReferences": owners,
        },
        "spec": {
            "numNodes": 0,
            "channel": {"resourceClaimTemplate": {"name": name}},
        },
    });
    if let Some(class) = class {
        domain["metadata"]["labels"] = json!({labels::CLASS: class});
    }
    domain
}

fn owner(pod: &Value) -> Value {
    let text = |key: &str| pod::text(pod, &["metadata", key]);
    json!({"apiVersion": "v1", "kind": "Pod", "name": text("name"), "uid": text("uid")})
}

/// Returns the owners that the ComputeDomain `found` lacks of those that `wanted` has, with its own
/// before; `None` if it lacks none.
#[must_use]
pub fn owners(found: &Value, wanted: &Value) -> Option<Vec<Value>> {
    let of = |domain: &Value| -> Vec<Value> {
        let owners = pod::list(domain, &["metadata", "ownerReferences"]);
        owners.cloned().collect()
    };
    let mut all = of(found);
    let known = all.len();
    for owner in of(wanted) {
        if !all.iter().any(|one| one.get("uid") == owner.get("uid")) {
            all.push(owner);
        }
    }
    (all.len() > known).then_some(all)
}

/// Reports whether a ComputeDomain that exists gives the channels that `wanted` gives.
#[must_use]
pub fn is_same(found: &Value, wanted: &Value) -> bool {
    let template = |domain| {
        pod::text(
            domain,
            &["spec", "channel", "resourceClaimTemplate", "name"],
        )
    };
    let mode = pod::text(found, &["spec", "channel", "allocationMode"]);
    template(found) == template(wanted) && mode != "All"
}

/// Returns what the claims of a ComputeDomain request, by its template; `None` if the template is that of
/// another one, or requests more than a channel. The policy on the queue's claims admits no request without
/// a selector.
#[must_use]
pub fn spec(template: ResourceClaimTemplate, domain_uid: &str) -> Option<ResourceClaimSpec> {
    if template
        .labels()
        .get(OF)
        .is_none_or(|uid| uid != domain_uid)
    {
        return None;
    }
    let mut spec = template.spec.spec;
    if !is_channel(spec.devices.as_ref()?, domain_uid) {
        return None;
    }
    let requests = spec
        .devices
        .iter_mut()
        .flat_map(|it| it.requests.iter_mut());
    for exactly in requests.flatten().filter_map(|one| one.exactly.as_mut()) {
        let expression = format!("device.driver == {DRIVER:?}");
        let selector = DeviceSelector {
            cel: Some(CELDeviceSelector { expression }),
        };
        exactly.selectors.get_or_insert_default().push(selector);
    }
    Some(spec)
}

/// Reports whether this requests one channel of the ComputeDomain with this UID, and nothing else.
fn is_channel(devices: &DeviceClaim, domain_uid: &str) -> bool {
    let requests = devices.requests.as_deref().unwrap_or_default();
    let config = devices.config.as_deref().unwrap_or_default();
    let ([request], [config]) = (requests, config) else {
        return false;
    };
    let class = request.exactly.as_ref().map(|one| &*one.device_class_name);
    let opaque = config.opaque.as_ref();
    class == Some(CLASS)
        && opaque.is_some_and(|one| {
            one.driver == DRIVER && pod::text(&one.parameters.0, &["domainID"]) == domain_uid
        })
}

/// Returns the value of `NCCL_MNNVL_ENABLE` in a pod with this placement. 2 is NCCL's default: it uses
/// NVLink between pods in one fabric.
#[must_use]
pub fn variable(placement: &Placement) -> &'static str {
    match placement.compute_domain {
        Some(_) => "2",
        None => "0",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gang_that_starts_anew_has_another_domain() {
        let name = |gang: &str, uids: &[&str]| domain_name(gang, uids.iter().copied());
        let first = name("n/JobSet train of p in c", &["a", "b"]);
        assert_eq!(first, name("n/JobSet train of p in c", &["b", "a"]));
        assert_ne!(first, name("n/JobSet train of p in c", &["a", "c"]));
        assert!(is_made_for(&first, ["b", "a"]) && !is_made_for(&first, ["a"]));
        let long = name(&format!("gang {}-", "A_b".repeat(40)), &["a"]);
        assert!(
            long.len() <= 80 && long.starts_with("nvlink-domains-abab"),
            "{long}"
        );
        assert!(name("gang ---", &["a"]).len() == "nvlink-domains-".len() + 16);
    }

    #[test]
    fn a_domain_has_each_owner_once() {
        let pod = |uid: &str| json!({"metadata": {"namespace": "n", "name": uid, "uid": uid, "labels": {labels::CLASS: "c"}}});
        let (first, second) = (pod("a"), pod("b"));
        let of = |pods: [&Value; 2]| domain("d", pods, 3);
        let found = domain("d", [&first], 3);
        let all = owners(&found, &of([&first, &second])).unwrap();
        assert_eq!(
            all,
            of([&first, &second])["metadata"]["ownerReferences"]
                .as_array()
                .unwrap()
                .clone()
        );
        assert_eq!(owners(&found, &found), None);
    }

    #[test]
    fn only_its_own_template_makes_claims() {
        let template: ResourceClaimTemplate = serde_json::from_value(json!({
            "metadata": {"name": "d", "labels": {OF: "uid"}},
            "spec": {"spec": {"devices": {
                "requests": [{"name": "channel", "exactly": {"deviceClassName": CLASS}}],
                "config": [{"opaque": {"driver": DRIVER, "parameters": {"domainID": "uid"}}}],
            }}},
        }))
        .unwrap();
        assert_eq!(spec(template.clone(), "other"), None);
        let mut theirs = serde_json::to_value(&template).unwrap();
        theirs["spec"]["spec"]["devices"]["config"][0]["opaque"]["parameters"]["domainID"] =
            json!("of others");
        assert_eq!(spec(serde_json::from_value(theirs).unwrap(), "uid"), None);
        let spec = serde_json::to_value(spec(template, "uid").unwrap()).unwrap();
        let request = &spec["devices"]["requests"][0]["exactly"];
        assert_eq!(
            request["selectors"][0]["cel"]["expression"],
            json!(format!("device.driver == \"{DRIVER}\""))
        );
        assert_eq!(
            spec["devices"]["config"][0]["opaque"]["parameters"]["domainID"],
            "uid"
        );
    }
}
