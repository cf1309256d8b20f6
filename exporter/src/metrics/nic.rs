//! The network devices that jobs use.

use std::fmt;

use nvlink_topology::NodeTopologySpec;

use super::{
    families,
    family::{Label, Value},
    writer::Writer,
};

pub(super) fn write(out: &mut Writer<'_>, spec: &NodeTopologySpec) -> fmt::Result {
    let mut models = spec.gpus.iter().map(|gpu| gpu.model.as_deref());
    let model = models.next().flatten();
    let alike = models.all(|other| other == model);
    let model: Label<'_> = model.filter(|_| alike).into();
    let nics = spec.nics_of_gpus();
    let rates = nics.iter().filter_map(|nic| {
        let bus = nic.pci_bus_id.as_deref()?;
        let labels = [Label::Text(&nic.name), Label::Text(bus), model];
        Some((labels, Value::Whole(nic.rate()?)))
    });
    out.write(&families::NIC_SPEED, rates)
}
