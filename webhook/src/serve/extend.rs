//! Starts the scheduler extender, and the mirror that admission, the page and the extender share.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Context;
use axum_server::Handle;
use nvlink_admission::view::SharedView;
use nvlink_cluster::{informer::Extent, kinds::Informers, mirror::Mirror};
use nvlink_runtime::{connections::CutOffs, supervise::Supervisor};
use tokio::sync::watch;

use super::identity::Identity;
use crate::{
    admission::server::listen,
    args::{ExtenderArgs, WebArgs},
    extender::{Extender, server},
    metrics::Metrics,
};

/// Returns the mirror, which follows pods and claims if the page or the extender needs them.
pub(super) fn mirror(
    page: &WebArgs,
    extender: ExtenderArgs,
    view: &SharedView,
    informers: &Informers,
) -> Mirror {
    let mirror = Mirror::counting(view.clone());
    mirror.follow(informers);
    let page = !page.listen_addresses.is_empty();
    let page = page.then_some(Extent::OfClasses);
    let extender = extender.extender_listen.map(|_| Extent::Whole);
    if let Some(extent) = page.max(extender) {
        mirror.follow_pods(informers, extent);
    }
    mirror
}

/// Serves the extender until the process ends.
pub(super) fn serve(
    address: SocketAddr,
    identity: &Identity,
    mirror: Mirror,
    view: &SharedView,
    metrics: &Arc<Metrics>,
    supervisor: &Supervisor,
    leaving: watch::Receiver<bool>,
) {
    let view = view.clone();
    let extender = Extender { mirror, view };
    let router = server::router(extender, Arc::clone(metrics));
    let config = identity.config.clone();
    tracing::info!(%address, "serving the scheduler extender");
    supervisor.require("server of the extender", async move {
        // The metrics count the clients of admission only.
        let (handle, cut_offs) = (Handle::new(), CutOffs::default());
        let served = listen::serve(address, config, handle, router, cut_offs, leaving).await;
        served.with_context(|| format!("cannot serve the extender on {address}"))
    });
}
