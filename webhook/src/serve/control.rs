//! What the controller does: the queue, the registration, the conditions of classes, and the check
//! of the policies. It is a process of its own, or a part of the one that serves admission.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use kube::Client;
use nvlink_admission::policies::Site;
use nvlink_cluster::{enforced, status::Writer, watches::Watches};
use nvlink_queue::controller::{Queue, STUCK};
use nvlink_runtime::{
    lease::{self, Candidate, Leadership},
    signals,
    supervise::{Supervisor, Weight},
};
use tokio::sync::watch;

use super::{Base, exempt, log_to_stderr};
use crate::{
    args::{ControlArgs, ControllerArgs, LeaseArgs, TrustArgs},
    certificate::{files, pki::keeper::Keeper},
    metrics::{Metrics, Parts},
    policies::Inspector,
    registration::registrar::{self, Registrar},
};

/// Time to release the Lease.
const RESIGN: Duration = Duration::from_secs(2);

/// Runs the controller until SIGTERM or SIGINT, which it obeys at any moment.
///
/// # Errors
/// When it cannot start, or a required part ends.
pub async fn control(args: ControllerArgs) -> anyhow::Result<()> {
    let mut signals = signals::install().context("cannot handle signals")?;
    log_to_stderr(&args.process)?;
    let supervisor = Supervisor::default();
    let running = tokio::select! {
        started = start(args, &supervisor) => started?,
        failed = supervisor.failed() => return Err(failed.into()),
        signal = signals.received() => {
            tracing::info!(signal, "stopping during startup");
            return Ok(());
        }
    };
    tokio::select! {
        failed = supervisor.failed() => return Err(failed.into()),
        signal = signals.received() => tracing::info!(signal, "stopping"),
    }
    tokio::select! {
        () = running.end() => {}
        _ = signals.received() => {}
    }
    Ok(())
}

async fn start(args: ControllerArgs, supervisor: &Supervisor) -> anyhow::Result<Control> {
    let base = Base::start(args.process, Parts::Controller, supervisor).await?;
    let bundle = bundle(&args.trust, &base).await?;
    let control = Control::new(&args.control, &args.trust, &base);
    let watches = Watches::start(&base.informers, &base.view, base.metrics.cluster());
    base.informers.start(&base.client, supervisor);
    watches.synced().await;
    let exempt = args.trust.exempt.exempt_namespaces;
    let target = args.trust.service.or(args.trust.url);
    let target = target.context("set --service, or --url")?;
    let registrar = Registrar::new(base.client.clone(), target, exempt, bundle);
    control.start(Some((registrar, First::Waits)), &base);
    base.readiness.set(true);
    Ok(control)
}

/// Returns the CAs that the API server must trust, which follow the Secret or the file.
async fn bundle(args: &TrustArgs, base: &Base<'_>) -> anyhow::Result<watch::Receiver<String>> {
    const NAME: &str = "upkeep of the CA";
    let every = Duration::from_secs(args.tls_poll_seconds);
    if let Some(secret) = &args.ca_secret {
        let keeper = Keeper::start(base.client.clone(), secret.clone()).await?;
        let bundle = keeper.bundle();
        base.supervisor
            .keep(NAME, Weight::Vital, move || keeper.clone().follow(every));
        return Ok(bundle);
    }
    let path = args.ca_file.clone();
    let path = path.context("set --ca-secret, or --ca-file")?;
    let sender = watch::Sender::new(files::authority(&path).await?);
    let bundle = sender.subscribe();
    base.supervisor.keep(NAME, Weight::Vital, move || {
        files::follow_authority(path.clone(), every, sender.clone())
    });
    Ok(bundle)
}

/// Whether the first registration waits until a replica of admission listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    /// It does: they are other processes.
    Waits,
    /// This process listens.
    Listens,
}

/// What the controller runs.
pub(super) struct Control {
    candidate: Candidate,
    index: enforced::Keeper,
    writer: Writer,
    queue: Queue,
    /// Tells the registrar that the process is leaving.
    leaving: watch::Sender<bool>,
}

impl Control {
    /// Returns what `args` request, and checks the policies from now on, if a flag says so.
    pub(super) fn new(args: &ControlArgs, trust: &TrustArgs, base: &Base<'_>) -> Self {
        let (client, metrics) = (&base.client, &base.metrics);
        inspect(args, trust, base);
        let exempt = exempt::names(trust, client);
        let namespace = lease_namespace(client, &args.lease, trust);
        let seen = watch::Sender::new(None);
        let sees = seen.subscribe();
        let enforced = watch::Sender::new(None);
        let (knows, fence) = (enforced.subscribe(), enforced.subscribe());
        let heart = base.supervisor.heartbeat("queue", STUCK);
        heart.rest();
        let (informers, settings) = (&base.informers, &base.settings);
        let placeholders = args.placeholders.then(|| namespace.to_owned());
        Self {
            candidate: Candidate::new(
                client.clone(),
                namespace,
                &args.lease.lease_name,
                lease::identity(),
            ),
            index: enforced::Keeper::new(client, enforced, metrics.cluster()),
            writer: Writer::new(
                client,
                &base.view,
                metrics.cluster(),
                exempt,
                settings.clone(),
                sees,
                knows,
            ),
            queue: Queue::new(
                client,
                informers,
                settings,
                metrics.queue(),
                seen,
                fence,
                heart,
            )
            .with_placeholders(placeholders),
            leaving: watch::Sender::new(false),
        }
    }

    /// Starts the registrar, the election, and what only the leader does.
    pub(super) fn start(&self, registrar: Option<(Registrar, First)>, base: &Base<'_>) {
        if let Some((registrar, first)) = registrar {
            let leaves = self.leaving.subscribe();
            register(registrar, first, &base.metrics, base.supervisor, leaves);
        }
        let leads = base.leadership.get_or_init(|| self.candidate.leadership());
        lead(self, leads, base.supervisor);
    }

    /// Stops repairs of the registration, and releases the Lease.
    pub(super) async fn end(&self) {
        // From now on, a deleted registration must stay deleted.
        self.leaving.send_replace(true);
        self.candidate.clone().resign(RESIGN).await;
    }
}

/// Checks the policies of the cluster from now on, if a flag says so.
fn inspect(args: &ControlArgs, trust: &TrustArgs, base: &Base<'_>) {
    if !args.check_policies {
        return;
    }
    let site = Site {
        exempt: trust.exempt.exempt_namespaces.clone(),
        lease_namespace: lease_namespace(&base.client, &args.lease, trust).to_owned(),
    };
    let inspector = Inspector::new(&base.client, site, &base.metrics);
    base.supervisor
        .keep("check of the policies", Weight::Minor, move || {
            inspector.clone().run()
        });
}

/// Maintains the registration until the process `leaves`.
fn register(
    registrar: Registrar,
    first: First,
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
                () = async {
                    if first == First::Waits {
                        heart.rest();
                        registrar.listening().await;
                    }
                    registrar.run(heart, metrics).await;
                } => {}
                // An error means that the process has ended.
                () = async { drop(leaves.wait_for(|&leaves| leaves).await) } => {
                    std::future::pending().await
                }
            }
        }
    });
}

/// Starts the leader election, and the work that only the leader does.
fn lead(control: &Control, leads: &Leadership, supervisor: &Supervisor) {
    let (queue, of_queue) = (control.queue.clone(), leads.clone());
    supervisor.keep("queue", Weight::Minor, move || {
        queue.clone().follow(of_queue.clone())
    });
    let candidate = control.candidate.clone();
    supervisor.keep("election of a leader", Weight::Minor, move || {
        candidate.clone().run()
    });
    let (index, of_index) = (control.index.clone(), leads.clone());
    supervisor.keep("index of the classes", Weight::Minor, move || {
        index.clone().follow(of_index.clone())
    });
    let (writer, leads) = (control.writer.clone(), leads.clone());
    supervisor.keep("writer of the classes' status", Weight::Minor, move || {
        writer.clone().follow(leads.clone())
    });
}

/// Returns the namespace of the Lease of the leader.
fn lease_namespace<'a>(client: &'a Client, args: &'a LeaseArgs, trust: &'a TrustArgs) -> &'a str {
    let secret = trust.ca_secret.as_ref().map(|secret| &secret.namespace);
    let namespace = args.lease_namespace.as_ref().or(secret);
    // In a pod, the default is the service account's namespace.
    namespace.map_or(client.default_namespace(), String::as_str)
}
