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
        let mut written = None;
        loop {
            let offers = proxy.offers_gpus();
            let due = written.is_none_or(|(was, since): (bool, tokio::time::Instant)| {
                was != offers || since.elapsed() >= CHECK
            });
            if due {
                match self.write(offers).await {
                    Ok(()) => written = Some((offers, tokio::time::Instant::now())),
                    Err(error) => {
                        let reason = client::reason(&error);
                        tracing::warn!(node = self.node, reason, "cannot label the Node");
                    }
                }
            }
            sleep(LOOK).await;
        }
    }

    /// Removes the label.
    ///
    /// # Errors
    /// When the API server cannot be reached or refuses.
    pub async fn remove(&self) -> kube::Result<()> {
        self.write(false).await
    }

    async fn write(&self, offers: bool) -> kube::Result<()> {
        let value = offers.then_some((labels::DEVICES, labels::PREFERRED));
        let labels: BTreeMap<_, _> = value.into_iter().collect();
        let patch = Patch::Apply(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node, "labels": labels},
        }));
        let params = PatchParams::apply(MANAGER).force();
        let nodes = Api::<Node>::all(self.client.clone());
        nodes
            .patch_metadata(&self.node, &params, &patch)
            .await
            .map(drop)
    }
}
