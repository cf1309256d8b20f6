//! The running webhook: its parts, startup and shutdown.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::{Context, anyhow};
use axum_server::{Handle, tls_rustls::RustlsConfig};
use kube::Client;
use nvlink_runtime::{
    client::{self, Limits},
    lease::{self, Leadership},
    log, signals,
    supervise::Supervisor,
    web::{self, Servers, Web},
};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

mod control;
mod exempt;
mod extend;
mod identity;

pub use control::control;

use control::{Control, First};
use nvlink_admission::{admit::Admission, decide::Settings, view::SharedView};
use nvlink_cluster::{
    authorizer::ClusterAuthorizer, kinds::Informers, mirror::Mirror, watches::Watches,
};

use crate::{
    admission::server::{self, Webhook, listen},
    args::{LogFormat, ProcessArgs, ServeArgs, WebArgs},
    health::{self, Health, Readiness},
    metrics::{Metrics, Parts},
    page::{self, Page},
    recent::Recent,
};

/// Time for open requests after the server stops listening.
const GRACE: Duration = Duration::from_secs(10);

/// Serves until SIGTERM or SIGINT, which it obeys at any moment; a second signal
/// ends the drain.
///
/// # Errors
/// When it cannot start, or a required part ends.
pub async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let mut signals = signals::install().context("cannot handle signals")?;
    log_to_stderr(&args.process)?;
    let (address, linger) = (args.listen, Duration::from_secs(args.drain_seconds));
    let supervisor = Supervisor::default();
    let mut running = tokio::select! {
        started = start(args, &supervisor) => started?,
        failed = supervisor.failed() => return Err(failed.into()),
        signal = signals.received() => {
            tracing::info!(signal, "stopping during startup");
            return Ok(());
        }
    };
    let signal = tokio::select! {
        ended = &mut running.server => return Err(server_ended(ended, address)),
        failed = supervisor.failed() => return Err(failed.into()),
        signal = signals.received() => signal,
    };
    tracing::info!(signal, seconds = linger.as_secs(), "draining");
    tokio::select! {
        ended = running.end(linger) => ended,
        signal = signals.received() => {
            tracing::info!(signal, "stopping without waiting for open requests");
            Ok(())
        }
    }
}

/// The webhook while it accepts requests.
struct Running {
    server: JoinHandle<io::Result<()>>,
    handle: Handle<SocketAddr>,
    readiness: Readiness,
    /// What the controller runs, if it has no process of its own.
    control: Option<Control>,
    /// Tells the clients that the process is leaving.
    leaving: watch::Sender<bool>,
}

impl Running {
    /// Keeps accepting requests for `linger`, until the Service sends no more, and
    /// then waits for open ones.
    async fn end(self, linger: Duration) -> anyhow::Result<()> {
        self.readiness.set(false);
        self.leaving.send_replace(true);
        let resign = async {
            if let Some(control) = &self.control {
                control.end().await;
            }
        };
        tokio::join!(resign, tokio::time::sleep(linger));
        self.handle.graceful_shutdown(Some(GRACE));
        let ended = self.server.await.map_err(io::Error::other).flatten();
        ended.context("the admission server failed during shutdown")
    }
}

/// What each process has.
struct Base<'a> {
    client: Client,
    metrics: Arc<Metrics>,
    readiness: Readiness,
    /// Whether this replica leads; set once the election has started.
    leadership: Arc<OnceLock<Leadership>>,
    settings: Settings,
    view: SharedView,
    informers: Informers,
    supervisor: &'a Supervisor,
}

impl<'a> Base<'a> {
    /// Starts the admin server, with the metrics of these `parts`, and connects to the cluster.
    async fn start(
        args: ProcessArgs,
        parts: Parts,
        supervisor: &'a Supervisor,
    ) -> anyhow::Result<Self> {
        let metrics = Arc::new(Metrics::of(parts));
        let readiness = Readiness::new(Arc::clone(&metrics));
        let leadership = Arc::<OnceLock<Leadership>>::default();
        let health = Health {
            readiness: readiness.clone(),
            supervisor: supervisor.clone(),
            leadership: Arc::clone(&leadership),
        };
        admin(args.admin_listen, health, supervisor).await?;
        Ok(Self {
            client: connect().await?,
            metrics,
            readiness,
            leadership,
            settings: Settings::from(args.scopes),
            view: SharedView::default(),
            informers: Informers::default(),
            supervisor,
        })
    }
}

async fn start(args: ServeArgs, supervisor: &Supervisor) -> anyhow::Result<Running> {
    let parts = match args.without_controller {
        true => Parts::Admission,
        false => Parts::All,
    };
    let base = Base::start(args.process, parts, supervisor).await?;
    let (client, metrics, view) = (&base.client, &base.metrics, &base.view);
    let alone = parts == Parts::All;
    let control = alone.then(|| Control::new(&args.control, &args.tls.trust, &base));
    let (readiness, informers) = (&base.readiness, &base.informers);
    let identity = identity::identity(args.tls, alone, client, readiness, supervisor).await?;
    let watches = Watches::start(informers, view, metrics.cluster());
    let mirror = extend::mirror(&args.web, args.extender, view, informers);
    let recent = show(args.web, mirror.clone(), view, &base.settings, supervisor).await?;
    informers.start(client, supervisor);
    watches.synced().await;
    let leaving = watch::Sender::new(false);
    if let Some(address) = args.extender.extender_listen {
        let leaves = leaving.subscribe();
        extend::serve(
            address, &identity, mirror, view, metrics, supervisor, leaves,
        );
    }
    let webhook = webhook(&base, recent);
    let (server, handle) =
        admit(args.listen, identity.config, webhook, leaving.subscribe()).await?;
    // Only now: no requests must come before the server listens.
    readiness.set(true);
    if let Some(control) = &control {
        let registrar = identity.registrar;
        control.start(registrar.map(|it| (it, First::Listens)), &base);
    }
    Ok(Running {
        server,
        handle,
        readiness: base.readiness,
        control,
        leaving,
    })
}

fn webhook(base: &Base<'_>, recent: Recent) -> Webhook<ClusterAuthorizer> {
    let authorizer = ClusterAuthorizer::new(base.client.clone());
    Webhook {
        admission: Admission {
            view: base.view.clone(),
            authorizer,
            settings: base.settings.clone(),
        },
        metrics: Arc::clone(&base.metrics),
        recent,
    }
}

async fn connect() -> anyhow::Result<Client> {
    let connected = client::connect(Limits::default()).await;
    connected.map_err(|error| anyhow!("no access to the cluster: {}", client::reason(&error)))
}

/// Serves the page, if it has an address. Returns where decisions are kept for it.
async fn show(
    args: WebArgs,
    mirror: Mirror,
    view: &SharedView,
    settings: &Settings,
    supervisor: &Supervisor,
) -> anyhow::Result<Recent> {
    if args.listen_addresses.is_empty() {
        return Ok(Recent::default());
    }
    let web = Web::of_flag(args.config_file).await?;
    let listeners = web::listen(args.listen_addresses).await?;
    let recent = Recent::keeping();
    let host = lease::host();
    let page = Page::new(
        mirror,
        recent.clone(),
        view.clone(),
        settings.clone(),
        &host,
    );
    let router = web.protect(page::server::router(Arc::new(page)));
    let mut servers = Servers::start(listeners, &web, &router).context("cannot serve the page")?;
    web.keep(supervisor);
    supervisor.require("server of the page", async move {
        Err::<(), _>(servers.ended().await)
    });
    Ok(recent)
}

/// Starts the admission server, and waits until it listens.
async fn admit(
    address: SocketAddr,
    config: RustlsConfig,
    webhook: Webhook<ClusterAuthorizer>,
    leaving: watch::Receiver<bool>,
) -> anyhow::Result<(JoinHandle<io::Result<()>>, Handle<SocketAddr>)> {
    let cut_offs = webhook.metrics.cut_offs().clone();
    let router = server::admission_router(Arc::new(webhook));
    let handle = Handle::new();
    let serving = listen::serve(address, config, handle.clone(), router, cut_offs, leaving);
    let mut server = tokio::spawn(serving);
    tokio::select! {
        // `None` if it has failed; then the other branch reports it.
        Some(address) = handle.listening() => {
            tracing::info!(%address, "accepting admission requests");
        }
        ended = &mut server => return Err(server_ended(ended, address)),
    }
    Ok((server, handle))
}

fn server_ended(
    ended: Result<io::Result<()>, tokio::task::JoinError>,
    address: SocketAddr,
) -> anyhow::Error {
    match ended.map_err(io::Error::other).flatten() {
        Ok(()) => anyhow::anyhow!("the admission server on {address} ended"),
        Err(error) => anyhow::Error::new(error).context(format!("cannot serve on {address}")),
    }
}

/// Starts the admin server.
async fn admin(address: SocketAddr, health: Health, supervisor: &Supervisor) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
    tracing::info!(address = %listener.local_addr()?, "serving /metrics, /livez and /readyz");
    let listener = listener.into_std()?;
    let serving = listen::serve_plain(listener, health::admin_router(health));
    supervisor.require("admin server", serving);
    Ok(())
}

fn log_to_stderr(args: &ProcessArgs) -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_new(&args.log)
        .with_context(|| format!("--log {:?} is not a level or filter", args.log))?;
    let format = match args.log_format {
        LogFormat::Text => log::Format::Text,
        LogFormat::Json => log::Format::Json,
    };
    log::start(filter, format, true);
    Ok(())
}
