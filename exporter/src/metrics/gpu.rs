//! GPUs: their properties, and their missing links.

use std::fmt;

use nvlink_topology::{Gpu, missing_links};

use super::{
    families,
    family::{Label, Value},
    writer::Writer,
};
use crate::source::Reading;

pub(super) fn write(out: &mut Writer<'_>, data: &Reading) -> fmt::Result {
    let node = &data.topology;
    let gpus = &node.spec.gpus;
    let name = Label::Text(&node.metadata.name);
    let infos = gpus.iter().map(|gpu| {
        let mut domains = node.spec.domains.iter();
        let domain = domains.find(|one| one.gpus.contains(&gpu.index));
        let labels = [
            gpu.index.into(),
            gpu.uuid.as_deref().into(),
            gpu.pci_bus_id.as_deref().into(),
            gpu.model.as_deref().into(),
            domain.map(|domain| &*domain.id).into(),
            gpu.numa_node.map_or(Label::Unknown, Label::from),
            match gpu.mig_enabled {
                true => "true".into(),
                false if node.spec.knows_mig(gpu) => "false".into(),
                false => Label::Unknown,
            },
            name,
        ];
        (labels, Value::Whole(1))
    });
    out.write(&families::GPU_INFO, infos)?;
    let lost = data.lost.iter().map(|gpu| {
        let labels = [
            gpu.index.into(),
            gpu.uuid.as_deref().into(),
            gpu.pci_bus_id.as_deref().into(),
            name,
        ];
        (labels, Value::Whole(1))
    });
    out.write(&families::GPU_LOST, lost)?;
    let missing = gpus
        .iter()
        .filter(|gpu| data.is_read(gpu.index))
        .filter_map(|gpu| Some((ids(gpu), Value::Whole(missing_links(gpu, gpus)?))));
    out.write(&families::MISSING_LINKS, missing)?;
    unhealthy(out, data)
}

fn unhealthy(out: &mut Writer<'_>, data: &Reading) -> fmt::Result {
    let marked = data.topology.spec.gpus.iter().flat_map(|gpu| {
        let faults = gpu.faults.iter().map(ToString::to_string);
        faults.map(move |fault| (ids(gpu), fault))
    });
    let marked: Vec<_> = marked.collect();
    let marked = marked
        .iter()
        .map(|([gpu, uuid], fault)| [*gpu, *uuid, Label::Text(fault)]);
    let lost = data.lost.iter().map(|gpu| {
        let uuid = gpu.uuid.as_deref();
        [gpu.index.into(), uuid.into(), "lost".into()]
    });
    let series = marked.chain(lost).map(|labels| (labels, Value::Whole(1)));
    out.write(&families::UNHEALTHY, series)
}

/// Returns index and UUID: the labels that identify a GPU.
pub(super) fn ids(gpu: &Gpu) -> [Label<'_>; 2] {
    [gpu.index.into(), gpu.uuid.as_deref().into()]
}

/// Returns the GPU with this index. Its position in the list is nearly always its index.
pub(super) fn by_index(gpus: &[Gpu], index: u32) -> Option<&Gpu> {
    let there = gpus.get(index as usize).filter(|gpu| gpu.index == index);
    there.or_else(|| gpus.iter().find(|gpu| gpu.index == index))
}
