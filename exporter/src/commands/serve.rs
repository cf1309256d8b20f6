//! `serve`.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

use crate::{
    allocations,
    args::{PublishArgs, ServeArgs},
    collect, control, log, publish, server,
    snapshot::Latest,
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
    let address = args.listen_address;
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("listening on {address}"))?;
    let address = listener.local_addr()?;
    let latest = Arc::new(Latest::default());
    let publisher = publisher(&args.publish, node, &latest).await?;
    let every = args.collection_interval;
    let allocations =
        allocations::start(&args.allocations, &args.publish, node, every, &latest).await?;
    let name = args.source.source.to_string();
    let mut router = server::router(server::Site::new(Arc::clone(&latest)));
    if let Some(control) = source.control() {
        router = router.merge(control::router(control));
    }
    collect::spawn(name, source, args.collection_interval, &latest)?;
    tracing::info!(%address, "serving");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = axum::serve(listener, router).with_graceful_shutdown(async {
        drop(stopped.await);
    });
    let mut server = tokio::spawn(server.into_future());
    tokio::select! {
        ended = &mut server => return ended?.context("serving"),
        _ = terminate.recv() => tracing::info!("SIGTERM: ending"),
        _ = interrupt.recv() => tracing::info!("SIGINT: ending"),
    }
    drop(stop);
    drop(allocations);
    if let Some(publisher) = publisher {
        publisher.abort();
    }
    match tokio::time::timeout(GRACE, server).await {
        Ok(ended) => ended?.context("serving"),
        Err(_) => Ok(()),
    }
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
