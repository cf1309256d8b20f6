//! The metrics of the scheduler extender.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};
use strum::{IntoStaticStr, VariantArray};

/// A verb of kube-scheduler's extender API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum Verb {
    Filter,
    Prioritize,
}

/// The outcome of a call of the extender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum Call {
    Answered,
    /// Could not be parsed, or was too large.
    Invalid,
    /// There was no time or no room.
    Overloaded,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByCall {
    verb: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByVerb {
    verb: &'static str,
}

/// Buckets of the time of a call, in seconds.
const BUCKETS: [f64; 9] = [0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 2.5];

/// Counts the calls of the extender.
#[derive(Clone, Debug)]
pub struct Calls {
    requests: Family<ByCall, Counter>,
    duration: Family<ByVerb, Histogram, fn() -> Histogram>,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            duration: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
        }
    }
}

impl Calls {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "extender_requests",
            "Calls of the scheduler extender by verb and outcome; those that are not answered leave the pod to the scheduler alone",
            self.requests.clone(),
        );
        registry.register_with_unit(
            "extender_duration",
            "Time from the arrival of a call of the scheduler extender to its response",
            Unit::Seconds,
            self.duration.clone(),
        );
    }

    /// Makes the series: without an extender, there are none.
    pub fn start(&self) {
        for verb in Verb::VARIANTS.iter().map(Verb::into_str) {
            for outcome in Call::VARIANTS.iter().map(Call::into_str) {
                drop(self.requests.get_or_create_owned(&ByCall { verb, outcome }));
            }
            drop(self.duration.get_or_create(&ByVerb { verb }));
        }
    }

    /// Counts a call.
    pub fn count(&self, verb: Verb, outcome: Call, took: Duration) {
        let (verb, outcome) = (verb.into_str(), outcome.into_str());
        let by = ByCall { verb, outcome };
        self.requests.get_or_create_owned(&by).inc();
        let duration = self.duration.get_or_create(&ByVerb { verb });
        duration.observe(took.as_secs_f64());
    }
}
