//! GPUs: their properties, their missing links, and the totals over their links.

use std::fmt;

use nvlink_source::Reading;
use nvlink_topology::{Gpu, missing_gpus, missing_links};

use super::{
    families,
    family::{Label, Value},
    writer::Writer,
};
use nvlink_history::totals::GpuTotals;

pub(super) fn write(out: &mut Writer<'_>, data: &Reading, all_totals: &[GpuTotals]) -> fmt::Result {
    let gpus = &data.topology.spec.gpus;
    infos(out, data)?;
    // From a part of the graph, the number is not known.
    let whole = data.unread.is_empty();
    let missing = whole.then(|| missing_gpus(&data.topology.spec)).flatten();
    let node = Label::Text(&data.topology.metadata.name);
    let missing = missing.map(|missing| ([node], Value::Whole(missing)));
    out.write(&families::MISSING_GPUS, missing)?;
    let read = || gpus.iter().filter(|gpu| data.is_read(gpu.index));
    let missing =
        read().filter_map(|gpu| Some((ids(gpu), Value::Whole(missing_links(gpu, gpus)?))));
    out.write(&families::MISSING_LINKS, missing)?;
    let speeds = read().filter_map(|gpu| Some((ids(gpu), Value::Whole(gpu.line_rate()?))));
    out.write(&families::GPU_SPEED, speeds)?;
    totals(out, gpus, all_totals)?;
    unhealthy(out, data)
}

fn infos(out: &mut Writer<'_>, data: &Reading) -> fmt::Result {
    let node = &data.topology;
    let gpus = &node.spec.gpus;
    let name = Label::Text(&node.metadata.name);
    let infos = gpus.iter().map(|gpu| {
        let domain = node.spec.domain_of(gpu.index);
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
    out.write(&families::GPU_LOST, lost)
}

fn totals(out: &mut Writer<'_>, gpus: &[Gpu], totals: &[GpuTotals]) -> fmt::Result {
    let all = || {
        let totals = totals.iter();
        totals.filter_map(|one| Some((ids(by_index(gpus, one.gpu)?), one)))
    };
    let bytes = |value: fn(&GpuTotals) -> Option<u64>| {
        all().filter_map(move |(ids, one)| Some((ids, Value::Whole(value(one)?))))
    };
    out.write(&families::GPU_TRANSMIT, bytes(|one| one.transmit_bytes))?;
    out.write(&families::GPU_RECEIVE, bytes(|one| one.receive_bytes))?;
    let errors = all().flat_map(|([gpu, uuid], one)| {
        let errors = one.errors.iter();
        errors.map(move |&(kind, count)| ([gpu, uuid, kind.as_str().into()], Value::Whole(count)))
    });
    out.write(&families::GPU_ERRORS, errors)
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
