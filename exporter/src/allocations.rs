//! Reads from the kubelet which containers hold which GPUs, judges these
//! allocations, and publishes them with
//! [`Latest::place`](crate::snapshot::Latest::place).
//!
//! `claims` leaves out what pods only look at, `holdings` interprets the kubelet's answer with the
//! names of `nvlink_kubelet`, `tracker` remembers which GPUs were free when a pod started, `judge`
//! judges the quality of its GPUs, `idle` sees since when their NVLinks are idle, and `api` adds data from the Kubernetes API if there is one.

mod api;
mod args;
mod claims;
mod collector;
mod holdings;
mod idle;
mod judge;
mod tracker;

use std::{sync::Arc, time::Duration};

use kube::Client;
use nvlink_collectives::Inbox;
use nvlink_runtime::supervise::{Supervisor, Weight};
use tokio::sync::watch;

use self::{
    api::{Benchmarks, Cluster},
    claims::Claims,
    collector::{Collector, Recorded, Want},
};
use crate::{publish::status::Keeper, snapshot::Latest, statistics::Publishing};

pub use self::{
    args::{AllocationArgs, Socket},
    holdings::Holdings,
    judge::Judge,
};

/// Access to the Kubernetes API.
#[derive(Clone)]
pub struct ClusterAccess {
    pub client: Client,
    pub node: String,
    /// Gets the termination messages of benchmarks in the exporter's own namespace.
    pub inbox: Inbox,
}

/// Publishing of the allocations in the NodeTopology object.
pub struct Publish {
    /// Time between two checks that the published allocations still exist.
    pub recheck: Duration,
    pub statistics: Publishing,
}

/// Starts to collect the allocations every `interval`.
pub fn start(
    supervisor: &Supervisor,
    args: &AllocationArgs,
    access: Option<ClusterAccess>,
    publish: Option<Publish>,
    interval: Duration,
    latest: &Arc<Latest>,
) {
    let cluster = Cluster::default();
    let socket = args
        .socket()
        .map(|(path, optional)| (path.to_owned(), optional));
    let client = access.as_ref().map(|access| access.client.clone());
    let mut keeper = None;
    if let Some(access) = access {
        watch(supervisor, &cluster, &access, socket.is_some());
        keeper = publish.map(|publish| keep(supervisor, access, publish));
    }
    let latest = Arc::clone(latest);
    supervisor.keep("the collector of allocations", Weight::Vital, move || {
        let socket = socket.as_ref().map(|(path, optional)| (&**path, *optional));
        let claims = Claims::new(client.clone());
        let mut collector = Collector::new(socket, cluster.clone(), claims, Arc::clone(&latest));
        if let Some((recorded, want)) = &keeper {
            collector.keep(recorded.clone(), want.clone());
        }
        collector.run(interval)
    });
}

/// Starts the watches of pods and, where GPUs are held, of ResourceSlices. Jobs are judged
/// without their data, too, but less precisely.
fn watch(supervisor: &Supervisor, cluster: &Cluster, access: &ClusterAccess, held: bool) {
    let (pods, slices) = (cluster.clone(), cluster.clone());
    let (one, other) = (access.clone(), access.clone());
    supervisor.keep("the watch of pods", Weight::Minor, move || {
        let benchmarks = Benchmarks {
            namespace: one.client.default_namespace().to_owned(),
            inbox: one.inbox.clone(),
        };
        pods.clone()
            .watch_pods(one.client.clone(), one.node.clone(), benchmarks)
    });
    if !held {
        return;
    }
    supervisor.keep("the watch of ResourceSlices", Weight::Minor, move || {
        slices
            .clone()
            .watch_slices(other.client.clone(), other.node.clone())
    });
}

/// Starts the keeper of the record. Returns the record that it has read, and the sender
/// of the record that it is to keep.
fn keep(supervisor: &Supervisor, access: ClusterAccess, publish: Publish) -> (Recorded, Want) {
    let (record, recorded) = watch::channel(None);
    let (want, wanted) = watch::channel(None);
    let keeper = Keeper {
        client: access.client,
        node: access.node,
        record,
        wanted,
        recheck: publish.recheck,
        statistics: publish.statistics,
    };
    let name = "the keeper of the record of allocations";
    supervisor.keep(name, Weight::Vital, move || keeper.clone().run());
    (recorded, want)
}
