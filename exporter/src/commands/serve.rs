//! `serve`.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use axum::Router;
use nvlink_collectives::{Inbox, follow::Follower};
use nvlink_runtime::{
    signals,
    supervise::{Supervisor, Weight},
    web::{self, Servers, Web},
};
use nvlink_source::{host_name, sim::Control};

use crate::{
    allocations::{self, ClusterAccess},
    args::ServeArgs,
    collect::{self, Open},
    control, lifecycle, log,
    publish::{self, Publisher},
    release::Release,
    server::{self, Site},
    snapshot::Latest,
    statistics::{Publishing, Statistics},
};

/// Time that requests in progress get when the program stops.
const GRACE: Duration = Duration::from_secs(5);

pub(super) fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    log::start(args.log_format);
    let runtime = super::runtime().context("starting")?;
    let result = runtime.block_on(run(args));
    // A source or a file that hangs must not keep the process running.
    runtime.shutdown_background();
    result
}

async fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let mut signals = signals::install()?;
    let mut servers = tokio::select! {
        servers = start(args) => servers?,
        signal = signals.received() => {
            tracing::info!("received {signal}, stopping");
            return Ok(());
        }
    };
    tokio::select! {
        error = servers.ended() => Err(error).context("serving"),
        signal = signals.received() => {
            tracing::info!("received {signal}, stopping");
            servers.shut_down(GRACE).await;
            Ok(())
        }
    }
}

async fn start(args: &ServeArgs) -> anyhow::Result<Servers> {
    let name = args.source.source.to_string();
    let opener = super::opener(&args.source);
    let control = opener.control().cloned();
    let mut open: Open = Box::new(move || opener.open());
    let (source, open) = blocking(move || Ok((open()?, open))).await?;
    let web = Web::of_flag(args.web.config_file.clone()).await?;
    let listeners = web::listen(args.web.listen_addresses.clone()).await?;
    let inbox = Inbox::default();
    let access = access(args, &inbox).await?;
    let (object, status) = (Publishing::default(), Publishing::default());
    let publishes = args.publish.publish && access.is_some();
    let statistics = Statistics {
        supervisor: Supervisor::default(),
        release: Release::default(),
        cut_offs: web.cut_offs(),
        publishing: match publishes {
            true => vec![
                ("topology", object.clone()),
                ("allocations", status.clone()),
            ],
            false => Vec::new(),
        },
        measures: args.collectives.is_some(),
    };
    let supervisor = statistics.supervisor.clone();
    let node = args.source.node_name.clone().unwrap_or_else(host_name);
    let latest = Latest::new(node, args.stale_after).with(statistics);
    let latest = Arc::new(latest.simulating(control.clone()));
    let every = args.collection_interval;
    if let Some(access) = access.clone().filter(|_| publishes) {
        publish(&supervisor, args, access, &latest, object);
    }
    let recheck = args.publish.publish_interval;
    let statistics = status;
    let keep = publishes.then_some(allocations::Publish {
        recheck,
        statistics,
    });
    if access.is_some() || args.collectives.is_some() {
        measure(&supervisor, args, &latest, inbox);
    }
    allocations::start(&supervisor, &args.allocations, access, keep, every, &latest);
    let router = router(args, &latest, control);
    collect::start(&supervisor, name, source, open, every, &latest)?;
    let servers = Servers::start(listeners, &web, &web.protect(router)).context("serving")?;
    web.keep(&supervisor);
    Ok(servers)
}

fn router(args: &ServeArgs, latest: &Arc<Latest>, control: Option<Arc<Control>>) -> Router {
    let site = Site {
        latest: Arc::clone(latest),
        metrics_path: args.web.telemetry_path.clone(),
        groups: args.collectors.0,
    };
    let release = latest.statistics().release.clone();
    let lifecycle = lifecycle::router(release, args.web.enable_lifecycle);
    let router = server::router(site).merge(lifecycle);
    match control {
        Some(control) => router.merge(control::router(control)),
        None => router,
    }
}

fn publish(
    supervisor: &Supervisor,
    args: &ServeArgs,
    access: ClusterAccess,
    latest: &Arc<Latest>,
    statistics: Publishing,
) {
    let (aliases, recheck) = (args.publish.alias_labels, args.publish.publish_interval);
    let latest = Arc::clone(latest);
    supervisor.keep("the publisher", Weight::Vital, move || {
        let ClusterAccess { client, node, .. } = access.clone();
        let publisher = Publisher::new(client, node, aliases);
        publish::run(publisher, Arc::clone(&latest), recheck, statistics.clone())
    });
}

/// Follows the results of benchmarks.
fn measure(supervisor: &Supervisor, args: &ServeArgs, latest: &Arc<Latest>, inbox: Inbox) {
    let follower = Follower {
        directory: args.collectives.clone(),
        inbox,
        node: latest.clone(),
        interval: args.collection_interval,
    };
    let name = "the reader of benchmark results";
    supervisor.keep(name, Weight::Minor, move || follower.clone().run());
}

/// Runs work that may hang (reading a file on a mount that hangs) on its own thread,
/// so that the program still reacts to signals.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(work).await?
}

/// Returns the access to the Kubernetes API, if it is used.
async fn access(args: &ServeArgs, inbox: &Inbox) -> anyhow::Result<Option<ClusterAccess>> {
    let wanted = args.allocations.kubernetes || args.publish.publish;
    let Some(node) = args.source.node_name.clone().filter(|_| wanted) else {
        return Ok(None);
    };
    let client = publish::client().await?;
    let inbox = inbox.clone();
    Ok(Some(ClusterAccess {
        client,
        node,
        inbox,
    }))
}
