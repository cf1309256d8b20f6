//! `serve`.

use std::{
    io,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use tokio::{
    runtime::Handle,
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};

use crate::{
    allocations::{self, ClusterAccess},
    args::ServeArgs,
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
    // Neither a source that hangs nor a file must keep the process.
    runtime.shutdown_background();
    result
}

async fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let end = async {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM: ending"),
            _ = interrupt.recv() => tracing::info!("SIGINT: ending"),
        }
    };
    tokio::pin!(end);
    let mut running = tokio::select! {
        running = start(args) => running?,
        () = &mut end => return Ok(()),
    };
    tokio::select! {
        error = running.servers.ended() => Err(error).context("serving"),
        () = &mut end => {
            drop(running.tasks);
            running.servers.shut_down(GRACE).await;
            Ok(())
        }
    }
}

/// What runs until the end.
struct Running {
    servers: Servers,
    tasks: JoinSet<()>,
}

async fn start(args: &ServeArgs) -> anyhow::Result<Running> {
    let node = args.source.node_name.clone();
    let spec = args.source.source.clone();
    let name = spec.to_string();
    let source = blocking(move || Ok(spec.open(node.as_deref())?)).await?;
    let file = args.web.config_file.clone();
    let web = blocking(move || Ok(file.map_or_else(|| Ok(Web::open()), |path| Web::load(&path))?));
    let web = web.await?;
    let addresses = args.web.listen_addresses.clone();
    let listeners = blocking(move || listen(&addresses)).await?;
    let latest = Arc::new(Latest::new(args.stale_after));
    let every = args.collection_interval;
    let access = access(args).await?;
    let mut tasks = allocations::start(&args.allocations, access.clone(), every, &latest);
    if let Some(access) = access.filter(|access| access.publish_every.is_some()) {
        let aliases = args.publish.alias_labels;
        let publisher = publish::Publisher::new(access.client, access.node, aliases);
        let recheck = args.publish.publish_interval;
        tasks.spawn(publish::run(publisher, Arc::clone(&latest), recheck));
    }
    let mut router = server::router(Site {
        latest: Arc::clone(&latest),
        metrics_path: args.web.telemetry_path.clone(),
        groups: args.collectors.0,
    });
    if let Some(control) = source.control() {
        router = router.merge(control::router(control));
    }
    collect::spawn(name, source, every, &latest)?;
    let servers = Servers::start(listeners, &web, &web.protect(router)).context("serving")?;
    tasks.spawn(web.follow());
    Ok(Running { servers, tasks })
}

/// What may hang (a name that is looked up, a file on a dead mount) does so on
/// a thread of its own, so that signals are obeyed meanwhile.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(work).await?
}

/// All addresses, before anything is served on one of them.
fn listen(addresses: &[String]) -> anyhow::Result<Vec<TcpListener>> {
    let bind = |address: &String| {
        let listener = look_up(address).and_then(TcpListener::bind);
        listener.with_context(|| format!("listening on {address}"))
    };
    addresses.iter().map(bind).collect()
}

/// One address of a host, IPv4 before IPv6 as programs in Go take it.
fn look_up(address: &str) -> io::Result<SocketAddr> {
    let all: Vec<_> = address.to_socket_addrs()?.collect();
    let first = all.iter().find(|one| one.is_ipv4()).or(all.first());
    first.copied().ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The way to the Kubernetes API, where it is used. A kubeconfig may run a
/// program that asks for credentials, and waits for it.
async fn access(args: &ServeArgs) -> anyhow::Result<Option<ClusterAccess>> {
    let wanted = args.allocations.kubernetes || args.publish.publish;
    let Some(node) = args.source.node_name.clone().filter(|_| wanted) else {
        return Ok(None);
    };
    publish::install_crypto();
    let runtime = Handle::current();
    let client = blocking(move || Ok(runtime.block_on(publish::client())?)).await?;
    let publish = &args.publish;
    Ok(Some(ClusterAccess {
        client,
        node,
        publish_every: publish.publish.then_some(publish.publish_interval),
    }))
}
