//! The effect of faults on the hardware.

use std::collections::BTreeSet;

use nvlink_topology::profile::{self, Profile, peers};

use super::fault::Fault;
use crate::FabricState;

/// What is wrong with a node: the faults, and what they do to the hardware.
#[derive(Clone, Copy)]
pub(super) struct Wrong<'a> {
    pub(super) faults: &'a [Fault],
    pub(super) damage: &'a Damage,
}

/// The parts that do not work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) hardware: profile::Damage,
    /// GPUs that do not answer and of which the driver knows nothing.
    pub(super) absent: BTreeSet<u32>,
    /// State of the fabric, if it is not up.
    pub(super) fabric: Option<FabricState>,
}

impl Damage {
    pub(super) fn new(profile: &Profile, faults: &[Fault]) -> Self {
        let mut damage = Self {
            hardware: profile.damage(),
            ..Self::default()
        };
        let hardware = &mut damage.hardware;
        for fault in faults {
            match *fault {
                Fault::LinkDown {
                    gpu,
                    link,
                    one_sided,
                } => {
                    hardware.down.insert((gpu, link));
                    let far = peers(profile, gpu as usize).nth(link as usize);
                    let far = far.filter(|_| !one_sided);
                    hardware
                        .down
                        .extend(far.map(|(peer, there)| (peer as u32, there)));
                }
                Fault::GpuLost { gpu } | Fault::GpuAbsent { gpu } => {
                    if matches!(fault, Fault::GpuAbsent { .. }) {
                        damage.absent.insert(gpu);
                    }
                    hardware.lost.insert(gpu);
                    let far = peers(profile, gpu as usize);
                    hardware
                        .down
                        .extend(far.map(|(peer, there)| (peer as u32, there)));
                }
                Fault::FabricDown { state } => {
                    hardware.fabric_down = true;
                    damage.fabric = Some(state);
                }
                Fault::NicDown { ref nic } => {
                    hardware.nics_down.insert(nic.clone());
                }
                _ => {}
            }
        }
        damage
    }

    /// Reports whether the GPU answers and reports the link as up.
    pub(super) fn is_up(&self, gpu: u32, link: u32) -> bool {
        self.hardware.is_up(gpu, link)
    }
}
