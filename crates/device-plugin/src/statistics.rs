//! The metrics of the process.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prometheus_client::{
    encoding::text,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};

/// Bounds of times in seconds. The goal is less than a millisecond.
const BOUNDS: [f64; 9] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.01, 0.1, 1.0,
];

/// Names of labels with their values.
type Labels<const N: usize> = [(&'static str, String); N];

fn of(resource: &str) -> Labels<1> {
    [("resource", resource.to_owned())]
}

/// Returns the labels of a resource and one more.
fn with(resource: &str, name: &'static str, value: impl ToString) -> Labels<2> {
    [("resource", resource.to_owned()), (name, value.to_string())]
}

/// Who answered what the kubelet asked for its preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub(super) enum By {
    /// The search on the node's graph.
    Search,
    /// The vendor's plugin.
    Vendor,
    /// Nobody: the kubelet takes any.
    Nobody,
}

/// What became of a preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub(super) enum Outcome {
    /// The kubelet allocated what it was told.
    Taken,
    /// It allocated something else.
    Ignored,
}

/// A call to which this program adds something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
pub(super) enum Call {
    #[strum(serialize = "GetPreferredAllocation")]
    Prefer,
    Allocate,
}

/// How a peer of the registration socket left without a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub(super) enum Left {
    /// It made no call that this program could answer.
    Unregistered,
    /// Its registration was refused.
    Refused,
}

/// The metrics.
#[derive(Debug)]
pub(super) struct Statistics {
    registry: Registry,
    node: Family<Labels<1>, Gauge>,
    graph: Gauge,
    registered: Family<Labels<1>, Gauge>,
    registrations: Family<Labels<1>, Counter>,
    failed: Family<Labels<1>, Counter>,
    devices: Family<Labels<2>, Gauge>,
    preferences: Family<Labels<2>, Counter>,
    outcomes: Family<Labels<2>, Counter>,
    duration: Family<Labels<1>, Histogram>,
}

impl Default for Statistics {
    fn default() -> Self {
        let mut this = Self {
            registry: Registry::default(),
            node: Family::default(),
            graph: Gauge::default(),
            registered: Family::default(),
            registrations: Family::default(),
            failed: Family::default(),
            devices: Family::default(),
            preferences: Family::default(),
            outcomes: Family::default(),
            duration: Family::new_with_constructor(|| Histogram::new(BOUNDS)),
        };
        this.register();
        this
    }
}

/// Registers the version, and the time of the start: a process that crashes again and again is registered
/// with the kubelet once each time, so its counter shows no change.
fn register_process(registry: &mut Registry) {
    let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "The program's version", version);
    let start = Gauge::<i64>::default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    start.set(i64::try_from(now).unwrap_or(i64::MAX));
    registry.register_with_unit(
        "start_timestamp",
        "When this process started, since the epoch",
        Unit::Seconds,
        start,
    );
}

impl Statistics {
    fn register(&mut self) {
        let registry = &mut self.registry;
        let registry = registry.sub_registry_with_prefix("nvlink_device_plugin");
        registry.register(
            "node_info",
            "The node of this program; always 1",
            self.node.clone(),
        );
        register_process(registry);
        registry.register(
            "graph_known",
            "Whether the node's NVLinks are known, from a recent reading (1), or the vendor's plugin chooses (0)",
            self.graph.clone(),
        );
        registry.register(
            "registered",
            "Whether the kubelet has the resource from this program (1) or not (0)",
            self.registered.clone(),
        );
        registry.register(
            "registrations",
            "Registrations with the kubelet: one more after each restart of the kubelet, of the vendor's plugin, and of this program",
            self.registrations.clone(),
        );
        registry.register(
            "failed_registrations",
            "Connections of device plugins to this program that ended without a registration, by reason: unregistered, the peer made no call that could be answered; refused, its registration was refused",
            self.failed.clone(),
        );
        registry.register(
            "devices",
            "Devices that the vendor's plugin reports, by health",
            self.devices.clone(),
        );
        registry.register(
            "preferences",
            "Preferences that the kubelet asked for, by who answered: search, this program; vendor, the vendor's plugin (for parts and shares of GPUs, and while the graph is unknown or old); nobody, the kubelet takes any device",
            self.preferences.clone(),
        );
        registry.register(
            "allocations",
            "Allocations after a preference of this program, by outcome: taken, the kubelet allocated these devices; ignored, it allocated others",
            self.outcomes.clone(),
        );
        registry.register_with_unit(
            "added",
            "Time that this program adds to a call of the kubelet, without what the vendor's plugin takes",
            Unit::Seconds,
            self.duration.clone(),
        );
    }

    pub(super) fn registered(&self, resource: &str, is: bool) {
        let of = of(resource);
        self.registered.get_or_create(&of).set(is.into());
        if is {
            self.registrations.get_or_create(&of).inc();
        }
    }

    pub(super) fn left(&self, left: Left) {
        let of = [("reason", left.to_string())];
        self.failed.get_or_create(&of).inc();
    }

    /// Replaces the numbers of devices by health.
    pub(super) fn devices(&self, resource: &str, healthy: usize, unhealthy: usize) {
        for (health, count) in [("Healthy", healthy), ("Unhealthy", unhealthy)] {
            let of = with(resource, "health", health);
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.devices.get_or_create(&of).set(count);
        }
    }

    pub(super) fn preference(&self, resource: &str, by: By) {
        let of = with(resource, "by", by);
        self.preferences.get_or_create(&of).inc();
    }

    pub(super) fn outcome(&self, resource: &str, outcome: Outcome) {
        let of = with(resource, "outcome", outcome);
        self.outcomes.get_or_create(&of).inc();
    }

    pub(super) fn added(&self, call: Call, time: Duration) {
        let of = [("call", call.to_string())];
        let histogram = self.duration.get_or_create(&of);
        histogram.observe(time.as_secs_f64());
    }

    /// Renders the answer to a scrape of this node, whose graph is known or not, in the OpenMetrics
    /// text format.
    pub(super) fn render(&self, node: &str, is_known: bool) -> Result<String, fmt::Error> {
        let of = [("node", node.to_owned())];
        // A source may say another name than the flag.
        self.node.clear();
        self.node.get_or_create(&of).set(1);
        self.graph.set(is_known.into());
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }
}
