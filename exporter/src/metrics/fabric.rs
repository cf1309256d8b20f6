//! How GPUs and their fabric do.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;

use super::{families, family::Value, gpu::ids};
use crate::source::{FabricState, GpuHealth, Reading};

pub(super) fn write(encoder: &mut DescriptorEncoder<'_>, data: &Reading) -> fmt::Result {
    let fabrics = || health(data).filter_map(|(ids, one)| Some((ids, one.fabric.as_ref()?)));
    families::FABRIC_STATE.write(
        encoder,
        fabrics().flat_map(|(ids, fabric)| {
            FabricState::ALL.into_iter().map(move |state| {
                let mut labels = ids.clone();
                labels.push(state.as_str().to_owned());
                (labels, Value::Whole((state == fabric.state).into()))
            })
        }),
    )?;
    families::FABRIC_HEALTH.write(
        encoder,
        fabrics().flat_map(|(ids, fabric)| {
            fabric.conditions.iter().map(move |&(condition, holds)| {
                let mut labels = ids.clone();
                labels.push(condition.as_str().to_owned());
                (labels, Value::Whole(holds.into()))
            })
        }),
    )
}

/// XIDs, which come from the driver's events.
pub(super) fn write_xids(encoder: &mut DescriptorEncoder<'_>, data: &Reading) -> fmt::Result {
    let xids = health(data).flat_map(|(ids, one)| {
        one.xids.iter().flatten().map(move |&(xid, count)| {
            let mut labels = ids.clone();
            labels.push(xid.to_string());
            (labels, Value::Whole(count))
        })
    });
    families::XID_ERRORS.write(encoder, xids)
}

fn health(data: &Reading) -> impl Iterator<Item = (Vec<String>, &GpuHealth)> {
    let gpus = &data.topology.spec.gpus;
    data.health.iter().filter_map(move |one| {
        let gpu = gpus.iter().find(|gpu| gpu.index == one.gpu)?;
        Some((ids(gpu), one))
    })
}
