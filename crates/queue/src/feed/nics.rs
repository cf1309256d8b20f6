//! The NICs that claims ask for with GPUs.

use std::collections::{BTreeMap, BTreeSet};

use nvlink_api::{class::Class, crd::devices};
use nvlink_cluster::gpus::{self, OnNode};
use nvlink_planner::Name;

use super::{Feed, dra::CLAIMABLE};
use crate::{
    notice::NoDriver,
    placement::{Nic, Nics},
};

/// Why a pod that asks for NICs gets none now.
const NONE_GIVEN: &str = "its class gives no NICs (devices.nics) any more: create it anew";
const UNKNOWN: &str = "the NICs of its GPUs are in use, or not known";

/// Returns the name of the set of nodes where claims of a class get GPUs.
pub(super) fn claimable(class: &Class) -> Name {
    let nics = class.nics.as_ref();
    nics.map_or_else(|| CLAIMABLE.into(), with_nics)
}

/// Returns the name of the set of nodes where claims get NICs with each GPU.
fn with_nics(nics: &devices::Nics) -> Name {
    let (count, class) = (nics.per_gpu, &nics.device_class_name);
    format!("nodes with {count} NICs of {class} for each claimable GPU").into()
}

impl Feed {
    /// Returns the sets of nodes with NICs that a node is in.
    pub(super) fn nic_sets(&self, node: &Name, gpus: &OnNode) -> BTreeSet<Name> {
        let classes = self.classes.values();
        let classes = classes.filter_map(|known| known.as_ref().ok());
        let nics = classes.filter_map(|class| class.nics.as_ref());
        let sets: BTreeMap<Name, &devices::Nics> = nics.map(|one| (with_nics(one), one)).collect();
        let devices = self.gpus.devices();
        let there = sets
            .into_iter()
            .filter(|(_, nics)| devices.nics(node, gpus, nics).is_some());
        there.map(|(set, _)| set).collect()
    }

    /// Returns why claims get no such NICs on any node that exists; `None` if they might.
    pub(super) fn lacks_nics(&self, nics: &devices::Nics) -> Option<NoDriver> {
        let devices = self.gpus.devices();
        let class = nics.device_class_name.as_str();
        if !devices.has_class(class) {
            return Some(NoDriver::NoClass(class.into()));
        }
        let mut nodes = devices.listed();
        let found = nodes.any(|node| {
            let gpus = self.gpus.of(node).devices;
            gpus.is_some_and(|gpus| devices.nics(node, &gpus, nics).is_some())
        });
        (!found).then(|| NoDriver::NoNics(class.into()))
    }

    /// Returns the NICs of GPUs of a node, in the given order, that the claim of a pod asks for; `None` if it
    /// asks for none.
    ///
    /// # Errors
    /// When it cannot ask for them now.
    pub fn nics(
        &self,
        pod: &Name,
        node: &Name,
        uuids: &[String],
    ) -> Result<Option<Box<Nics>>, &'static str> {
        if !self.named(pod).is_some_and(|named| named.nics) {
            return Ok(None);
        }
        let class = self.pods.get(pod).and_then(|pod| pod.class.as_deref());
        let class = class.and_then(|name| self.classes.get(name)?.as_ref().ok());
        let wanted = class.and_then(|class| class.nics.as_ref());
        let wanted = wanted.ok_or(NONE_GIVEN)?;
        let gpus = self.gpus.of(node).devices;
        let known = gpus.and_then(|gpus| self.gpus.devices().nics(node, &gpus, wanted));
        let known = known.ok_or(UNKNOWN)?;
        let own = uuids.iter().map(|uuid| known.get(uuid).map(Vec::as_slice));
        let own: Vec<_> = own.collect::<Option<_>>().ok_or(UNKNOWN)?;
        placed(&own).map(|nics| Some(nics.into())).ok_or(UNKNOWN)
    }
}

/// Returns the NICs of GPUs as a placement records them; `None` if a claim has one, or if no single expression
/// can name them.
fn placed(own: &[&[gpus::nics::Nic]]) -> Option<Nics> {
    let (domain, name) = &own.iter().copied().flatten().next()?.attribute;
    let nic = |nic: &gpus::nics::Nic| {
        let same = nic.attribute == (domain.clone(), *name);
        let (at, rdma) = (nic.address.clone(), nic.rdma.clone()?);
        same.then_some(Nic { at, rdma })
    };
    let of_gpus = own.iter().map(|nics| nics.iter().map(nic).collect());
    Some(Nics {
        attribute: (domain.clone(), (*name).to_owned()),
        of_gpus: of_gpus.collect::<Option<_>>()?,
    })
}
