//! Settings of the planner and of classes.

use std::collections::BTreeMap;

use nvlink_topology::BrokenGpus;

use crate::Name;

/// Settings of the whole queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Whether, among jobs of equal priority, the project that holds the least GPUs comes
    /// first. Without it the oldest job comes first.
    pub fair_share: bool,
    /// How many times the share of others a project gets; 1 for a project that is absent.
    pub shares: BTreeMap<Name, u32>,
    /// For how many waiting jobs a round says when and where they are expected to start. A gang
    /// that is planned over several nodes counts once for each. Beyond, expected starts are lower
    /// bounds.
    pub depth: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            fair_share: false,
            shares: BTreeMap::new(),
            depth: Self::DEPTH,
        }
    }
}

impl Settings {
    /// The default of [`Settings::depth`].
    pub const DEPTH: usize = 1_000;
}

/// Settings of a class. A class that was never set has the default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Class {
    /// How many GPUs one project may hold in this class.
    pub max_gpus_per_project: Option<u32>,
    /// What placements do with broken GPUs.
    pub broken: BrokenGpus,
    /// Whether the pods of a gang that are on one node are one host for NCCL
    /// ([`nvlink_topology::multi_node::Gang::one_host`]).
    pub one_host: bool,
    /// Whether NCCL may not use NVLink between hosts
    /// ([`nvlink_topology::multi_node::Gang::without_fabrics`]).
    pub without_fabrics: bool,
    /// How much a second of waiting costs against a second of running. With a factor, a
    /// job waits for a better placement than it could have now, as long as the expected
    /// wait times the factor is at most the run time that the better placement saves; and it
    /// takes the best placement that it can have now, though another may do less harm.
    /// Without one, a job starts as soon as its scope allows.
    pub waiting_factor: Option<f64>,
}
