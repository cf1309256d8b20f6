//! Checks, while the webhook runs, whether the cluster has the policies of this version.
//!
//! Each replica checks for itself: during a rollout, replicas of two versions expect different
//! policies.

use std::{sync::Arc, time::Duration};

use kube::Client;
use nvlink_admission::policies::{Differing, Site, documents};
use nvlink_api::yaml::YamlError;
use serde_json::Value;

use super::found;
use crate::metrics::Metrics;

/// The time between two checks.
const LOOK: Duration = Duration::from_secs(30);

/// Compares the policies of the cluster with those of this version.
#[derive(Clone)]
pub(crate) struct Inspector {
    client: Client,
    site: Site,
    metrics: Arc<Metrics>,
}

#[derive(PartialEq, Eq)]
enum State {
    Current,
    /// Which objects differ, and the commands that repair them.
    Differs {
        names: String,
        remedy: String,
    },
    Unknown(String),
}

impl Inspector {
    /// Returns an inspector of the policies of this cluster.
    pub(crate) fn new(client: &Client, site: Site, metrics: &Arc<Metrics>) -> Self {
        Self {
            client: client.clone(),
            site,
            metrics: Arc::clone(metrics),
        }
    }

    /// Checks now and then. Logs changes only. Never ends without an error.
    ///
    /// # Errors
    /// When the policies of this version are not YAML.
    pub(crate) async fn run(self) -> Result<(), YamlError> {
        let wanted = documents(&self.site)?;
        let mut told = None;
        loop {
            let state = self.look(&wanted).await;
            self.metrics.policies(match state {
                State::Current => Some(true),
                State::Differs { .. } => Some(false),
                State::Unknown(_) => None,
            });
            if told.as_ref() != Some(&state) {
                state.log();
                told = Some(state);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn look(&self, wanted: &[Value]) -> State {
        let found = match found(&self.client, wanted).await {
            Ok(found) => found,
            Err(error) => return State::Unknown(format!("{error:#}")),
        };
        let differing = Differing::new(&found, wanted);
        if differing.is_empty() {
            return State::Current;
        }
        let on_one_line = |lines: String| lines.trim_end().replace('\n', "; ");
        State::Differs {
            names: on_one_line(differing.names()),
            remedy: on_one_line(differing.remedy(false, &self.site)),
        }
    }
}

impl State {
    fn log(&self) {
        match self {
            Self::Current => tracing::info!("the policies in the cluster are up to date"),
            Self::Differs { names, remedy } => tracing::warn!(
                "the policies in the cluster differ from those of this version, so restricted classes may be open while the webhook is down: {names}. Run helm upgrade again; or, {remedy}"
            ),
            Self::Unknown(reason) => tracing::warn!(
                reason,
                "cannot compare the policies in the cluster with those of this version"
            ),
        }
    }
}
