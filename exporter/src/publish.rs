//! Publishes to the cluster: labels and annotations on the Node, the NodeTopology object, and
//! DeviceTaintRules of broken GPUs.
//!
//! It uses server-side apply, and only where the cluster differs: nothing is
//! written while nothing changes, and foreign changes are reverted at the next
//! check.
//!
//! Conflicts: the names under `nvlink-domains.io/` belong to this program, so it
//! forces their ownership. The alias labels are names that others may own. They
//! have a field manager of their own, which never forces ownership and skips a
//! label that another manager sets.

mod node;
mod object;
mod rivals;
pub mod status;
mod taints;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use kube::Client;
use nvlink_runtime::{
    client::{self, Limits},
    tls,
};
use nvlink_topology::NodeTopology;
use tokio::time::Instant;

use crate::{
    snapshot::{Latest, View},
    statistics::{Failure, Publishing},
};
use nvlink_history::marks::Record;

/// Field manager of the Node's labels and annotations, and of the object.
pub const MANAGER: &str = "nvlink-exporter";
/// Field manager of the alias labels.
pub const ALIAS_MANAGER: &str = "nvlink-exporter-aliases";

/// Why something could not be published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The API server is not accessible.
    #[error("no access to the cluster: {}", client::reason(.0))]
    Access(Box<kube::Error>),
    /// There is no such Node.
    #[error("there is no Node {0:?} in the cluster; check --node-name")]
    NoNode(String),
    /// The API server refused or did not answer.
    #[error("{what} {name}: {}{}", client::reason(error), advice(error))]
    Api {
        /// The failed operation: `reading Node`.
        what: &'static str,
        name: String,
        error: Box<kube::Error>,
    },
}

impl PublishError {
    fn api(what: &'static str, name: &str, error: kube::Error) -> Self {
        Self::Api {
            what,
            name: name.to_owned(),
            error: Box::new(error),
        }
    }
}

impl From<&PublishError> for Failure {
    fn from(error: &PublishError) -> Self {
        match error {
            PublishError::NoNode(_) => Self::NoNode,
            PublishError::Access(_) => Self::Unreachable,
            PublishError::Api { error, .. } => match &**error {
                kube::Error::Api(status) if status.code == 403 => Self::Forbidden,
                kube::Error::Api(_) => Self::Refused,
                _ => Self::Unreachable,
            },
        }
    }
}

/// Returns a client from the service account or from the kubeconfig. Its
/// requests have timeouts.
///
/// # Errors
/// If there is neither.
pub async fn client() -> Result<Client, PublishError> {
    tls::install_provider();
    client::connect(Limits::default())
        .await
        .map_err(|error| PublishError::Access(Box::new(error)))
}

pub struct Publisher {
    client: Client,
    node: String,
    aliases: bool,
    record: Record,
    crd_missing: bool,
    rivals: rivals::Rivals,
    taints: taints::Taints,
}

/// What [`Publisher::publish`] wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub node: bool,
    pub aliases: bool,
    pub object: bool,
    /// DeviceTaintRules.
    pub taints: bool,
}

impl Publisher {
    /// Returns a publisher for the Node `node`; with `aliases`, it also publishes the
    /// label names of published guides.
    #[must_use]
    pub fn new(client: Client, node: String, aliases: bool) -> Self {
        Self {
            client,
            node,
            aliases,
            record: Record::default(),
            crd_missing: false,
            rivals: rivals::Rivals::default(),
            taints: taints::Taints::default(),
        }
    }

    /// Sets what [`Self::publish`] keeps in the cluster for the next process.
    pub fn remember(&mut self, record: Record) {
        self.record = record;
    }

    /// Updates the cluster to `topology`.
    ///
    /// # Errors
    /// When the API server cannot be reached or refuses; trying again is safe.
    pub async fn publish(&mut self, topology: &NodeTopology) -> Result<Written, PublishError> {
        let node = node::get(&self.client, &self.node).await?;
        let aliases = self
            .aliases
            .then(|| nvlink_topology::labels::alias_labels(topology));
        let mut written = Written {
            node: node::apply_own(&self.client, &node, topology).await?,
            aliases: node::apply_aliases(&self.client, &node, aliases.unwrap_or_default()).await?,
            object: false,
            // Before the object, which a cluster with an older CRD refuses.
            taints: self
                .taints
                .apply(&self.client, &node, &topology.spec)
                .await?,
        };
        match object::apply(&self.client, &node, topology, &self.record).await? {
            object::Outcome::NoCrd if !self.crd_missing => {
                self.crd_missing = true;
                tracing::warn!(
                    "the CRD of NodeTopology is missing in the cluster, so only labels and annotations are \
                     published: install it with `nvlink-webhook crds | kubectl apply --server-side -f -`"
                );
            }
            object::Outcome::NoCrd | object::Outcome::Same => {}
            object::Outcome::Written => {
                self.crd_missing = false;
                written.object = true;
            }
        }
        let wrote = Written {
            taints: false,
            ..written
        } != Written::default();
        if let Some(times) = self.rivals.look(&topology.spec, wrote) {
            tracing::warn!(
                node = self.node,
                times,
                "something else keeps changing what is published about this Node: it had to be \
                 restored repeatedly; check for a second exporter with this --node-name"
            );
        }
        Ok(written)
    }
}

/// Returns advice on what to do about an error.
fn advice(error: &kube::Error) -> &'static str {
    match error {
        // A policy gives its own reason.
        kube::Error::Api(status) if status.message.contains("ValidatingAdmissionPolicy") => "",
        kube::Error::Api(status) if status.code == 403 => {
            "; grant the rights in the chart's templates/exporter/rbac.yaml"
        }
        kube::Error::Api(status) if status.message.contains("field not declared in schema") => {
            "; the CRD in the cluster is older than this program: run `helm upgrade`, or \
             `nvlink-webhook crds | kubectl apply --server-side --force-conflicts -f -`"
        }
        _ => "",
    }
}

/// Reports whether an object is missing, or its whole kind, which the API server
/// reports in plain text without a reason.
fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// Removes everything that was published about `node`; returns whether the Node exists.
///
/// # Errors
/// When the API server cannot be reached or refuses.
pub async fn unpublish(client: &Client, node: &str) -> Result<bool, PublishError> {
    remove(client, node, &mut taints::Taints::default()).await
}

async fn remove(
    client: &Client,
    node: &str,
    taints: &mut taints::Taints,
) -> Result<bool, PublishError> {
    taints.remove(client, node).await?;
    object::delete(client, node).await?;
    match node::get(client, node).await {
        Ok(node) => node::remove(client, &node).await.map(|()| true),
        // Nothing is published about a Node that no longer exists.
        Err(PublishError::NoNode(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes everything that was published about any node; returns the names of the nodes.
///
/// # Errors
/// When the API server cannot be reached or refuses.
pub async fn unpublish_all(client: &Client) -> Result<BTreeSet<String>, PublishError> {
    let mut nodes = object::names(client).await?;
    nodes.extend(node::published(client).await?);
    let mut taints = taints::Taints::default();
    for node in &nodes {
        remove(client, node, &mut taints).await?;
    }
    Ok(nodes)
}

/// A wait that grows with each attempt in vain.
struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(Duration::from_secs(1))
    }
}

impl Backoff {
    /// Counts and logs a failure, and waits.
    async fn wait(&mut self, what: &str, error: &PublishError, statistics: &Publishing) {
        statistics.failed(Failure::from(error));
        tracing::warn!(retry_in = ?self.0, "{what}: {error}");
        tokio::time::sleep(self.next()).await;
    }

    /// Returns how long to wait now.
    fn next(&mut self) -> Duration {
        let next = (self.0 * 2).min(Duration::from_secs(60));
        std::mem::replace(&mut self.0, next)
    }
}

/// What is logged of a failure.
const FAILED: &str = "publishing failed";

/// How long results of benchmarks are waited for: a directory that hangs must not keep the rest
/// from being published.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the cluster should have.
struct Wanted {
    topology: NodeTopology,
    record: Record,
}

impl Wanted {
    /// Returns what `view` has to publish; `None` while its data are incomplete. Without the
    /// results of benchmarks, the label of a slow node would go and come at each start.
    fn of(view: &View) -> Option<Self> {
        let compared = view
            .results
            .as_ref()
            .is_some_and(|one| one.comparisons.is_some());
        if view.statistics.measures && !compared && view.since_start < PATIENCE {
            return None;
        }
        Some(Self {
            topology: view.hardware()?,
            record: view.snapshot.as_ref()?.record.clone(),
        })
    }

    fn is(&self, other: &Self) -> bool {
        self.topology.spec == other.topology.spec && self.record == other.record
    }
}

/// Reads the record of an earlier process; tries until it succeeds.
async fn earlier(publisher: &Publisher, statistics: &Publishing) -> Record {
    let mut backoff = Backoff::default();
    loop {
        match object::read_record(&publisher.client, &publisher.node).await {
            Ok(record) => return record,
            Err(error) => backoff.wait(FAILED, &error, statistics).await,
        }
    }
}

/// Publishes each good snapshot that differs from the previous one, and checks
/// every `recheck` whether the cluster still matches. Never ends.
///
/// A failed collection changes nothing in the cluster: the hardware is still there.
pub async fn run(
    mut publisher: Publisher,
    latest: Arc<Latest>,
    recheck: Duration,
    statistics: Publishing,
) {
    let mut published: Option<(Wanted, Instant)> = None;
    let mut backoff = Backoff::default();
    let earlier = earlier(&publisher, &statistics).await;
    let waits = !earlier.is_empty();
    latest.restore(earlier);
    loop {
        let changed = latest.changed();
        let due = |wanted: &Wanted| {
            published
                .as_ref()
                .is_none_or(|(before, at)| !before.is(wanted) || at.elapsed() >= recheck)
        };
        let wanted = Wanted::of(&latest.view(std::time::Instant::now()));
        // Publishing the others would remove the marks of the earlier process.
        let wanted = wanted.filter(|wanted| wanted.record.is_restored() || !waits);
        let Some(wanted) = wanted.filter(due) else {
            // The timeout covers a first snapshot that arrived just before this wait.
            drop(tokio::time::timeout(Duration::from_secs(1), changed).await);
            continue;
        };
        publisher.remember(wanted.record.clone());
        match publisher.publish(&wanted.topology).await {
            Ok(written) => {
                if written != Written::default() {
                    tracing::info!(node = publisher.node, ?written, "published");
                }
                statistics.succeeded();
                published = Some((wanted, Instant::now()));
                backoff = Backoff::default();
            }
            Err(error) => backoff.wait(FAILED, &error, &statistics).await,
        }
    }
}
