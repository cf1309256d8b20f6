//! The running webhook: watches, servers, signals.

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context;
use axum_server::Handle;
use kube::Client;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

mod identity;

use crate::{
    admission::admit::Admission,
    admission::server::{self, Webhook, listen},
    args::{LogFormat, ServeArgs},
    authorize::ClusterAuthorizer,
    cluster::Watches,
    cluster::status,
    cluster::view::SharedView,
    health::{self, Readiness},
    metrics::Metrics,
    registration::registrar::Registrar,
};

/// What open requests get after the end of listening.
const GRACE: Duration = Duration::from_secs(10);

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot start, or a part of it ends that should not.
pub async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    log_to_stderr(&args)?;
    let mut stop = std::pin::pin!(stop_signal()?);
    let metrics = Arc::new(Metrics::default());
    let readiness = Readiness::new(Arc::clone(&metrics));
    let admin = admin(args.admin_listen, readiness.clone()).await?;
    let mut admin = std::pin::pin!(admin);
    let client = Client::try_default()
        .await
        .context("cannot find the API server: neither a kubeconfig nor a service account works")?;
    let identity = identity::identity(args.tls, &client, &readiness).await?;
    let view = SharedView::default();
    let mut watches = Watches::start(&client, &view, &metrics);
    tokio::select! {
        () = watches.synced() => {}
        () = &mut stop => return Ok(()),
        error = watches.ended() => return Err(error),
        ended = &mut admin => return Err(ended),
    }

    let authorizer = ClusterAuthorizer::new(client.clone());
    let admission = Admission {
        view,
        authorizer,
        settings: args.scopes.into(),
    };
    let router = server::admission_router(Arc::new(Webhook { admission, metrics }));
    let handle = Handle::new();
    let server = listen::serve(args.listen, identity.config, handle.clone(), router);
    let mut server = std::pin::pin!(server);
    let statuses = status::follow(client.clone());
    let telling = tell(&handle, &readiness, identity.registrar);
    tokio::select! {
        ended = &mut server => return Err(server_ended(ended, args.listen)),
        ended = &mut admin => return Err(ended),
        error = watches.ended() => return Err(error),
        // None of these ends but the last.
        () = telling => {}
        () = identity.upkeep => {}
        () = statuses => {}
        () = &mut stop => {}
    }

    tracing::info!(seconds = args.drain_seconds, "draining");
    readiness.set(false);
    let drained = drain(&handle, Duration::from_secs(args.drain_seconds));
    let (ended, ()) = tokio::join!(server, drained);
    ended.context("the admission server failed while it was shut down")
}

/// Takes requests for a little longer, until nobody sends them here any more,
/// then lets those that are open end.
async fn drain(handle: &Handle<SocketAddr>, linger: Duration) {
    tokio::time::sleep(linger).await;
    handle.graceful_shutdown(Some(GRACE));
}

/// Says that requests are taken, here and then to the cluster: nobody is sent
/// here before there is somebody to answer.
async fn tell(handle: &Handle<SocketAddr>, readiness: &Readiness, registrar: Option<Registrar>) {
    announce(handle, readiness).await;
    match registrar {
        Some(registrar) => registrar.run().await,
        None => std::future::pending().await,
    }
}

async fn announce(handle: &Handle<SocketAddr>, readiness: &Readiness) {
    if let Some(address) = handle.listening().await {
        tracing::info!(%address, "taking admission requests");
        readiness.set(true);
    }
}

fn server_ended(ended: std::io::Result<()>, address: SocketAddr) -> anyhow::Error {
    match ended {
        Ok(()) => anyhow::anyhow!("the admission server on {address} ended"),
        Err(error) => anyhow::Error::new(error).context(format!("cannot serve on {address}")),
    }
}

/// Starts the admin server; the future that comes back never ends but by failure.
async fn admin(
    address: SocketAddr,
    readiness: Readiness,
) -> anyhow::Result<impl Future<Output = anyhow::Error>> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))?;
    tracing::info!(address = %listener.local_addr()?, "serving /metrics, /livez and /readyz");
    let task =
        tokio::spawn(async move { axum::serve(listener, health::admin_router(readiness)).await });
    Ok(async move {
        match task.await {
            Ok(Ok(())) => anyhow::anyhow!("the admin server ended"),
            Ok(Err(error)) => anyhow::Error::new(error).context("the admin server failed"),
            Err(error) => anyhow::Error::new(error).context("the admin server failed"),
        }
    })
}

fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

fn log_to_stderr(args: &ServeArgs) -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_new(&args.log)
        .with_context(|| format!("--log {:?} is not a level or filter", args.log))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let installed = match args.log_format {
        LogFormat::Text => builder
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    installed.map_err(|error| anyhow::anyhow!("cannot start to log: {error}"))
}
