//! What the class of the jobs says.

use nvlink_planner::{Class, Millis, OnTimeout};
use nvlink_topology::Scope;

/// The class of all jobs: what of it the queue acts upon.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// The settings that the planner goes by.
    pub class: Class,
    /// Whether the project that holds the fewest GPUs comes first.
    pub fair_share: bool,
    /// The scope of the GPUs of a pod.
    pub scope: Scope,
    /// The scope of the pods of a job that no node can hold.
    pub gang_scope: Scope,
    /// How long a job may wait, milliseconds, and what happens then; `None`: forever.
    pub timeout: Option<(Millis, OnTimeout)>,
}

impl Default for Rules {
    /// The default settings of a class, but for its scope: a job that needs no domain takes what
    /// is there, as under the other policies.
    fn default() -> Self {
        Self {
            class: Class::default(),
            fair_share: false,
            scope: Scope::Node,
            gang_scope: Scope::Cluster,
            timeout: None,
        }
    }
}
