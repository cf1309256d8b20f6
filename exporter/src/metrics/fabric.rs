//! Health of the GPUs and of their fabric.

use std::fmt;

use nvlink_history::{Key, xids::XidTimes};
use nvlink_source::{FabricState, GpuHealth, Reading};
use nvlink_topology::RecoveryAction;
use strum::IntoEnumIterator;

use super::{
    families,
    family::{Label, Value},
    gpu::{by_index, ids},
    writer::Writer,
};
use crate::snapshot::Clock;

pub(super) fn write(
    out: &mut Writer<'_>,
    data: &Reading,
    times: &XidTimes,
    clock: Clock,
) -> fmt::Result {
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
    xids(out, data, times, clock)
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
fn xids(out: &mut Writer<'_>, data: &Reading, times: &XidTimes, clock: Clock) -> fmt::Result {
    out.write(
        &families::XID_ERRORS,
        counted(data).map(|one| (one.labels, Value::Whole(one.count))),
    )?;
    let times = counted(data).filter_map(|one| {
        let at = clock.unix(times.at(&one.key, one.xid)?)?;
        Some((one.labels, Value::Whole(at)))
    });
    out.write(&families::XID_TIMESTAMP, times)
}

/// An XID of a GPU.
struct Counted<'a> {
    key: Key,
    labels: [Label<'a>; 3],
    xid: u64,
    count: u64,
}

fn counted(data: &Reading) -> impl Iterator<Item = Counted<'_>> {
    let answering = health(data).flat_map(|(labels, one)| {
        let xids = one.xids.iter().flatten();
        let gpus = &data.topology.spec.gpus;
        let uuid = gpus.iter().find(|gpu| gpu.index == one.gpu);
        let uuid = uuid.and_then(|gpu| gpu.uuid.as_deref());
        xids.map(move |&(xid, count)| (labels, Key::new(one.gpu, uuid), xid, count))
    });
    let lost = data.lost.iter().flat_map(|gpu| {
        let labels = [gpu.index.into(), gpu.uuid.as_deref().into()];
        let xids = gpu.xids.iter();
        xids.map(move |&(xid, count)| (labels, Key::of(gpu), xid, count))
    });
    let all = answering.chain(lost);
    all.map(|([gpu, uuid], key, xid, count)| Counted {
        key,
        labels: [gpu, uuid, xid.into()],
        xid,
        count,
    })
}

fn health(data: &Reading) -> impl Iterator<Item = ([Label<'_>; 2], &GpuHealth)> {
    let gpus = &data.topology.spec.gpus;
    data.health
        .iter()
        .filter_map(move |one| Some((ids(by_index(gpus, one.gpu)?), one)))
}
