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

use kube::Client;
use tokio::{sync::watch, task::JoinSet};

use self::{api::Cluster, collector::Collector};
use crate::{publish::status::Keeper, snapshot::Latest};

pub use self::{
    args::{AllocationArgs, Socket},
    holdings::Holdings,
    judge::Judge,
    kubelet::KubeletError,
};

/// What the Kubernetes API is used for, where there is one.
#[derive(Clone)]
pub struct ClusterAccess {
    /// The way to it.
    pub client: Client,
    /// The Node's name.
    pub node: String,
    /// Publish the allocations in the NodeTopology object, and look so often
    /// whether they are still there.
    pub publish_every: Option<Duration>,
}

/// Starts to collect every `interval`. All ends when the returned set is dropped.
#[must_use]
pub fn start(
    args: &AllocationArgs,
    access: Option<ClusterAccess>,
    interval: Duration,
    latest: &Arc<Latest>,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let cluster = Cluster::default();
    let mut collector = Collector::new(args.socket(), cluster.clone(), Arc::clone(latest));
    if let Some(access) = access {
        let ClusterAccess { client, node, .. } = access;
        if args.socket().is_some() {
            let watch = cluster.clone().watch_pods(client.clone(), node.clone());
            tasks.spawn(watch);
            tasks.spawn(cluster.watch_slices(client.clone(), node.clone()));
        }
        if let Some(recheck) = access.publish_every {
            let (record, recorded) = watch::channel(None);
            let (want, wanted) = watch::channel(None);
            collector.keep(recorded, want);
            let keeper = Keeper {
                client,
                node,
                record,
                wanted,
                recheck,
            };
            tasks.spawn(keeper.run());
        }
    }
    tasks.spawn(collector.run(interval));
    tasks
}
