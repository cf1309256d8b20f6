//! The label of the Node that leads pods to this program.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use nvlink_runtime::client;
use nvlink_topology::labels;
use serde_json::json;
use tokio::time::sleep;

use crate::proxy::Proxy;

/// The field manager of the label.
pub const MANAGER: &str = "nvlink-device-plugin";
/// Time between two looks at what this program offers.
const LOOK: Duration = Duration::from_secs(1);
/// Time between two checks of the label, in case somebody changed it.
const CHECK: Duration = Duration::from_secs(300);
/// The longest pause after a failure. Each is twice the one before.
const LONGEST: Duration = Duration::from_secs(60);

/// The label of one Node.
#[derive(Clone)]
pub struct Label {
    client: Client,
    node: String,
}

impl Label {
    #[must_use]
    pub fn new(client: Client, node: String) -> Self {
        Self { client, node }
    }

    /// Sets the label while the kubelet has GPUs from `proxy`, and removes it otherwise.
    pub async fn keep(self, proxy: Arc<Proxy>) -> Infallible {
        let (mut written, mut failed) = (None, None);
        let mut pause = LOOK;
        loop {
            let offers = proxy.offers_gpus();
            let due = written.is_none_or(|(was, since): (bool, tokio::time::Instant)| {
                was != offers || since.elapsed() >= CHECK
            });
            if due {
                match self.write(offers).await {
                    Ok(()) => {
                        written = Some((offers, tokio::time::Instant::now()));
                        (failed, pause) = (None, LOOK);
                    }
                    Err(error) => {
                        let reason = client::reason(&error);
                        if failed.as_ref() != Some(&reason) {
                            tracing::warn!(
                                node = self.node,
                                reason,
                                "cannot label the Node; retrying"
                            );
                        }
                        failed = Some(reason);
                        pause = (pause * 2).min(LONGEST);
                    }
                }
            }
            sleep(pause).await;
        }
    }

    /// Removes the label.
    ///
    /// # Errors
    /// When the API server cannot be reached or refuses.
    pub async fn remove(&self) -> kube::Result<()> {
        self.write(false).await
    }

    /// Applying would create a Node that does not exist, so it names the one that does.
    async fn write(&self, offers: bool) -> kube::Result<()> {
        let nodes = Api::<Node>::all(self.client.clone());
        // A patch of nothing reads the Node with the right to patch it alone.
        let nothing = Patch::Merge(json!({}));
        let found = nodes
            .patch_metadata(&self.node, &PatchParams::default(), &nothing)
            .await?;
        let value = offers.then_some((labels::DEVICES, labels::PREFERRED));
        let labels: BTreeMap<_, _> = value.into_iter().collect();
        let patch = Patch::Apply(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node, "uid": found.metadata.uid, "labels": labels},
        }));
        let params = PatchParams::apply(MANAGER).force();
        nodes
            .patch_metadata(&self.node, &params, &patch)
            .await
            .map(drop)
    }
}
