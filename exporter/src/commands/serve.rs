//! `serve`.

use std::{
    io,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    allocations,
    args::{PublishArgs, ServeArgs, WebArgs},
    collect, control, log, publish,
    server::{self, Site},
    snapshot::Latest,
    web::{Servers, Web},
};

/// Requests that are under way when the end comes have this long.
const GRACE: Duration = Duration::from_secs(5);

pub(super) fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    log::start(args.log_format);
    let runtime = super::runtime().context("starting")?;
    let result = runtime.block_on(run(args));
    // A source that hangs must not keep the process.
    runtime.shutdown_background();
    result
}

async fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let node = args.source.node_name.as_deref();
    let source = args.source.source.open(node)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let web = args.web.config_file.as_deref();
    let web = web.map_or_else(|| Ok(Web::open()), Web::load)?;
    let listeners = listen(&args.web)?;
    let latest = Arc::new(Latest::new(args.stale_after));
    let publisher = publisher(&args.publish, node, &latest).await?;
    let every = args.collection_interval;
    let allocations =
        allocations::start(&args.allocations, &args.publish, node, every, &latest).await?;
    let name = args.source.source.to_string();
    let mut router = server::router(Site {
        latest: Arc::clone(&latest),
        metrics_path: args.web.telemetry_path.clone(),
        groups: args.collectors.0,
    });
    if let Some(control) = source.control() {
        router = router.merge(control::router(control));
    }
    collect::spawn(name, source, args.collection_interval, &latest)?;
    let mut servers = Servers::start(listeners, &web, &web.protect(router)).context("serving")?;
    let follow = tokio::spawn(web.follow());
    tokio::select! {
        error = servers.ended() => return Err(error).context("serving"),
        _ = terminate.recv() => tracing::info!("SIGTERM: ending"),
        _ = interrupt.recv() => tracing::info!("SIGINT: ending"),
    }
    follow.abort();
    drop(allocations);
    if let Some(publisher) = publisher {
        publisher.abort();
    }
    servers.shut_down(GRACE).await;
    Ok(())
}

/// All addresses, before anything is served on one of them.
fn listen(args: &WebArgs) -> anyhow::Result<Vec<TcpListener>> {
    let bind = |address: &String| {
        let listener = look_up(address).and_then(TcpListener::bind);
        listener.with_context(|| format!("listening on {address}"))
    };
    args.listen_addresses.iter().map(bind).collect()
}

/// One address of a host, IPv4 before IPv6 as programs in Go take it.
fn look_up(address: &str) -> io::Result<SocketAddr> {
    let all: Vec<_> = address.to_socket_addrs()?.collect();
    let first = all.iter().find(|one| one.is_ipv4()).or(all.first());
    first.copied().ok_or_else(|| io::ErrorKind::NotFound.into())
}

async fn publisher(
    args: &PublishArgs,
    node: Option<&str>,
    latest: &Arc<Latest>,
) -> anyhow::Result<Option<tokio::task::JoinHandle<()>>> {
    let Some(node) = node.filter(|_| args.publish) else {
        return Ok(None);
    };
    publish::install_crypto();
    let client = publish::client().await?;
    let publisher = publish::Publisher::new(client, node.to_owned(), args.alias_labels);
    let latest = Arc::clone(latest);
    Ok(Some(tokio::spawn(publish::run(
        publisher,
        latest,
        args.publish_interval,
    ))))
}
