//! The metrics of the process.

use std::{fmt, time::Duration};

use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};

/// Bounds of times in seconds. The goal is less than a millisecond.
const BOUNDS: [f64; 9] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.01, 0.1, 1.0,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    resource: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfNode {
    node: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByAnswer {
    resource: String,
    by: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByOutcome {
    resource: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByHealth {
    resource: String,
    health: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByCall {
    call: &'static str,
}

/// Who answered what the kubelet asked for its preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The search on the node's graph.
    Search,
    /// The vendor's plugin.
    Vendor,
    /// Nobody: the kubelet takes any.
    Nobody,
}

/// What became of a preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The kubelet allocated what it was told.
    Taken,
    /// It allocated something else.
    Ignored,
}

/// A call to which this program adds something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Prefer,
    Allocate,
}

/// How a peer of the registration socket left without a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    node: Family<OfNode, Gauge>,
    graph: Gauge,
    registered: Family<Of, Gauge>,
    registrations: Family<Of, Counter>,
    failed: Family<ByReason, Counter>,
    devices: Family<ByHealth, Gauge>,
    preferences: Family<ByAnswer, Counter>,
    outcomes: Family<ByOutcome, Counter>,
    duration: Family<ByCall, Histogram>,
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

impl Statistics {
    fn register(&mut self) {
        let prefix = "nvlink_device_plugin";
        let registry = &mut self.registry;
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register(format!("{prefix}_build"), "The program's version", version);
        registry.register(
            format!("{prefix}_node_info"),
            "The node of this program; always 1",
            self.node.clone(),
        );
        registry.register(
            format!("{prefix}_graph_known"),
            "Whether the node's NVLinks are known, from a recent reading (1), or the vendor's plugin chooses (0)",
            self.graph.clone(),
        );
        registry.register(
            format!("{prefix}_registered"),
            "Whether the kubelet has the resource from this program (1) or not (0)",
            self.registered.clone(),
        );
        registry.register(
            format!("{prefix}_registrations"),
            "Registrations with the kubelet: one more after each restart of the kubelet, of the vendor's plugin, and of this program",
            self.registrations.clone(),
        );
        registry.register(
            format!("{prefix}_failed_registrations"),
            "Connections of device plugins to this program that ended without a registration, by reason: unregistered, the peer made no call that could be answered; refused, its registration was refused",
            self.failed.clone(),
        );
        registry.register(
            format!("{prefix}_devices"),
            "Devices that the vendor's plugin reports, by health",
            self.devices.clone(),
        );
        registry.register(
            format!("{prefix}_preferences"),
            "Preferences that the kubelet asked for, by who answered: search, this program; vendor, the vendor's plugin (for parts and shares of GPUs, and while the graph is unknown or old); nobody, the kubelet takes any device",
            self.preferences.clone(),
        );
        registry.register(
            format!("{prefix}_allocations"),
            "Allocations after a preference of this program, by outcome: taken, the kubelet allocated these devices; ignored, it allocated others",
            self.outcomes.clone(),
        );
        registry.register_with_unit(
            format!("{prefix}_added"),
            "Time that this program adds to a call of the kubelet, without what the vendor's plugin takes",
            Unit::Seconds,
            self.duration.clone(),
        );
    }

    pub(super) fn registered(&self, resource: &str, is: bool) {
        let of = Of {
            resource: resource.to_owned(),
        };
        self.registered.get_or_create(&of).set(is.into());
        if is {
            self.registrations.get_or_create(&of).inc();
        }
    }

    pub(super) fn left(&self, left: Left) {
        let reason = match left {
            Left::Unregistered => "unregistered",
            Left::Refused => "refused",
        };
        self.failed.get_or_create(&ByReason { reason }).inc();
    }

    /// Replaces the numbers of devices by health.
    pub(super) fn devices(&self, resource: &str, healthy: usize, unhealthy: usize) {
        for (health, count) in [("Healthy", healthy), ("Unhealthy", unhealthy)] {
            let of = ByHealth {
                resource: resource.to_owned(),
                health: health.to_owned(),
            };
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.devices.get_or_create(&of).set(count);
        }
    }

    pub(super) fn preference(&self, resource: &str, by: By) {
        let of = ByAnswer {
            resource: resource.to_owned(),
            by: match by {
                By::Search => "search",
                By::Vendor => "vendor",
                By::Nobody => "nobody",
            },
        };
        self.preferences.get_or_create(&of).inc();
    }

    pub(super) fn outcome(&self, resource: &str, outcome: Outcome) {
        let of = ByOutcome {
            resource: resource.to_owned(),
            outcome: match outcome {
                Outcome::Taken => "taken",
                Outcome::Ignored => "ignored",
            },
        };
        self.outcomes.get_or_create(&of).inc();
    }

    pub(super) fn added(&self, call: Call, time: Duration) {
        let call = match call {
            Call::Prefer => "GetPreferredAllocation",
            Call::Allocate => "Allocate",
        };
        let histogram = self.duration.get_or_create(&ByCall { call });
        histogram.observe(time.as_secs_f64());
    }

    /// Renders the answer to a scrape of this node, whose graph is known or not, in the OpenMetrics
    /// text format.
    pub(super) fn render(&self, node: &str, is_known: bool) -> Result<String, fmt::Error> {
        let of = OfNode {
            node: node.to_owned(),
        };
        // A source may say another name than the flag.
        self.node.clear();
        self.node.get_or_create(&of).set(1);
        self.graph.set(is_known.into());
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }
}
