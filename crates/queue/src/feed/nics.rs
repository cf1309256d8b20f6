//! The NICs that claims ask for with GPUs.

use std::collections::{BTreeMap, BTreeSet};

use nvlink_admission::decide::claim::most;
use nvlink_api::{class::Class, crd::devices};
use nvlink_cluster::gpus::{self, OfNode, OnNode};
use nvlink_planner::Name;

use super::{Feed, dra::CLAIMABLE, node::Node};
use crate::{
    notice::NoDriver,
    placement::{Nic, Nics},
};

/// Why a pod that asks for NICs gets none now.
const NONE_GIVEN: &str = "its class gives no NICs (devices.nics) any more: create it anew";
const TOO_MANY: &str =
    "its GPUs have more NICs (devices.nics) than its claim can ask for: create smaller pods";
const UNKNOWN: &str = "the NICs of its GPUs, or their RDMA devices, are not known";

/// The NICs of the GPUs of a node by UUID, as far as each has enough.
type OfGpus = BTreeMap<String, Vec<gpus::nics::Nic>>;

/// Returns the name of the set of nodes where claims of a class get GPUs, those that ask for `nics` if it gives
/// some.
pub(super) fn claimable(class: &Class, nics: bool) -> Name {
    let wanted = class.nics.as_ref().filter(|_| nics);
    wanted.map_or_else(|| CLAIMABLE.into(), with_nics)
}

/// Returns the name of the set of nodes where claims get NICs with GPUs.
fn with_nics(nics: &devices::Nics) -> Name {
    let (count, class) = (nics.per_gpu, &nics.device_class_name);
    format!("nodes with {count} NICs of {class} for a claimable GPU").into()
}

impl Feed {
    /// Returns the NICs of the GPUs of a node, by the set of nodes with such NICs, for the classes of the node.
    pub(super) fn nics_of_node(
        &self,
        name: &Name,
        node: &Node,
        gpus: &OnNode,
    ) -> BTreeMap<Name, OfGpus> {
        let classes = self.classes.values();
        let classes = classes.filter_map(|known| known.as_ref().ok());
        let classes = classes.filter(|class| node.is_of(class));
        let nics = classes.filter_map(|class| class.nics.as_ref());
        let sets: BTreeMap<Name, &devices::Nics> = nics.map(|one| (with_nics(one), one)).collect();
        let found = sets
            .into_iter()
            .map(|(set, nics)| (set, self.gpus.nics(name, gpus, nics)));
        found.filter(|(_, of_gpus)| !of_gpus.is_empty()).collect()
    }

    /// Returns the GPUs of a node that claims with NICs cannot get now, and that nobody holds: others have their NICs, or
    /// they have none for any class. Of a pod that has ended, its claim has both, or neither.
    pub(super) fn without_nics(gpus: &OfNode<'_>, nics: &BTreeMap<Name, OfGpus>) -> Vec<u32> {
        let holders = gpus.holders().into_iter();
        let held = holders.filter(|one| one.pod.is_some());
        let held: BTreeSet<u32> = held.flat_map(|one| one.gpus).collect();
        let known = gpus.known().into_iter().flat_map(|known| &known.gpus);
        let known = known.filter(|gpu| !held.contains(&gpu.index));
        let lacks = known.filter(|gpu| {
            let of_set = |of_gpus| {
                gpu.uuid
                    .as_ref()
                    .and_then(|uuid| OfGpus::get(of_gpus, uuid))
            };
            let own: Vec<_> = nics.values().filter_map(of_set).collect();
            let mut all = own.iter().copied().flatten();
            let away = all.any(|nic| nic.held || nic.rdma.is_none());
            away || own.is_empty() && !nics.is_empty()
        });
        lacks.map(|gpu| gpu.index).collect()
    }

    /// Returns why claims of a class get no NICs on any of its nodes; `None` if they might, or if it gives none.
    pub(super) fn lacks_nics(&self, class: &Class) -> Option<NoDriver> {
        let wanted = class.nics.as_ref()?.device_class_name.as_str();
        if !self.gpus.devices().has_class(wanted) {
            return Some(NoDriver::NoClass(wanted.into()));
        }
        let found = self.nic_classes.get_or_init(|| self.find_nic_classes());
        (!found.contains(&class.name)).then(|| NoDriver::NoNics(wanted.into()))
    }

    /// Returns the names of the classes on one of whose nodes a GPU has NICs.
    fn find_nic_classes(&self) -> BTreeSet<String> {
        let classes = self.classes.values();
        let classes = classes.filter_map(|known| known.as_ref().ok());
        let has = |class: &Class, nics: &devices::Nics| {
            let mut nodes = self.gpus.devices().listed();
            nodes.any(|name| {
                let node = self.nodes.get(name);
                let gpus = || self.gpus.of(name).devices;
                node.is_some_and(|node| node.is_of(class))
                    && gpus().is_some_and(|gpus| !self.gpus.nics(name, &gpus, nics).is_empty())
            })
        };
        let found =
            classes.filter(|class| class.nics.as_ref().is_some_and(|nics| has(class, nics)));
        found.map(|class| class.name.clone()).collect()
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
        let given = class.and_then(|class| Some((class, class.nics.as_ref()?)));
        let (class, wanted) = given.ok_or(NONE_GIVEN)?;
        if uuids.len() > most(class) as usize {
            return Err(TOO_MANY);
        }
        let gpus = self.gpus.of(node).devices.ok_or(UNKNOWN)?;
        let known = self.gpus.nics(node, &gpus, wanted);
        let own = uuids.iter().map(|uuid| known.get(uuid).map(Vec::as_slice));
        let own: Vec<_> = own.collect::<Option<_>>().ok_or(UNKNOWN)?;
        let placed = placed(&own, &wanted.device_class_name).ok_or(UNKNOWN)?;
        Ok(Some(placed.into()))
    }
}

/// Returns the NICs of GPUs as a placement records them; `None` if the name of one is not known, or if no single
/// expression can name them.
fn placed(own: &[&[gpus::nics::Nic]], device_class: &str) -> Option<Nics> {
    let first = own.iter().copied().flatten().next()?;
    let (domain, name) = &first.attribute;
    let nic = |nic: &gpus::nics::Nic| {
        let same = nic.driver == first.driver && nic.attribute == first.attribute;
        let (at, rdma) = (nic.address.clone(), nic.rdma.clone()?);
        same.then_some(Nic { at, rdma })
    };
    let of_gpus = own.iter().map(|nics| nics.iter().map(nic).collect());
    Some(Nics {
        device_class: device_class.to_owned(),
        driver: first.driver.clone(),
        attribute: (domain.clone(), (*name).to_owned()),
        of_gpus: of_gpus.collect::<Option<_>>()?,
    })
}
