//! The GPUs of a pod as requests of a ResourceClaim, for classes with the mapping `Claim`.
//!
//! The claim does not exist yet: the queue creates it when it has chosen the GPUs, with one request
//! for each rank. A pod's spec is final, so its containers name their ranks now.

use json_patch::jsonptr::Pointer;
use nvlink_api::{
    class::Class,
    crd::{domain_class::Mapping, environment::Mnnvl},
    patch::Editor,
    pod::{self, Container, Place, Role, list},
};
use nvlink_topology::{descriptor::hash, labels};
use serde_json::{Value, json};

use super::{Chosen, Gating, Refusal, Rule};

/// The most requests of one claim, and the most devices (`DeviceRequestsMaxSize` and
/// `AllocationResultsMaxSize` of `resource.k8s.io/v1`).
const MOST: u32 = 32;
/// The most characters of a pod's name in that of its claim.
const SHOWN: usize = 40;
/// The entries of a pod's claims that are the queue's.
const OURS: [&str; 2] = [labels::CLAIM, labels::CHANNEL];
/// What the name of the claim for an IMEX channel has after that of the claim for GPUs.
const CHANNEL_SUFFIX: &str = "-channel";

/// Reports whether the pod names a claim of the queue.
pub(crate) fn is_named(pod: &Value) -> bool {
    entries(pod).next().is_some()
        || pod::containers(pod)
            .iter()
            .any(|one| one.claimed().next().is_some() || one.nics().next().is_some())
}

/// Reports whether the queue makes claims of this entry for pods of `class`.
pub(crate) fn gives(class: &Class, entry: &str) -> bool {
    match entry {
        labels::CLAIM => class.mapping == Mapping::Claim,
        labels::CHANNEL => class.environment.mnnvl == Some(Mnnvl::Managed),
        _ => false,
    }
}

/// Reports whether the pod names a claim of the queue in another entry than those that it gets in
/// `class`: it would share the GPUs, or the channel, of another pod.
pub(crate) fn is_shared(pod: &Value, class: &Class) -> bool {
    let mut known = Vec::new();
    entries(pod).any(|entry| {
        let name = pod::text(entry, &["name"]);
        let again = known.contains(&name);
        known.push(name);
        again || !gives(class, name)
    })
}

/// Returns the entries of the pod's claims that are the queue's, by either name.
fn entries(pod: &Value) -> impl Iterator<Item = &Value> {
    list(pod, &["spec", "resourceClaims"]).filter(|entry| {
        let text = |key: &str| pod::text(entry, &[key]);
        OURS.contains(&text("name")) || text("resourceClaimName").starts_with(labels::CLAIM_PREFIX)
    })
}

/// Returns the name of the request of a rank.
#[must_use]
pub fn request(rank: u32) -> String {
    format!("rank-{rank}")
}

/// Returns the name of the request for the NICs of the GPU of a rank.
#[must_use]
pub fn nics(rank: u32) -> String {
    format!("{}{rank}", pod::NICS_OF)
}

/// Returns a list of RDMA devices for NCCL. Without `=`, mlx5_1 also matches mlx5_10: a storage or
/// management card would carry traffic.
#[must_use]
pub fn hcas(devices: &[impl AsRef<str>]) -> String {
    let names: Vec<&str> = devices.iter().map(AsRef::as_ref).collect();
    format!("={}", names.join(","))
}

/// Returns a list of RDMA devices with port 1, which nearly all of them have, for UCX and NVSHMEM.
#[must_use]
pub fn ports(devices: &[impl AsRef<str>]) -> String {
    let ports = devices.iter().map(|name| format!("{}:1", name.as_ref()));
    ports.collect::<Vec<_>>().join(",")
}

/// Returns the ranks of the requests that a container names.
pub fn ranks_of(container: &Container<'_>) -> Vec<u32> {
    let rank = |name: &str| name.strip_prefix("rank-")?.parse().ok();
    container.claimed().filter_map(rank).collect()
}

/// Returns what tells the ranks of a container from those of the others, in the names of
/// annotations. The number of the container would not do: another webhook may add containers.
pub fn key(ranks: &[u32]) -> String {
    let (first, last) = (ranks.first(), ranks.last());
    let [first, last] = [first, last].map(|rank| rank.copied().unwrap_or_default());
    format!("{first}-{last}-{}", ranks.len())
}

/// Returns the ranks of each container with GPUs, by its number among all containers (init
/// containers first), and the number of ranks. Containers that run at the same time share no GPU;
/// an init container uses those of the containers after it.
#[must_use]
fn ranks(amounts: &[(Role, u32)]) -> (Vec<(usize, Vec<u32>)>, u32) {
    let of = |role: Role| amounts.iter().filter(move |(one, _)| *one == role);
    let sum = |role| of(role).fold(0_u32, |sum, (_, gpus)| sum.saturating_add(*gpus));
    let (mut main, mut sidecar) = (0, sum(Role::Main));
    let first = sidecar;
    let mut total = first.saturating_add(sum(Role::Sidecar));
    let mut all = Vec::new();
    for (number, &(role, gpus)) in amounts.iter().enumerate() {
        let gpus = gpus.min(MOST + 1);
        let ranks: Vec<u32> = match role {
            Role::Main => take(&mut main, gpus),
            Role::Sidecar => take(&mut sidecar, gpus),
            // Those of the sidecars that started before it are in use.
            Role::Init => (0..first).chain(sidecar..).take(gpus as usize).collect(),
        };
        if let Some(&last) = ranks.last() {
            total = total.max(last.saturating_add(1));
            all.push((number, ranks));
        }
    }
    (all, total)
}

fn take(next: &mut u32, gpus: u32) -> Vec<u32> {
    let ranks = *next..next.saturating_add(gpus);
    *next = ranks.end;
    ranks.collect()
}

/// Returns the name of the claim of a new pod. `request` is the id of the request, which tells pods
/// apart whose names the API server is still to generate.
pub(super) fn name(pod: &Value, namespace: &str, request: &str) -> String {
    let start = |base: &str| {
        let base: String = base.chars().take(SHOWN).collect();
        let base = base.trim_end_matches(['-', '.']);
        format!("{}{base}-", labels::CLAIM_PREFIX)
    };
    let name = pod::text(pod, &["metadata", "name"]);
    if !name.is_empty() {
        let hash = hash(&format!("{namespace}/{name}"));
        return format!("{}{hash:016x}", start(name));
    }
    // No pod with a name has such a claim.
    let base = pod::text(pod, &["metadata", "generateName"]);
    let start = format!("{}x", start(base));
    let known = entries(pod).find_map(|one| one.get("resourceClaimName")?.as_str());
    let known = known.map(|known| known.strip_suffix(CHANNEL_SUFFIX).unwrap_or(known));
    let again = |known: &&str| {
        let rest = known.strip_prefix(&start);
        rest.is_some_and(|rest| rest.len() == 16 && rest.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    match known.filter(again) {
        // The API server calls again.
        Some(known) => known.to_owned(),
        None => format!(
            "{start}{:016x}",
            hash(&format!("{namespace}/{base}/{request}"))
        ),
    }
}

/// Replaces what the containers request of the resource by requests of the pod's claim.
pub(super) fn replace(editor: &mut Editor, chosen: &Chosen) -> Result<(), Refusal> {
    let class = &chosen.class;
    if class.mapping != Mapping::Claim {
        return Ok(());
    }
    if let Some(why) = unfit(class, editor.document(), &chosen.gating, chosen.gpus) {
        return Err(refuse(format!(
            "class {:?} gives GPUs by claims of its queue, and {why}: change that, or use a class with another devices.mapping",
            class.name
        )));
    }
    if let Some(name) = by_device_class(editor.document()) {
        return Err(refuse(format!(
            "the pod requests {name} besides what class {:?} gives it by a claim, out of sight of the queue: request {}",
            class.name, class.resource
        )));
    }
    let plan = plan(editor.document(), class)?;
    for (place, resource_lists, requests) in plan {
        let resources = place.path("resources");
        for list in resource_lists {
            editor.remove(&resources.with_trailing_token(list), &class.resource);
        }
        let claims = resources.with_trailing_token("claims");
        for request in requests {
            editor.append(&claims, json!({"name": labels::CLAIM, "request": request}))?;
        }
    }
    set_claim(editor, labels::CLAIM, &chosen.claim)
}

/// Gives the containers with GPUs an IMEX channel by a claim, which the queue makes.
pub(super) fn add_channel(editor: &mut Editor, chosen: &Chosen) -> Result<(), Refusal> {
    let named = |entry: &Value| pod::text(entry, &["name"]) == labels::CHANNEL;
    // A copy of a pod gets a claim of its own, whether or not its gang gets channels.
    if !chosen.gets_channel() && !entries(editor.document()).any(named) {
        return Ok(());
    }
    let containers = pod::containers(editor.document());
    let lacks = |one: &&Container<'_>| {
        let mut claims = list(one.value(), &["resources", "claims"]);
        one.amount(&chosen.class.resource).unwrap_or(0) > 0 && !claims.any(named)
    };
    let places: Vec<Place> = containers
        .iter()
        .filter(lacks)
        .map(Container::place)
        .collect();
    for place in places {
        let claims = place.path("resources").with_trailing_token("claims");
        editor.append(&claims, json!({"name": labels::CHANNEL}))?;
    }
    let name = format!("{}{CHANNEL_SUFFIX}", chosen.claim);
    set_claim(editor, labels::CHANNEL, &name)
}

/// Returns a resource by which the pod requests devices of a DeviceClass.
fn by_device_class(pod: &Value) -> Option<&str> {
    let containers = pod::containers(pod);
    let mut names = containers.iter().flat_map(Container::resources);
    names.find(|name| name.starts_with(pod::DEVICE_CLASSES))
}

/// Returns why a pod of the class with so many GPUs cannot get them by a claim.
pub(super) fn unfit(class: &Class, pod: &Value, gating: &Gating, gpus: u32) -> Option<String> {
    let on_host = pod.pointer("/spec/hostNetwork") == Some(&Value::Bool(true));
    match gating {
        _ if class.mapping != Mapping::Claim => None,
        // DRANET refuses them when they start (RunPodSandbox of pkg/driver/nri_hooks.go).
        _ if on_host && class.nics.is_some() => Some(
            "the pod uses the host network (hostNetwork), where drivers give no NICs".to_owned(),
        ),
        Gating::Elsewhere(why) => Some(format!("the pod does not wait there, because {why}")),
        _ if gpus > most(class) => Some(format!(
            "the pod requests {gpus} GPUs, but a claim can have at most {}{}",
            most(class),
            if class.nics.is_some() {
                " with their NICs"
            } else {
                ""
            }
        )),
        Gating::Queued | Gating::Unqueued => None,
    }
}

/// Returns the most GPUs of a claim of the class, whose NICs are devices, too.
#[must_use]
pub fn most(class: &Class) -> u32 {
    let nics = class.nics.as_ref().map_or(0, |nics| nics.per_gpu);
    MOST / nics.saturating_add(1)
}

/// Sets an entry of the pod's claims.
fn set_claim(editor: &mut Editor, entry: &str, name: &str) -> Result<(), Refusal> {
    const CLAIMS: &Pointer = Pointer::from_static("/spec/resourceClaims");
    let known = list(editor.document(), &["spec", "resourceClaims"])
        .enumerate()
        .find(|(_, one)| pod::text(one, &["name"]) == entry);
    match known {
        None => {
            let entry = json!({"name": entry, "resourceClaimName": name});
            editor.append(CLAIMS, entry)?;
        }
        Some((_, entry)) if entry.get("resourceClaimName") == Some(&json!(name)) => {}
        Some((index, _)) => {
            let entry = CLAIMS.with_trailing_token(index);
            editor.remove(&entry, "resourceClaimTemplateName");
            editor.insert(&entry, "resourceClaimName", json!(name))?;
        }
    }
    Ok(())
}

/// A container, the lists of its resources that name the resource, and the requests that it lacks.
type Change = (Place, Vec<&'static str>, Vec<String>);

/// Returns what changes in each container with GPUs.
fn plan(pod: &Value, class: &Class) -> Result<Vec<Change>, Refusal> {
    let containers = pod::containers(pod);
    let amounts = amounts(&containers, &class.resource);
    let (ranks, _) = ranks(&amounts);
    let mut without = containers
        .iter()
        .zip(&amounts)
        .filter(|(_, (_, gpus))| *gpus == 0);
    if let Some((container, _)) = without.find(|(one, _)| one.nics().next().is_some()) {
        return Err(named_by_hand(container, class));
    }
    let mut changes = Vec::new();
    for (number, ranks) in ranks {
        let container = &containers[number];
        let nics: Vec<String> = match class.nics {
            Some(_) => ranks.iter().copied().map(nics).collect(),
            None => Vec::new(),
        };
        let wanted: Vec<String> = ranks.into_iter().map(request).chain(nics).collect();
        let known = list(container.value(), &["resources", "claims"]);
        let known = known.filter(|one| pod::text(one, &["name"]) == labels::CLAIM);
        let known: Vec<&str> = known.map(|one| pod::text(one, &["request"])).collect();
        let missing = match known.is_empty() {
            true => wanted,
            false if known == wanted => Vec::new(),
            false => return Err(named_by_hand(container, class)),
        };
        let names = |one: &&str| {
            let list = container
                .value()
                .get("resources")
                .and_then(|all| all.get(*one));
            list.is_some_and(|list| list.get(&class.resource).is_some())
        };
        let lists = ["limits", "requests"].into_iter().filter(names).collect();
        changes.push((container.place(), lists, missing));
    }
    Ok(changes)
}

fn named_by_hand(container: &Container<'_>, class: &Class) -> Refusal {
    refuse(format!(
        "container {:?} names requests of the claim {:?}, which only the webhook writes: remove them from resources.claims, and request {} in resources.limits",
        container.name(),
        labels::CLAIM,
        class.resource
    ))
}

fn amounts(containers: &[Container<'_>], resource: &str) -> Vec<(Role, u32)> {
    let amount = |one: &Container<'_>| (one.role, one.amount(resource).unwrap_or(0));
    containers.iter().map(amount).collect()
}

pub(super) fn refuse(message: String) -> Refusal {
    Refusal::new(Rule::Claim, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_that_run_together_share_no_rank() {
        use Role::{Init, Main, Sidecar};
        let of = |amounts: &[(Role, u32)]| {
            let (all, total) = ranks(amounts);
            let all: Vec<_> = all
                .into_iter()
                .map(|(at, ranks)| format!("{at}:{ranks:?}"))
                .collect();
            format!("{} of {total}", all.join(" "))
        };
        assert_eq!(of(&[(Main, 2)]), "0:[0, 1] of 2");
        assert_eq!(
            of(&[(Main, 2), (Main, 0), (Main, 1)]),
            "0:[0, 1] 2:[2] of 3"
        );
        assert_eq!(of(&[(Init, 1), (Main, 2)]), "0:[0] 1:[0, 1] of 2");
        assert_eq!(of(&[(Init, 3), (Main, 1)]), "0:[0, 1, 2] 1:[0] of 3");
        // The second init container runs beside the sidecar.
        assert_eq!(
            of(&[(Init, 2), (Sidecar, 1), (Init, 2), (Main, 1)]),
            "0:[0, 1] 1:[1] 2:[0, 2] 3:[0] of 3"
        );
        assert_eq!(of(&[(Init, 0), (Main, 0)]), " of 0");
    }

    #[test]
    fn the_number_of_ranks_is_what_the_pod_requests() {
        use Role::{Init, Main, Sidecar};
        let roles = [Init, Sidecar, Main];
        for seed in 0..3_000_usize {
            let mut amounts: Vec<(Role, u32)> = (0..4)
                .map(|at| {
                    (
                        roles[seed / 3_usize.pow(at) % 3],
                        (seed as u32 >> (2 * at)) % 4,
                    )
                })
                .collect();
            amounts.sort_by_key(|(role, _)| *role == Main);
            let container = |role: Role, gpus: u32| {
                let mut one =
                    json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": gpus}}});
                if role == Sidecar {
                    one["restartPolicy"] = json!("Always");
                }
                one
            };
            let of = |main: bool| -> Vec<Value> {
                let some = amounts.iter().filter(|(role, _)| (*role == Main) == main);
                some.map(|&(role, gpus)| container(role, gpus)).collect()
            };
            let pod = json!({"spec": {"initContainers": of(false), "containers": of(true)}});
            let asked = pod::request(&pod::containers(&pod), "nvidia.com/gpu").unwrap();
            assert_eq!(ranks(&amounts).1, asked, "{amounts:?}");
        }
    }

    #[test]
    fn each_pod_has_a_claim_of_its_own() {
        let named = |meta: Value, request: &str| name(&json!({"metadata": meta}), "team", request);
        let first = named(json!({"name": "train"}), "1");
        assert_eq!(first, named(json!({"name": "train"}), "2"), "a second call");
        assert!(first.starts_with("nvlink-domains-train-"), "{first}");
        let generated = json!({"generateName": "train-"});
        assert_ne!(named(generated.clone(), "1"), named(generated.clone(), "2"));
        let mut again = json!({"metadata": generated, "spec": {"resourceClaims": [
            {"name": labels::CLAIM, "resourceClaimName": "nvlink-domains-train-1"}
        ]}});
        assert_ne!(
            name(&again, "team", "2"),
            "nvlink-domains-train-1",
            "of nobody"
        );
        let known = named(json!({"generateName": "train-"}), "1");
        again["spec"]["resourceClaims"][0]["resourceClaimName"] = json!(known);
        assert_eq!(name(&again, "team", "2"), known, "a second call");
        again["metadata"]["name"] = json!("copy");
        assert_ne!(name(&again, "team", "2"), known, "a copy");
        again["metadata"] = json!({"generateName": "other-"});
        assert_ne!(name(&again, "team", "2"), known, "the claim of others");
        let long = named(json!({"name": "a.".repeat(120)}), "1");
        assert!(long.len() < 80 && !long.contains(".-"), "{long}");
    }
}
