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
    lease::{self, Candidate, Leadership},
    log, signals,
    supervise::{Supervisor, Weight},
    web::{self, Servers, Web},
};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

mod exempt;
mod extend;
mod identity;

use nvlink_admission::{admit::Admission, decide::Settings, policies::Site, view::SharedView};
use nvlink_cluster::{
    authorizer::ClusterAuthorizer, kinds::Informers, mirror::Mirror, status::Writer,
    watches::Watches,
};
use nvlink_queue::controller::{Queue, STUCK};

use crate::{
    admission::server::{self, Webhook, listen},
    args::{LeaseArgs, LogFormat, ServeArgs, TlsArgs, WebArgs},
    health::{self, Health, Readiness},
    metrics::Metrics,
    page::{self, Page},
    policies::Inspector,
    recent::Recent,
    registration::registrar::{self, Registrar},
};

/// Time for open requests after the server stops listening.
const GRACE: Duration = Duration::from_secs(10);
/// Time to release the Lease.
const RESIGN: Duration = Duration::from_secs(2);

/// Serves until SIGTERM or SIGINT, which it obeys at any moment; a second signal
/// ends the drain.
///
/// # Errors
/// When it cannot start, or a required part ends.
pub async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let mut signals = signals::install().context("cannot handle signals")?;
    log_to_stderr(&args)?;
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
    candidate: Candidate,
    /// Tells the registrar and the clients that the process is leaving.
    leaving: watch::Sender<bool>,
}

impl Running {
    /// Keeps accepting requests for `linger`, until the Service sends no more, and
    /// then waits for open ones.
    async fn end(self, linger: Duration) -> anyhow::Result<()> {
        self.readiness.set(false);
        // From now on, a deleted registration must stay deleted.
        self.leaving.send_replace(true);
        tokio::join!(self.candidate.resign(RESIGN), tokio::time::sleep(linger));
        self.handle.graceful_shutdown(Some(GRACE));
        let ended = self.server.await.map_err(io::Error::other).flatten();
        ended.context("the admission server failed during shutdown")
    }
}

async fn start(args: ServeArgs, supervisor: &Supervisor) -> anyhow::Result<Running> {
    let metrics = Arc::new(Metrics::default());
    let readiness = Readiness::new(Arc::clone(&metrics));
    let leadership = Arc::<OnceLock<Leadership>>::default();
    let health = Health {
        readiness: readiness.clone(),
        supervisor: supervisor.clone(),
        leadership: Arc::clone(&leadership),
    };
    admin(args.admin_listen, health, supervisor).await?;
    let client = connect().await?;
    inspect(&args, &client, &metrics, supervisor);
    let candidate = candidate(&client, &args.lease, &args.tls);
    let exempt = exempt::names(&args.tls, &client);
    let identity = identity::identity(args.tls, &client, &readiness, supervisor).await?;
    let view = SharedView::default();
    let settings = Settings::from(args.scopes);
    let informers = Informers::default();
    let watches = Watches::start(&informers, &view, metrics.cluster());
    let mirror = extend::mirror(&args.web, args.extender, &view, &informers);
    let recent = show(args.web, mirror.clone(), &view, &settings, supervisor).await?;
    informers.start(&client, supervisor);
    watches.synced().await;
    let (writer, queue) = leaders(
        &client, &informers, &view, &settings, &metrics, exempt, supervisor,
    );
    let leaving = watch::Sender::new(false);
    if let Some(address) = args.extender.extender_listen {
        let leaves = leaving.subscribe();
        extend::serve(
            address, &identity, mirror, &view, &metrics, supervisor, leaves,
        );
    }
    let webhook = webhook(&client, view, settings, &metrics, recent);
    let (server, handle) =
        admit(args.listen, identity.config, webhook, leaving.subscribe()).await?;
    // Only now: no requests must come before the server listens.
    readiness.set(true);
    if let Some(registrar) = identity.registrar {
        register(registrar, &metrics, supervisor, leaving.subscribe());
    }
    let leads = leadership.get_or_init(|| candidate.leadership()).clone();
    lead(candidate.clone(), leads, writer, queue, supervisor);
    Ok(Running {
        server,
        handle,
        readiness,
        candidate,
        leaving,
    })
}

/// Returns what only the leader runs: what writes the status of classes, and the queue.
fn leaders(
    client: &Client,
    informers: &Informers,
    view: &SharedView,
    settings: &Settings,
    metrics: &Arc<Metrics>,
    exempt: Vec<String>,
    supervisor: &Supervisor,
) -> (Writer, Queue) {
    let seen = watch::Sender::new(None);
    let sees = seen.subscribe();
    let writer = Writer::new(client, view, metrics.cluster(), exempt, sees);
    let heart = supervisor.heartbeat("queue", STUCK);
    heart.rest();
    let queue = Queue::new(client, informers, settings, metrics.queue(), seen, heart);
    (writer, queue)
}

fn webhook(
    client: &Client,
    view: SharedView,
    settings: Settings,
    metrics: &Arc<Metrics>,
    recent: Recent,
) -> Webhook<ClusterAuthorizer> {
    let authorizer = ClusterAuthorizer::new(client.clone());
    Webhook {
        admission: Admission {
            view,
            authorizer,
            settings,
        },
        metrics: Arc::clone(metrics),
        recent,
    }
}

async fn connect() -> anyhow::Result<Client> {
    let connected = client::connect(Limits::default()).await;
    connected.map_err(|error| anyhow!("no access to the cluster: {}", client::reason(&error)))
}

/// Checks the policies of the cluster from now on, if a flag says so.
fn inspect(args: &ServeArgs, client: &Client, metrics: &Arc<Metrics>, supervisor: &Supervisor) {
    if !args.check_policies {
        return;
    }
    let site = Site {
        exempt: args.tls.exempt.exempt_namespaces.clone(),
        lease_namespace: lease_namespace(client, &args.lease, &args.tls).to_owned(),
        lease_name: args.lease.lease_name.clone(),
    };
    let inspector = Inspector::new(client, site, metrics);
    supervisor.keep("check of the policies", Weight::Minor, move || {
        inspector.clone().run()
    });
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

/// Maintains the registration until the process `leaves`.
fn register(
    registrar: Registrar,
    metrics: &Arc<Metrics>,
    supervisor: &Supervisor,
    leaves: watch::Receiver<bool>,
) {
    const NAME: &str = "registrar";
    let heart = Arc::new(supervisor.heartbeat(NAME, registrar::STUCK));
    let metrics = Arc::clone(metrics);
    supervisor.keep(NAME, Weight::Vital, move || {
        let (registrar, heart, mut leaves) = (registrar.clone(), heart.clone(), leaves.clone());
        let metrics = Arc::clone(&metrics);
        async move {
            tokio::select! {
                () = registrar.run(heart, metrics) => {}
                // An error means that the process has ended.
                () = async { drop(leaves.wait_for(|&leaves| leaves).await) } => {
                    std::future::pending().await
                }
            }
        }
    });
}

/// Starts the leader election, and the work that only the leader does.
fn lead(
    candidate: Candidate,
    leads: Leadership,
    writer: Writer,
    queue: Queue,
    supervisor: &Supervisor,
) {
    let of_queue = leads.clone();
    supervisor.keep("queue", Weight::Minor, move || {
        queue.clone().follow(of_queue.clone())
    });
    supervisor.keep("election of a leader", Weight::Minor, move || {
        candidate.clone().run()
    });
    supervisor.keep("writer of the classes' status", Weight::Minor, move || {
        writer.clone().follow(leads.clone())
    });
}

/// Returns this replica as a candidate in the leader election.
fn candidate(client: &Client, args: &LeaseArgs, tls: &TlsArgs) -> Candidate {
    let namespace = lease_namespace(client, args, tls);
    Candidate::new(
        client.clone(),
        namespace,
        &args.lease_name,
        lease::identity(),
    )
}

/// Returns the namespace of the Lease of the leader.
fn lease_namespace<'a>(client: &'a Client, args: &'a LeaseArgs, tls: &'a TlsArgs) -> &'a str {
    let secret = tls.ca_secret.as_ref().map(|secret| &secret.namespace);
    let namespace = args.lease_namespace.as_ref().or(secret);
    // In a pod, the default is the service account's namespace.
    namespace.map_or(client.default_namespace(), String::as_str)
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

fn log_to_stderr(args: &ServeArgs) -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_new(&args.log)
        .with_context(|| format!("--log {:?} is not a level or filter", args.log))?;
    let format = match args.log_format {
        LogFormat::Text => log::Format::Text,
        LogFormat::Json => log::Format::Json,
    };
    log::start(filter, format, true);
    Ok(())
}
