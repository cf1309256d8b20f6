//! What administrators say of NVLink fabrics over several nodes.

use std::collections::BTreeMap;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByDomain {
    domain: String,
}

/// The metrics of fabrics.
#[derive(Debug, Default)]
pub struct FabricMetrics {
    expected: Family<ByDomain, Gauge>,
}

impl FabricMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "fabric_expected_gpus",
            "GPUs that an NVLink fabric has when it is complete, by the label nvlink-domains.io/fabric-gpus of its nodes; reported by the leader",
            self.expected.clone(),
        );
    }

    /// Sets how many GPUs fabrics have when they are complete, by domain.
    pub fn expect(&self, gpus: &BTreeMap<String, u32>) {
        self.expected.clear();
        for (domain, gpus) in gpus {
            let domain = domain.clone();
            let gpus = i64::from(*gpus);
            self.expected.get_or_create(&ByDomain { domain }).set(gpus);
        }
    }
}
