//! The metrics of the cluster's state: how current it is, and what is wrong with the nodes of
//! restricted classes.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
    time::Instant,
};

use nvlink_admission::view::View;
use nvlink_topology::labels;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder},
    metrics::{
        MetricType,
        family::Family,
        gauge::{ConstGauge, Gauge},
    },
    registry::{Registry, Unit},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByClass {
    class: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByDomain {
    domain: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByKind {
    kind: &'static str,
}

/// A gauge without a series while its value is unknown.
#[derive(Clone, Debug, Default)]
pub struct OptionalGauge(Arc<Mutex<Option<i64>>>);

impl OptionalGauge {
    /// Sets the value.
    pub fn set(&self, value: Option<bool>) {
        let value = value.map(i64::from);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = value;
    }
}

impl EncodeMetric for OptionalGauge {
    fn encode(&self, encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let value = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        value.map_or(Ok(()), |value| ConstGauge::new(value).encode(encoder))
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

/// The metrics.
#[derive(Debug, Default)]
pub struct Metrics {
    cache_age: Family<ByKind, Gauge<f64, AtomicU64>>,
    untainted: Family<ByClass, Gauge>,
    strays: Family<ByClass, Gauge>,
    fabrics: Family<ByDomain, Gauge>,
    index: OptionalGauge,
    /// Since when the watch of each kind has failed; none while it is in sync.
    failing: Mutex<BTreeMap<&'static str, Option<Instant>>>,
}

impl Metrics {
    /// Registers them.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "cache_age",
            "Seconds since the watch of a kind of object was last in sync; 0 while it is",
            Unit::Seconds,
            self.cache_age.clone(),
        );
        registry.register(
            "untainted_nodes",
            "Nodes of a restricted class that do not have its taint, so any pod may run there; reported by the leader",
            self.untainted.clone(),
        );
        registry.register(
            "stray_pods",
            "Pods that are on nodes with the taint of a restricted class, or are waiting and tolerate it, but were not admitted for it; reported by the leader",
            self.strays.clone(),
        );
        registry.register(
            "fabric_expected_gpus",
            "GPUs that an NVLink fabric has when it is complete, by the label nvlink-domains.io/fabric-gpus of its nodes; reported by the leader",
            self.fabrics.clone(),
        );
        registry.register(
            "index_current",
            "Whether the ClassIndex, which the policies read, has all classes as they are; reported by the leader",
            self.index.clone(),
        );
    }

    /// Sets whether the index of the classes is as it should be; `None` while this replica does not know.
    pub(crate) fn index(&self, current: Option<bool>) {
        self.index.set(current);
    }

    /// Brings the ages up to date.
    pub fn age(&self) {
        let failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        for (&kind, since) in &*failing {
            let age = since.map_or(0.0, |since| since.elapsed().as_secs_f64());
            self.cache_age.get_or_create(&ByKind { kind }).set(age);
        }
    }

    /// Sets what is known of nodes: the findings on each restricted class, the number of nodes without its
    /// taint and, if known, of pods that were not admitted for it; and what the labels of all nodes say.
    pub(crate) fn nodes<'a>(
        &self,
        found: impl IntoIterator<Item = (&'a str, usize, Option<usize>)>,
        view: &View,
    ) {
        self.isolation(found);
        self.expect_gpus(view);
    }

    fn isolation<'a>(&self, found: impl IntoIterator<Item = (&'a str, usize, Option<usize>)>) {
        self.untainted.clear();
        self.strays.clear();
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for (class, untainted, strays) in found {
            let class = ByClass {
                class: class.to_owned(),
            };
            self.untainted.get_or_create(&class).set(number(untainted));
            if let Some(strays) = strays {
                self.strays.get_or_create(&class).set(number(strays));
            }
        }
    }

    /// Sets how many GPUs fabrics have when they are complete, by the labels of their nodes. Where these differ, the
    /// largest number counts.
    fn expect_gpus(&self, view: &View) {
        let mut expected: BTreeMap<String, u32> = BTreeMap::new();
        for name in view.nodes() {
            let label = |key: &str| view.labels(&name)?.get(key);
            let gpus = label(labels::FABRIC_GPUS).and_then(|text| labels::fabric_gpus(text));
            if let (Some(domain), Some(gpus)) = (label(labels::DOMAIN), gpus) {
                let known = expected.entry(domain.clone()).or_default();
                *known = gpus.max(*known);
            }
        }
        self.fabrics.clear();
        for (domain, gpus) in expected {
            let fabric = ByDomain { domain };
            self.fabrics.get_or_create(&fabric).set(gpus.into());
        }
    }

    /// Forgets what only a leader knows.
    pub(crate) fn forget(&self) {
        self.isolation([]);
        self.fabrics.clear();
    }

    /// Records whether the watch of `kind` is in sync.
    pub fn watch(&self, kind: &'static str, follows: bool) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let since = failing.entry(kind).or_default();
        *since = match (follows, *since) {
            (true, _) => None,
            (false, since) => since.or_else(|| Some(Instant::now())),
        };
    }
}
