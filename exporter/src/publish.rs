//! What the cluster is told: labels and annotations on the Node, and the NodeTopology object.
//!
//! Server-side apply, and only where the cluster differs: nothing is written
//! while nothing changes, and what someone else changed is put right at the
//! next look.
//!
//! Conflicts: the names under `nvlink-domains.io/` are this program's, so it
//! takes them over. The alias labels are names that others may own; they have
//! a field manager of their own, take nothing over, and yield where another
//! manager sets one.

mod node;
mod object;
mod rivals;
pub mod status;

use std::{sync::Arc, time::Duration};

use kube::Client;
use nvlink_runtime::{
    client::{self, Limits},
    tls,
};
use nvlink_topology::NodeTopology;
use tokio::time::Instant;

use crate::{
    snapshot::Latest,
    tally::{Failure, Publishing},
};

/// Field manager of the Node's labels and annotations, and of the object.
pub const MANAGER: &str = "nvlink-exporter";
/// Field manager of the alias labels.
pub const ALIAS_MANAGER: &str = "nvlink-exporter-aliases";

/// Why something could not be published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// No way to the API server.
    #[error("no access to the cluster: {}", client::reason(.0))]
    Access(Box<kube::Error>),
    /// There is no such Node.
    #[error("there is no Node {0:?} in the cluster; is --node-name right?")]
    NoNode(String),
    /// The API server refused or did not answer.
    #[error("{what} {name}: {}{}", client::reason(error), advice(error))]
    Api {
        /// What was done: `reading Node`.
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

/// A client from the service account, or from the kubeconfig. What is asked of
/// it is answered, or fails in time.
///
/// # Errors
/// Where there is neither.
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
    crd_missing: bool,
    rivals: rivals::Rivals,
}

/// What [`Publisher::publish`] wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub node: bool,
    pub aliases: bool,
    pub object: bool,
}

impl Publisher {
    /// For the Node `node`; with `aliases`, also the names of published guides.
    #[must_use]
    pub fn new(client: Client, node: String, aliases: bool) -> Self {
        Self {
            client,
            node,
            aliases,
            crd_missing: false,
            rivals: rivals::Rivals::default(),
        }
    }

    /// Brings the cluster to say what `topology` says.
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
        };
        match object::apply(&self.client, &node, topology).await? {
            object::Outcome::NoCrd if !self.crd_missing => {
                self.crd_missing = true;
                tracing::warn!(
                    "the CRD of NodeTopology is missing in the cluster: install it with \
                     `nvlink-webhook crds | kubectl apply --server-side -f -`; until then only labels and \
                     annotations are published"
                );
            }
            object::Outcome::NoCrd | object::Outcome::Same => {}
            object::Outcome::Written => {
                self.crd_missing = false;
                written.object = true;
            }
        }
        let wrote = written != Written::default();
        if let Some(times) = self.rivals.look(&topology.spec, wrote) {
            tracing::warn!(
                node = self.node,
                times,
                "something else writes this Node: what is published about it had to be put right \
                 again and again; does a second exporter run with this --node-name?"
            );
        }
        Ok(written)
    }
}

/// What to do about a refusal.
fn advice(error: &kube::Error) -> &'static str {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            "; docs/exporter-rbac.yaml has the rights that publishing needs"
        }
        _ => "",
    }
}

/// Also where a whole kind is missing, which is told in plain text without a reason.
fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// Removes everything that was published about `node`; says whether there is such a Node.
///
/// # Errors
/// When the API server cannot be reached or refuses.
pub async fn unpublish(client: &Client, node: &str) -> Result<bool, PublishError> {
    object::delete(client, node).await?;
    match node::get(client, node).await {
        Ok(node) => node::remove(client, &node).await.map(|()| true),
        // Nothing is published about a Node that is gone.
        Err(PublishError::NoNode(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The first and the longest wait after a failure.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Publishes each good snapshot that differs from the one before, and looks
/// every `recheck` whether the cluster still says so. Never ends.
///
/// A failed collection changes nothing in the cluster: the hardware is still there.
pub async fn run(
    mut publisher: Publisher,
    latest: Arc<Latest>,
    recheck: Duration,
    tally: Publishing,
) {
    let mut published: Option<(NodeTopology, Instant)> = None;
    let mut backoff = BACKOFF.0;
    loop {
        let changed = latest.changed();
        let topology = latest
            .view(std::time::Instant::now())
            .whole()
            .map(|data| data.topology.clone());
        let due = |topology: &NodeTopology| {
            published
                .as_ref()
                .is_none_or(|(before, at)| before.spec != topology.spec || at.elapsed() >= recheck)
        };
        let Some(topology) = topology.filter(due) else {
            // The first snapshot may have come just before this waits.
            drop(tokio::time::timeout(Duration::from_secs(1), changed).await);
            continue;
        };
        match publisher.publish(&topology).await {
            Ok(written) => {
                if written != Written::default() {
                    tracing::info!(node = publisher.node, ?written, "published");
                }
                tally.succeeded();
                published = Some((topology, Instant::now()));
                backoff = BACKOFF.0;
            }
            Err(error) => {
                tally.failed(Failure::from(&error));
                tracing::warn!(retry_in = ?backoff, "not published: {error}");
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(BACKOFF.1);
            }
        }
    }
}
