//! `device-plugin`.

use std::{io, sync::Arc, time::Duration};

use anyhow::Context;
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use nvlink_device_plugin::{Directories, Label, Proxy};
use nvlink_runtime::{
    signals,
    supervise::{Supervisor, Weight},
    web::{self, Servers, Web},
};
use nvlink_source::host_name;
use tokio::time::timeout;

use super::serve::blocking;
use crate::{
    args::DevicePluginArgs,
    collect::{self, Open},
    log, metrics, publish,
    snapshot::Latest,
};

/// Time that requests in progress get when the program stops.
const GRACE: Duration = Duration::from_secs(2);

pub(super) fn device_plugin(args: &DevicePluginArgs) -> anyhow::Result<()> {
    log::start(args.log_format);
    let runtime = super::runtime().context("starting")?;
    let result = runtime.block_on(run(args));
    // A source that hangs must not keep the process running.
    runtime.shutdown_background();
    result
}

async fn run(args: &DevicePluginArgs) -> anyhow::Result<()> {
    let mut signals = signals::install()?;
    let supervisor = Supervisor::default();
    let (mut servers, proxy, label) = tokio::select! {
        started = start(args, &supervisor) => started?,
        signal = signals.received() => {
            tracing::info!("received {signal}, stopping");
            return Ok(());
        }
    };
    tokio::select! {
        ended = proxy.run() => ended.context("standing between the kubelet and device plugins"),
        error = servers.ended() => Err(error).context("serving"),
        signal = signals.received() => {
            tracing::info!("received {signal}, stopping");
            servers.shut_down(GRACE).await;
            if let Some(label) = label {
                let removed = timeout(GRACE, label.remove()).await;
                if !matches!(removed, Ok(Ok(()))) {
                    tracing::warn!("the Node keeps its label: nvlink-exporter unpublish removes it");
                }
            }
            Ok(())
        }
    }
}

async fn start(
    args: &DevicePluginArgs,
    supervisor: &Supervisor,
) -> anyhow::Result<(Servers, Arc<Proxy>, Option<Label>)> {
    let name = args.source.source.to_string();
    let opener = super::opener(&args.source);
    let mut open: Open = Box::new(move || opener.open());
    let (source, open) = blocking(move || Ok((open()?, open))).await?;
    let node = args.source.node_name.clone().unwrap_or_else(host_name);
    let latest = Arc::new(Latest::new(node, args.stale_after));
    let directories = Directories {
        kubelet: args.kubelet_plugins.clone(),
        vendor: args.vendor_plugins.clone(),
    };
    let proxy = Arc::new(Proxy::new(directories, latest.clone()));
    let web = Web::of_flag(args.config_file.clone()).await?;
    let listeners = web::listen(args.listen_addresses.clone()).await?;
    let router = web.protect(router(Arc::clone(&proxy), supervisor.clone()));
    let servers = Servers::start(listeners, &web, &router).context("serving")?;
    web.keep(supervisor);
    let every = args.collection_interval;
    collect::start(supervisor, name, source, open, every, &latest)?;
    let label = label(args).await?;
    if let Some(label) = label.clone() {
        let proxy = Arc::clone(&proxy);
        supervisor.keep("the label of the Node", Weight::Minor, move || {
            label.clone().keep(Arc::clone(&proxy))
        });
    }
    Ok((servers, proxy, label))
}

async fn label(args: &DevicePluginArgs) -> anyhow::Result<Option<Label>> {
    match args.source.node_name.clone().filter(|_| args.publish) {
        Some(node) => Ok(Some(Label::new(publish::client().await?, node))),
        None => Ok(None),
    }
}

fn router(proxy: Arc<Proxy>, supervisor: Supervisor) -> Router {
    let live = move || async move {
        match supervisor.obstacle() {
            None => "ok\n".into_response(),
            Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason).into_response(),
        }
    };
    Router::new()
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .route("/metrics", get(scrape))
        .with_state(proxy)
}

/// Reports whether device plugins can register, and do.
async fn ready(State(proxy): State<Arc<Proxy>>) -> Response {
    match proxy.obstacle() {
        None => "ok\n".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n").into_response(),
    }
}

async fn scrape(State(proxy): State<Arc<Proxy>>) -> Response {
    match proxy.metrics().map_err(io::Error::other) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
