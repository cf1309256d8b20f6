//! Health of the GPUs and of their fabric.

use std::fmt;

use nvlink_source::{FabricState, GpuHealth, Reading};
use nvlink_topology::RecoveryAction;
use strum::IntoEnumIterator;

use super::{
    families,
    family::{Label, Value},
    gpu::{by_index, ids},
    writer::Writer,
};

pub(super) fn write(out: &mut Writer<'_>, data: &Reading) -> fmt::Result {
    let fabrics = || health(data).filter_map(|(ids, one)| Some((ids, one.fabric.as_ref()?)));
    let states = fabrics().flat_map(|([gpu, uuid], fabric)| {
        FabricState::iter().map(move |state| {
            let labels = [gpu, uuid, state.as_str().into()];
            (labels, Value::Whole((state == fabric.state).into()))
        })
    });
    out.write(&families::FABRIC_STATE, states)?;
    let conditions = fabrics().flat_map(|([gpu, uuid], fabric)| {
        fabric.conditions.iter().map(move |&(condition, holds)| {
            let labels = [gpu, uuid, condition.as_str().into()];
            (labels, Value::Whole(holds.into()))
        })
    });
    out.write(&families::FABRIC_HEALTH, conditions)?;
    verdicts(out, data)?;
    xids(out, data)
}

/// Writes what the driver says of the GPUs.
fn verdicts(out: &mut Writer<'_>, data: &Reading) -> fmt::Result {
    let actions = health(data).filter_map(|(ids, one)| Some((ids, one.recovery?)));
    let actions = actions.flat_map(|([gpu, uuid], current)| {
        RecoveryAction::ALL.iter().map(move |&action| {
            let labels = [gpu, uuid, action.as_str().into()];
            (labels, Value::Whole((action == current).into()))
        })
    });
    out.write(&families::RECOVERY_ACTION, actions)?;
    let rows = health(data).flat_map(|([gpu, uuid], one)| {
        one.row_remap.iter().map(move |&(state, holds)| {
            let labels = [gpu, uuid, state.as_str().into()];
            (labels, Value::Whole(holds.into()))
        })
    });
    out.write(&families::ROW_REMAP, rows)
}

/// Writes the XIDs, which come from the driver's events. A lost GPU keeps its
/// XIDs: they often show why it was lost.
fn xids(out: &mut Writer<'_>, data: &Reading) -> fmt::Result {
    let xids = health(data).flat_map(|([gpu, uuid], one)| {
        let xids = one.xids.iter().flatten();
        xids.map(move |&(xid, count)| ([gpu, uuid, xid.into()], Value::Whole(count)))
    });
    let lost = data.lost.iter().flat_map(|gpu| {
        let xids = gpu.xids.iter();
        xids.map(move |&(xid, count)| {
            let labels = [gpu.index.into(), gpu.uuid.as_deref().into(), xid.into()];
            (labels, Value::Whole(count))
        })
    });
    out.write(&families::XID_ERRORS, xids.chain(lost))
}

fn health(data: &Reading) -> impl Iterator<Item = ([Label<'_>; 2], &GpuHealth)> {
    let gpus = &data.topology.spec.gpus;
    data.health
        .iter()
        .filter_map(move |one| Some((ids(by_index(gpus, one.gpu)?), one)))
}
