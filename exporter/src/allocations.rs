//! Who holds which GPUs: asked of the kubelet, judged, and published with
//! [`Latest::place`](crate::snapshot::Latest::place).
//!
//! `kubelet` asks, `devices` and `slices` know the names of GPUs, `holdings` is
//! what the answer means, `tracker` remembers what was free when a pod came,
//! `judge` says how good its GPUs are, and `cluster` is what the Kubernetes
//! API adds where it is at hand.

mod api;
mod args;
mod collector;
mod devices;
mod holdings;
mod judge;
mod kubelet;
pub mod podresources;
mod slices;
mod tracker;

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, task::JoinSet};

use self::{api::Cluster, collector::Collector};
use crate::{
    args::PublishArgs,
    publish::{self, PublishError, status::Keeper},
    snapshot::Latest,
};

pub use self::{
    args::{AllocationArgs, Socket},
    holdings::Holdings,
    judge::Judge,
    kubelet::KubeletError,
};

/// Starts to collect every `interval`, for the node `node`. All ends when the
/// returned set is dropped.
///
/// # Errors
/// When the Kubernetes API is wanted and there is no access to it.
pub async fn start(
    args: &AllocationArgs,
    publish: &PublishArgs,
    node: Option<&str>,
    interval: Duration,
    latest: &Arc<Latest>,
) -> Result<JoinSet<()>, PublishError> {
    let mut tasks = JoinSet::new();
    let cluster = Cluster::default();
    let mut collector = Collector::new(args, cluster.clone(), Arc::clone(latest));
    let wanted = args.kubernetes || publish.publish;
    if let Some(node) = node.filter(|_| wanted) {
        publish::install_crypto();
        let client = publish::client().await?;
        if args.socket().is_some() {
            let watch = cluster.clone().watch_pods(client.clone(), node.to_owned());
            tasks.spawn(watch);
            tasks.spawn(cluster.watch_slices(client.clone(), node.to_owned()));
        }
        if publish.publish {
            let (record, recorded) = watch::channel(None);
            let (want, wanted) = watch::channel(None);
            collector.keep(recorded, want);
            let keeper = Keeper {
                client,
                node: node.to_owned(),
                record,
                wanted,
                recheck: publish.publish_interval,
            };
            tasks.spawn(keeper.run());
        }
    }
    tasks.spawn(collector.run(interval));
    Ok(tasks)
}
