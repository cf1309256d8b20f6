//! The source `sim`: a node that is not there, for demos, tests and for trying
//! out the other parts. Its hardware is data; its counters are a pure function of time.

mod board;
mod build;
mod counters;
mod profiles;

use std::time::Duration;

use nvlink_topology::{Invalid, NodeTopology};

use self::profiles::PROFILES;
use super::{Reading, Source, SourceError, topo_matrix::Matrix};

pub use self::board::Profile;

/// Names of all profiles, sorted.
#[must_use]
pub fn names() -> Vec<&'static str> {
    PROFILES.iter().map(|profile| profile.name).collect()
}

/// All profiles, by name.
#[must_use]
pub fn profiles() -> &'static [Profile] {
    PROFILES
}

/// The profile called `name`.
#[must_use]
pub fn profile(name: &str) -> Option<&'static Profile> {
    PROFILES.iter().find(|profile| profile.name == name)
}

/// A simulated node.
pub struct SimSource {
    profile: &'static Profile,
    node: Result<Node, Invalid>,
}

/// What does not move.
struct Node {
    topology: NodeTopology,
    matrix: Matrix,
    warnings: Vec<String>,
}

impl SimSource {
    /// A node of `profile` called `name`.
    #[must_use]
    pub fn new(profile: &'static Profile, name: &str) -> Self {
        Self {
            profile,
            node: Node::new(profile, name),
        }
    }
}

impl Node {
    fn new(profile: &Profile, name: &str) -> Result<Self, Invalid> {
        let mut topology = NodeTopology::new(name, build::spec(profile, name));
        let warnings = topology.spec.complete(name)?;
        let matrix = build::matrix(profile, &topology.spec);
        Ok(Self {
            topology,
            matrix,
            warnings,
        })
    }
}

impl Source for SimSource {
    fn read(&mut self, now: Duration) -> Result<Reading, SourceError> {
        let node = self.node.as_ref().map_err(|error| SourceError::Invalid {
            name: format!("sim:{}", self.profile.name),
            error: error.clone(),
        })?;
        Ok(Reading {
            topology: node.topology.clone(),
            counters: counters::read(self.profile, &node.topology.spec.gpus, now),
            health: Vec::new(),
            lost: Vec::new(),
            matrix: Some(node.matrix.clone()),
            warnings: node.warnings.clone(),
        })
    }
}

#[cfg(test)]
mod tests;
