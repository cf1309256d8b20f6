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
use nvlink_runtime::supervise::{Supervisor, Weight};
use tokio::sync::watch;

use self::{
    api::Cluster,
    collector::{Collector, Recorded, Want},
};
use crate::{publish::status::Keeper, snapshot::Latest, tally::Publishing};

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
    pub node: String,
}

/// Publishing of the allocations in the NodeTopology object.
pub struct Publish {
    /// Time between two looks whether they are still there.
    pub recheck: Duration,
    pub tally: Publishing,
}

/// Starts to collect every `interval`.
pub fn start(
    supervisor: &Supervisor,
    args: &AllocationArgs,
    access: Option<(ClusterAccess, Option<Publish>)>,
    interval: Duration,
    latest: &Arc<Latest>,
) {
    let cluster = Cluster::default();
    let socket = args
        .socket()
        .map(|(path, optional)| (path.to_owned(), optional));
    let mut keeper = None;
    if let Some((access, publish)) = access {
        if socket.is_some() {
            watch(supervisor, &cluster, &access);
        }
        keeper = publish.map(|publish| keep(supervisor, access, publish));
    }
    let latest = Arc::clone(latest);
    supervisor.keep("the collector of allocations", Weight::Vital, move || {
        let socket = socket.as_ref().map(|(path, optional)| (&**path, *optional));
        let mut collector = Collector::new(socket, cluster.clone(), Arc::clone(&latest));
        if let Some((recorded, want)) = &keeper {
            collector.keep(recorded.clone(), want.clone());
        }
        collector.run(interval)
    });
}

/// Without what they see, jobs are judged less well, and are judged.
fn watch(supervisor: &Supervisor, cluster: &Cluster, access: &ClusterAccess) {
    let (pods, slices) = (cluster.clone(), cluster.clone());
    let (one, other) = (access.clone(), access.clone());
    supervisor.keep("the watch of pods", Weight::Minor, move || {
        pods.clone()
            .watch_pods(one.client.clone(), one.node.clone())
    });
    supervisor.keep("the watch of ResourceSlices", Weight::Minor, move || {
        slices
            .clone()
            .watch_slices(other.client.clone(), other.node.clone())
    });
}

/// Starts the keeper of the record; what it has, and where it is told what to keep.
fn keep(supervisor: &Supervisor, access: ClusterAccess, publish: Publish) -> (Recorded, Want) {
    let (record, recorded) = watch::channel(None);
    let (want, wanted) = watch::channel(None);
    let keeper = Keeper {
        client: access.client,
        node: access.node,
        record,
        wanted,
        recheck: publish.recheck,
        tally: publish.tally,
    };
    let name = "the keeper of the record of allocations";
    supervisor.keep(name, Weight::Vital, move || keeper.clone().run());
    (recorded, want)
}
