//! The webhook's own metrics.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use nvlink_cluster::metrics::OptionalGauge;
use nvlink_runtime::connections::CutOffs;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};
use strum::{IntoStaticStr, VariantArray};

mod extender;

pub use extender::{Call, Calls, Verb};

/// The outcome of an admission request, a label with a bounded number of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum Outcome {
    Mutated,
    /// Admitted in a class, and already as it should be.
    Unchanged,
    /// Admitted without a class.
    Untouched,
    Denied,
    /// Could not be parsed.
    Invalid,
    /// Not decided on: there was no time or no room.
    Overloaded,
}

impl EncodeLabelValue for Outcome {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        self.into_str().encode(encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByOutcome {
    outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByRule {
    class: String,
    rule: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByPart {
    part: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReason {
    reason: &'static str,
}

/// The result of reloading a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum Reload {
    #[allow(non_camel_case_types)]
    success,
    #[allow(non_camel_case_types)]
    failure,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByResult {
    result: Reload,
}

/// What a process runs: it shows the metrics of nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// Admission and the controller.
    All,
    /// Admission, the page and the extender.
    Admission,
    /// The queue, the registration and the conditions of classes.
    Controller,
}

/// The metrics and their registry.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<ByOutcome, Counter>,
    denials: Family<ByRule, Counter>,
    duration: Histogram,
    reloads: Family<ByResult, Counter>,
    expiry: Gauge,
    ready: Gauge,
    leader: Gauge,
    registered: OptionalGauge,
    policies: OptionalGauge,
    registration_failures: Counter,
    restarts: Family<ByPart, Counter>,
    dropped: Counter,
    clients: Family<ByReason, Counter>,
    cut_offs: CutOffs,
    cluster: Arc<nvlink_cluster::metrics::Metrics>,
    calls: Calls,
    queue: Arc<nvlink_queue::metrics::Metrics>,
    /// Those of placements, which stand beside the exporter's `nvlink_placement_…`.
    of_placements: Registry,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::of(Parts::All)
    }
}

impl Metrics {
    /// Returns the metrics of a process that runs these parts.
    #[must_use]
    pub fn of(parts: Parts) -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("nvlink_webhook"),
            requests: Family::default(),
            denials: Family::default(),
            duration: Histogram::new([
                0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.1, 0.5,
                1.0, 5.0,
            ]),
            reloads: Family::default(),
            expiry: Gauge::default(),
            ready: Gauge::default(),
            leader: Gauge::default(),
            registered: OptionalGauge::default(),
            policies: OptionalGauge::default(),
            registration_failures: Counter::default(),
            restarts: Family::default(),
            dropped: Counter::default(),
            clients: Family::default(),
            cut_offs: CutOffs::default(),
            cluster: Arc::default(),
            calls: Calls::default(),
            queue: Arc::default(),
            of_placements: Registry::with_prefix("nvlink_placement"),
        };
        metrics.register_process();
        if parts != Parts::Controller {
            metrics.register_admission();
        }
        metrics.cluster.register(&mut metrics.registry);
        if parts != Parts::Admission {
            metrics.register_control();
            let of_placements = &mut metrics.of_placements;
            metrics.queue.register(&mut metrics.registry, of_placements);
        }
        metrics
    }

    fn register_admission(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "admission_requests",
            "Admission requests by outcome; for overloaded ones there is no decision, and the API server applies the failurePolicy",
            self.requests.clone(),
        );
        registry.register(
            "denials",
            "Refused pods by class and by the rule that refuses them; the class is empty if it does not exist",
            self.denials.clone(),
        );
        registry.register_with_unit(
            "admission_duration",
            "Time from the arrival of a request to its response, including the time to read the body",
            Unit::Seconds,
            self.duration.clone(),
        );
        registry.register(
            "certificate_reloads",
            "Reloads of the certificate by result",
            self.reloads.clone(),
        );
        registry.register_with_unit(
            "certificate_expiry_timestamp",
            "When the certificate in use expires, in seconds since 1970",
            Unit::Seconds,
            self.expiry.clone(),
        );
        registry.register(
            "ready",
            "Whether the caches are synced and requests are served",
            self.ready.clone(),
        );
        // Alerts need series that exist from the start.
        for &outcome in Outcome::VARIANTS {
            drop(self.requests.get_or_create(&ByOutcome { outcome }));
        }
        for result in [Reload::success, Reload::failure] {
            drop(self.reloads.get_or_create(&ByResult { result }));
        }
        let registry = &mut self.registry;
        registry.register(
            "clients_cut_off",
            "Clients of the admission endpoint that lost their connection or did not get their response: idle, another client needed the place; full, there was no place; memory, there was no room for the response; slow, the client did not read the response in time",
            self.clients.clone(),
        );
        self.calls.register(registry);
    }

    /// Registers the metrics of what the controller does: the election, the registration, and the
    /// check of the policies.
    fn register_control(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "leader",
            "Whether this replica is the leader, which writes the status of classes",
            self.leader.clone(),
        );
        registry.register(
            "registered",
            "Whether the registration with the API server is as this replica's flags require; absent without --service and --url",
            self.registered.clone(),
        );
        registry.register(
            "registration_failures",
            "Failed attempts to write the registration with the API server",
            self.registration_failures.clone(),
        );
        registry.register(
            "policies_current",
            "Whether the ValidatingAdmissionPolicies of this version are in the cluster, unchanged; absent without --check-policies, and while they cannot be read",
            self.policies.clone(),
        );
    }

    /// Registers the metrics of the process.
    fn register_process(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "part_restarts",
            "How often a part of the program ended unexpectedly and was started again",
            self.restarts.clone(),
        );
        registry.register(
            "log_lines_dropped",
            "Log lines that were dropped because nobody read them in time or they could not be written",
            self.dropped.clone(),
        );
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The running version", build);
    }

    /// Returns the metrics of the scheduler extender.
    #[must_use]
    pub fn extender(&self) -> &Calls {
        &self.calls
    }

    /// Returns the metrics of the cluster's state.
    #[must_use]
    pub fn cluster(&self) -> &Arc<nvlink_cluster::metrics::Metrics> {
        &self.cluster
    }

    /// Returns the metrics of the queue.
    #[must_use]
    pub fn queue(&self) -> &Arc<nvlink_queue::metrics::Metrics> {
        &self.queue
    }

    /// Returns the counts of clients that were cut off.
    #[must_use]
    pub fn cut_offs(&self) -> &CutOffs {
        &self.cut_offs
    }

    pub fn admission(&self, outcome: Outcome, took: Duration) {
        self.requests.get_or_create(&ByOutcome { outcome }).inc();
        self.duration.observe(took.as_secs_f64());
    }

    /// Counts a refusal. `class` exists or is empty: text from users must not become a label value.
    pub fn denial(&self, class: String, rule: &'static str) {
        self.denials.get_or_create(&ByRule { class, rule }).inc();
    }

    /// Counts a reload of the certificate, and whether the new one is in use.
    pub fn certificate(&self, taken: bool) {
        let result = if taken {
            Reload::success
        } else {
            Reload::failure
        };
        self.reloads.get_or_create(&ByResult { result }).inc();
    }

    /// Sets when the certificate in use expires, in seconds since 1970.
    pub fn certificate_expiry(&self, seconds: i64) {
        self.expiry.set(seconds);
    }

    /// Sets whether the webhook is ready.
    pub fn ready(&self, ready: bool) {
        self.ready.set(ready.into());
    }

    /// Records whether the registration could be written.
    pub fn registration(&self, written: bool) {
        self.registered.set(Some(written));
        if !written {
            self.registration_failures.inc();
        }
    }

    /// Records that somebody keeps changing the registration, so that it may be wrong for a while.
    pub fn registration_disputed(&self) {
        self.registered.set(Some(false));
    }

    /// Records whether the cluster has the policies of this version; `None` if that is unknown.
    pub fn policies(&self, current: Option<bool>) {
        self.policies.set(current);
    }

    /// Updates the metrics of the process: whether it leads, the number of dropped
    /// log lines, and the number of restarts of each part.
    pub fn process(&self, leads: bool, dropped: u64, restarts: &[(&'static str, u64)]) {
        self.leader.set(leads.into());
        self.dropped.inner().store(dropped, Ordering::Relaxed);
        for &(part, count) in restarts {
            let counter = self.restarts.get_or_create_owned(&ByPart { part });
            counter.inner().store(count, Ordering::Relaxed);
        }
    }

    /// Returns all metrics in the OpenMetrics text format.
    ///
    /// # Errors
    /// Never in practice: it writes to a string.
    pub fn render(&self) -> Result<String, fmt::Error> {
        self.cluster.age();
        self.queue.age();
        for (why, count) in self.cut_offs.counts() {
            let reason = why.as_str();
            let clients = self.clients.get_or_create_owned(&ByReason { reason });
            clients.inner().store(count, Ordering::Relaxed);
        }
        let mut page = String::new();
        text::encode_registry(&mut page, &self.of_placements)?;
        text::encode(&mut page, &self.registry)?;
        Ok(page)
    }
}
