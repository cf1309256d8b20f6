//! The source `sim`: a simulated node, for demos, tests and trying out the other
//! parts. Its hardware is data; its counters are a pure function of time and of
//! the faults that are set while it runs.

mod control;
mod counters;
mod damage;
mod errors;
mod fault;
mod health;
mod matrix;

use std::{sync::Arc, time::Duration};

use nvlink_topology::{Invalid, NodeTopology, profile as board};

use self::{
    control::Current,
    counters::Counters,
    damage::{Damage, Wrong},
};
use super::{LostGpu, Reading, Source, SourceError, topo_matrix::Matrix};

pub use self::{
    control::Control,
    fault::{BadFaults, Fault},
};
pub use board::{Profile, names, profile, profiles};

pub(crate) struct SimSource {
    profile: &'static Profile,
    name: String,
    control: Arc<Control>,
    current: Current,
    node: Result<Node, Invalid>,
    counters: Counters,
}

/// The part of a reading that does not change while the faults stay the same.
struct Node {
    topology: NodeTopology,
    matrix: Matrix,
    damage: Damage,
    lost: Vec<LostGpu>,
    warnings: Vec<String>,
}

impl SimSource {
    /// Creates a node of `profile` called `name`.
    #[must_use]
    pub(crate) fn new(profile: &'static Profile, name: &str) -> Self {
        Self {
            profile,
            name: name.to_owned(),
            control: Arc::new(Control::new(profile)),
            current: Current::default(),
            node: Node::new(profile, name, Damage::new(profile, &[])),
            counters: Counters::default(),
        }
    }

    /// Returns the source with the faults of `control`.
    #[must_use]
    pub(crate) fn driven_by(self, control: Arc<Control>) -> Self {
        Self { control, ..self }
    }
}

impl Node {
    fn new(profile: &Profile, name: &str, damage: Damage) -> Result<Self, Invalid> {
        let mut topology = NodeTopology::new(name, profile.spec(name, &damage.hardware));
        let mut warnings = topology.spec.complete(name)?;
        if damage.fabric.is_some() {
            warnings.push(
                "the NVLinks are up, but their fabric is down: no GPU reaches another over them"
                    .to_owned(),
            );
        }
        let matrix = matrix::of(profile, &topology.spec);
        let lost = damage.hardware.lost.difference(&damage.absent);
        let lost = lost.map(|&index| LostGpu {
            index,
            uuid: Some(board::uuid(name, index as usize)),
            pci_bus_id: Some(profile.gpus[index as usize].bus.to_owned()),
            ..LostGpu::default()
        });
        Ok(Self {
            lost: lost.collect(),
            topology,
            matrix,
            damage,
            warnings,
        })
    }
}

impl Source for SimSource {
    fn read(&mut self, now: Duration) -> Result<Reading, SourceError> {
        let (mut current, events, hung) = self.control.wait();
        let used = current.used.take();
        // Time passed while the node hung.
        let now = now.saturating_add(hung);
        if current.version != self.current.version {
            let damage = Damage::new(self.profile, &current.faults);
            self.node = Node::new(self.profile, &self.name, damage);
            self.current = current;
        }
        let node = self.node.as_ref().map_err(|error| SourceError::Invalid {
            name: format!("sim:{}", self.profile.name),
            error: error.clone(),
        })?;
        let gpus = &node.topology.spec.gpus;
        let wrong = Wrong {
            faults: &self.current.faults,
            damage: &node.damage,
        };
        self.counters.reset(&events.resets);
        Ok(Reading {
            counters: self
                .counters
                .read(self.profile, gpus, wrong, used.as_ref(), now),
            health: health::read(self.profile, gpus, wrong, &events),
            lost: node.lost.clone(),
            matrix: Some(node.matrix.clone()),
            warnings: node.warnings.clone(),
            ..Reading::of(node.topology.clone())
        })
    }
}

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod tests;
