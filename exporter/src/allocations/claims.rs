//! Which devices pods only look at: those that their claims got with admin access, to monitor them.
//! The kubelet reports them like devices that a pod holds; their ResourceClaims tell.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    pin::pin,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use kube::{
    Api, Client,
    core::{ApiResource, GroupVersionKind, Object},
};
use nvlink_kubelet::podresources::{ClaimResource, DynamicResource, ListPodResourcesResponse};
use nvlink_kubelet::slices::{DRIVER, Nothing};
use nvlink_runtime::client;
use serde::Deserialize;
use tokio::time::timeout_at;

/// How long a look waits for all the claims that it does not know.
const PATIENCE: Duration = Duration::from_secs(2);
/// The pause before a claim is read again that could not be read.
const RETRY: Duration = Duration::from_secs(30);
/// The most claims that are read at a time.
const AT_ONCE: usize = 8;

/// What is known of the claims of the node's pods. An allocation never changes while a pod uses it,
/// so each claim is read once.
#[derive(Default)]
pub(super) struct Claims {
    client: Option<Client>,
    known: HashMap<DynamicResource, Known>,
    /// The last failure, which is logged once.
    error: Option<String>,
}

enum Known {
    /// Pool and name of the devices that its pods look at and do not hold.
    Looks(BTreeSet<(String, String)>),
    /// It could not be read; it is read again at this time.
    Unread(Instant),
}

impl Claims {
    /// Creates a reader of claims; without an API, all devices count as held.
    pub(super) fn new(client: Option<Client>) -> Self {
        Self {
            client,
            ..Self::default()
        }
    }

    pub(super) fn has_api(&self) -> bool {
        self.client.is_some()
    }

    /// Returns the kubelet's answer without the devices that pods only look at. Those of a claim
    /// that cannot be read count as held.
    pub(super) async fn held(
        &mut self,
        mut answer: ListPodResourcesResponse,
    ) -> ListPodResourcesResponse {
        if let Some(client) = self.client.clone() {
            self.read(client, &answer).await;
        }
        let pods = answer.pod_resources.iter_mut();
        let containers = pods.flat_map(|pod| &mut pod.containers);
        for claim in containers.flat_map(|one| &mut one.dynamic_resources) {
            if let Some(Known::Looks(looks)) = self.known.get(claim) {
                claim.claim_resources.retain(|one| {
                    let name = (one.pool_name.clone(), one.device_name.clone());
                    !is_gpu(one) || !looks.contains(&name)
                });
            }
        }
        answer
    }

    /// Reads the claims with GPUs that are not known, and forgets those that are gone.
    async fn read(&mut self, client: Client, answer: &ListPodResourcesResponse) {
        let pods = answer.pod_resources.iter();
        let containers = pods.flat_map(|pod| &pod.containers);
        let claims = containers.flat_map(|one| &one.dynamic_resources);
        let there: HashSet<&DynamicResource> = claims
            .filter(|one| one.claim_resources.iter().any(is_gpu))
            .collect();
        self.known.retain(|claim, _| there.contains(claim));
        let now = Instant::now();
        let wanted = there
            .into_iter()
            .filter(|claim| match self.known.get(claim) {
                None => true,
                Some(Known::Looks(_)) => false,
                Some(Known::Unread(again)) => *again <= now,
            });
        let wanted: Vec<DynamicResource> = wanted.cloned().collect();
        if wanted.is_empty() {
            return;
        }
        let again = now + RETRY;
        for claim in &wanted {
            self.known.insert(claim.clone(), Known::Unread(again));
        }
        let get = |claim: DynamicResource| {
            let client = client.clone();
            async move {
                let looks = looks(client, &claim).await;
                (claim, looks)
            }
        };
        let mut answers = pin!(stream::iter(wanted).map(get).buffer_unordered(AT_ONCE));
        let deadline = (now + PATIENCE).into();
        loop {
            match timeout_at(deadline, answers.next()).await {
                Ok(Some((claim, Ok(looks)))) => {
                    self.known.insert(claim, Known::Looks(looks));
                    self.error = None;
                }
                Ok(Some((_, Err(error)))) => self.failed(error),
                Ok(None) => return,
                Err(_) => return self.failed("the API server does not answer".to_owned()),
            }
        }
    }

    fn failed(&mut self, error: String) {
        if self.error.as_ref() != Some(&error) {
            tracing::warn!(
                error,
                "cannot read ResourceClaims, so pods that only look at GPUs (admin access) count as \
                 their holders"
            );
            self.error = Some(error);
        }
    }
}

fn is_gpu(device: &ClaimResource) -> bool {
    device.driver_name == DRIVER
}

/// Reads which devices the pods of a claim look at and do not hold. An error is for people.
async fn looks(
    client: Client,
    claim: &DynamicResource,
) -> Result<BTreeSet<(String, String)>, String> {
    let api = Api::<ClaimObject>::namespaced_with(client, &claim.claim_namespace, &resource());
    let found = api.get(&claim.claim_name).await;
    let found = found.map_err(|error| client::reason(&error))?;
    let allocation = found.status.and_then(|status| status.allocation);
    let results = allocation.map(|one| one.devices.results);
    let results = results.into_iter().flatten();
    let ours = results.filter(|one| one.driver == DRIVER);
    let (looks, holds): (Vec<_>, Vec<_>) = ours.partition(|one| one.admin_access);
    let name = |one: Granted| (one.pool, one.device);
    let mut looks: BTreeSet<_> = looks.into_iter().map(name).collect();
    for held in holds.into_iter().map(name) {
        looks.remove(&held);
    }
    Ok(looks)
}

/// The parts of a ResourceClaim that are read.
type ClaimObject = Object<Nothing, Status>;

#[derive(Clone, Debug, Default, Deserialize)]
struct Status {
    allocation: Option<Allocation>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Allocation {
    #[serde(default)]
    devices: Devices,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Devices {
    #[serde(default)]
    results: Vec<Granted>,
}

/// A device that the scheduler allocated.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Granted {
    driver: String,
    pool: String,
    device: String,
    #[serde(default)]
    admin_access: bool,
}

fn resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("resource.k8s.io", "v1", "ResourceClaim");
    ApiResource::from_gvk_with_plural(&kind, "resourceclaims")
}
