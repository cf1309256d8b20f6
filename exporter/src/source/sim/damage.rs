//! The effect of faults on the hardware.

use std::collections::BTreeSet;

use super::{
    board::{Profile, peers},
    fault::Fault,
};
use crate::source::FabricState;

/// The parts that do not work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Damage {
    /// GPU and link of each link that its GPU reports as down.
    pub(super) down: BTreeSet<(u32, u32)>,
    /// GPUs that do not answer.
    pub(super) lost: BTreeSet<u32>,
    /// State of the fabric, if it is not up.
    pub(super) fabric: Option<FabricState>,
}

impl Damage {
    pub(super) fn new(profile: &Profile, faults: &[Fault]) -> Self {
        let mut damage = Self {
            down: profile.dead_links.iter().copied().collect(),
            ..Self::default()
        };
        for fault in faults {
            match *fault {
                Fault::LinkDown {
                    gpu,
                    link,
                    one_sided,
                } => {
                    damage.down.insert((gpu, link));
                    let far = peers(profile, gpu as usize).nth(link as usize);
                    let far = far.filter(|_| !one_sided);
                    damage
                        .down
                        .extend(far.map(|(peer, there)| (peer as u32, there)));
                }
                Fault::GpuLost { gpu } => {
                    damage.lost.insert(gpu);
                    let far = peers(profile, gpu as usize);
                    damage
                        .down
                        .extend(far.map(|(peer, there)| (peer as u32, there)));
                }
                Fault::FabricDown { state } => damage.fabric = Some(state),
                _ => {}
            }
        }
        damage
    }

    /// Reports whether the GPU answers and reports the link as up.
    pub(super) fn is_up(&self, gpu: u32, link: u32) -> bool {
        !self.lost.contains(&gpu) && !self.down.contains(&(gpu, link))
    }
}
