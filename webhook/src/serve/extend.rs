//! Starts the scheduler extender, and the mirror that it shares with the page.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Context;
use axum_server::Handle;
use kube::Client;
use nvlink_admission::view::SharedView;
use nvlink_cluster::mirror::{Kept, Mirror, watches};
use nvlink_runtime::{connections::CutOffs, supervise::Supervisor};
use tokio::sync::watch;

use super::identity::Identity;
use crate::{
    admission::server::listen,
    args::{ExtenderArgs, WebArgs},
    extender::{Extender, server},
    metrics::Metrics,
};

/// Returns the mirror, which watches keep if the page or the extender needs it.
pub(super) fn mirror(
    page: &WebArgs,
    extender: ExtenderArgs,
    client: &Client,
    supervisor: &Supervisor,
) -> Mirror {
    let mirror = Mirror::default();
    let page = !page.listen_addresses.is_empty();
    let page = page.then_some(Kept::OfClasses);
    let extender = extender.extender_listen.map(|_| Kept::WithDevices);
    if let Some(kept) = page.max(extender) {
        watches::start(client, &mirror, kept, supervisor);
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
