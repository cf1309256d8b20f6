//! The health of the simulated GPUs and of their fabric.

use std::collections::BTreeMap;

use nvlink_topology::{Gpu, profile::Profile};

use super::{damage::Damage, fault::Fault};
use crate::source::{FabricCondition, FabricHealth, FabricState, GpuHealth};

const CONDITIONS: [FabricCondition; 5] = [
    FabricCondition::DegradedBandwidth,
    FabricCondition::RouteRecovery,
    FabricCondition::RouteUnhealthy,
    FabricCondition::AccessTimeoutRecovery,
    FabricCondition::IncorrectConfiguration,
];

/// Returns the health of each of `gpus`. `xids` are the counts so far, by GPU and XID.
pub(super) fn read(
    profile: &Profile,
    gpus: &[Gpu],
    (faults, damage): (&[Fault], &Damage),
    xids: &BTreeMap<(u32, u64), u64>,
) -> Vec<GpuHealth> {
    let health = |gpu: &Gpu| GpuHealth {
        gpu: gpu.index,
        fabric: profile.knows_fabric().then(|| fabric(gpu, faults, damage)),
        xids: Some(
            xids.iter()
                .filter(|((at, _), _)| *at == gpu.index)
                .map(|(&(_, xid), &count)| (xid, count))
                .collect(),
        ),
    };
    gpus.iter().map(health).collect()
}

fn fabric(gpu: &Gpu, faults: &[Fault], damage: &Damage) -> FabricHealth {
    let reported = |condition: FabricCondition| {
        faults.contains(&Fault::FabricCondition {
            gpu: gpu.index,
            condition,
        })
    };
    let holds = |condition| match condition {
        FabricCondition::DegradedBandwidth => {
            gpu.links.iter().flatten().any(|link| !link.up) || reported(condition)
        }
        _ => reported(condition),
    };
    FabricHealth {
        state: damage.fabric.unwrap_or(FabricState::Completed),
        // Until the registration completes, no conditions are reported.
        conditions: match damage.fabric {
            Some(_) => Vec::new(),
            None => CONDITIONS.map(|one| (one, holds(one))).to_vec(),
        },
    }
}
