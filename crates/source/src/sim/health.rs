//! The health of the simulated GPUs and of their fabric.

use nvlink_topology::{Gpu, RecoveryAction, generation::Generation, profile::Profile};
use strum::IntoEnumIterator;

use super::{
    control::Events,
    damage::{Damage, Wrong},
    errors,
    fault::Fault,
};
use crate::{FabricCondition, FabricHealth, FabricState, GpuHealth, RowRemap};

/// Reports whether the driver reports recovery actions and the remapping of rows: from Ampere
/// on. Of other GPUs it reports only XIDs.
pub(super) fn has_verdict(profile: &Profile) -> bool {
    Generation::of_model(profile.model).is_none_or(|one| one.compute_capability >= 80)
}

/// Returns the health of each of `gpus`.
pub(super) fn read(
    profile: &Profile,
    gpus: &[Gpu],
    Wrong { faults, damage }: Wrong<'_>,
    events: &Events,
) -> Vec<GpuHealth> {
    let told = has_verdict(profile);
    let health = |gpu: &Gpu| GpuHealth {
        gpu: gpu.index,
        fabric: profile.knows_fabric().then(|| fabric(gpu, faults, damage)),
        recovery: told.then(|| recovery(profile, gpu.index, faults, events)),
        row_remap: match told {
            true => row_remap(gpu.index, faults),
            false => Vec::new(),
        },
        xids: Some(
            events
                .xids
                .iter()
                .filter(|((at, _), _)| *at == gpu.index)
                .map(|(&(_, xid), &count)| (xid, count))
                .collect(),
        ),
    };
    gpus.iter().map(health).collect()
}

/// Returns the action of the faults, else that of the board, which the first reset ends.
fn recovery(profile: &Profile, gpu: u32, faults: &[Fault], events: &Events) -> RecoveryAction {
    let set = faults.iter().find_map(|fault| match *fault {
        Fault::RecoveryAction { gpu: of, action } if of == gpu => Some(action),
        _ => None,
    });
    let board = || {
        let mut actions = errors::actions(profile).iter();
        let (_, action) = actions.find(|(of, _)| *of == gpu)?;
        (!events.resets.contains_key(&gpu)).then_some(*action)
    };
    set.or_else(board).unwrap_or(RecoveryAction::None)
}

fn row_remap(gpu: u32, faults: &[Fault]) -> Vec<(RowRemap, bool)> {
    let holds = |state| faults.contains(&Fault::RowRemap { gpu, state });
    [RowRemap::Pending, RowRemap::Failed]
        .map(|state| (state, holds(state)))
        .to_vec()
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
            None => FabricCondition::iter()
                .map(|one| (one, holds(one)))
                .collect(),
        },
    }
}
