//! Which of the devices of a resource a container should get, and in which order it should use
//! them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Mutex, PoisonError},
};

use nvlink_kubelet::devices::{Devices, Part};
use nvlink_topology::{
    BrokenGpus, GpuSet, Graph, NodeTopologySpec, Pattern, Request, Scope, place, sparing,
};

use super::messages::Wish;

/// So many orders are remembered. A node of 16 GPUs has more sets, but a few sizes are usual.
const MOST_ORDERS: usize = 4096;

/// The GPUs of a node and what joins them, at one point in time.
#[derive(Debug)]
pub(super) struct Chooser {
    spec: NodeTopologySpec,
    graph: Graph,
    /// GPUs that come last: the broken ones, and those with MIG, of which a container that gets the
    /// whole GPU can use one slice at most.
    last: GpuSet,
    devices: Devices,
    /// Rank orders that were searched for, as GPU indices.
    orders: Mutex<HashMap<GpuSet, Option<Vec<u32>>>>,
}

/// The order in which a container should use its GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    /// For each rank the number of its GPU among the container's, in the order of their PCI
    /// addresses: what CUDA calls the device with `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
    pub(super) relative: Vec<usize>,
    /// For each rank the UUID of its GPU.
    pub(super) uuids: Vec<String>,
}

impl Chooser {
    /// Returns what chooses among the GPUs of a node; `None` if its NVLinks are not known.
    pub(super) fn new(spec: &NodeTopologySpec) -> Option<Self> {
        let graph = spec.knows_nvlink().then(|| Graph::new(spec).ok())??;
        let mig = spec.gpus.iter().filter(|gpu| gpu.mig_enabled);
        let last: BTreeSet<u32> = spec.broken_gpus().chain(mig.map(|gpu| gpu.index)).collect();
        let last: Vec<u32> = last.into_iter().collect();
        Some(Self {
            last: graph.set(&last).ok()?,
            devices: Devices::of(spec),
            spec: spec.clone(),
            graph,
            orders: Mutex::default(),
        })
    }

    /// Reports whether it was made for such a node.
    pub(super) fn is_of(&self, spec: &NodeTopologySpec) -> bool {
        self.spec == *spec
    }

    /// Returns the UUID of the GPU that a device is, or is a share of.
    pub(super) fn uuid(&self, resource: &str, id: &str) -> Option<String> {
        self.devices.part(resource, id)?;
        let index = self.gpu(resource, id)?;
        self.spec.gpu(index)?.uuid.clone()
    }

    /// Returns the index of a device's GPU.
    fn gpu(&self, resource: &str, id: &str) -> Option<u32> {
        self.devices.plugin(resource, id)
    }

    /// Returns the devices that a container should get, in rank order: of the GPUs that are
    /// available, the best placement that contains those that are required, broken GPUs and those
    /// with MIG last.
    ///
    /// `None` means that the vendor's plugin decides: there are parts or shares of GPUs among the
    /// devices, GPUs that this node does not have, or fewer than wanted. Which GPUs to share is the
    /// vendor's policy: it spreads shares over GPUs, or packs them, and knows how many are taken.
    pub(super) fn prefer(&self, resource: &str, wish: &Wish) -> Option<Vec<String>> {
        let size = usize::try_from(wish.size).ok().filter(|&size| size > 0)?;
        let required = self.by_gpu(resource, &wish.required)?;
        let mut free = self.by_gpu(resource, &wish.available)?;
        if required.len() != wish.required.len() {
            return None;
        }
        free.extend(required.iter().map(|(&gpu, &name)| (gpu, name)));
        let set = |gpus: &BTreeMap<u32, &str>| {
            let gpus: Vec<u32> = gpus.keys().copied().collect();
            self.graph.set(&gpus).ok()
        };
        let request = Request {
            gpus: size,
            free: set(&free)?,
            required: set(&required)?,
            pattern: Pattern::default(),
            scope: Scope::Node,
        };
        let request = sparing(&self.graph, &request, self.last, BrokenGpus::Last).ok()?;
        let placement = place(&self.graph, &request).ok()?;
        let names = placement.gpus.iter().map(|gpu| free.get(gpu));
        names
            .map(|name| name.map(|&name| name.to_owned()))
            .collect()
    }

    /// Returns the first device, by name, of each GPU.
    fn by_gpu<'n>(&self, resource: &str, names: &'n [String]) -> Option<BTreeMap<u32, &'n str>> {
        let mut gpus: BTreeMap<u32, &str> = BTreeMap::new();
        for name in names {
            let whole = self.devices.part(resource, name) == Some(Part::Whole);
            let gpu = whole.then(|| self.gpu(resource, name))??;
            let first = gpus.entry(gpu).or_insert(name);
            *first = (*first).min(name);
        }
        Some(gpus)
    }

    /// Returns the order in which a container should use whole GPUs: neighbours in the ring are
    /// adjacent. `None` if they are not whole, or not of this node.
    pub(super) fn order(&self, resource: &str, names: &[String]) -> Option<Order> {
        let gpus = self.by_gpu(resource, names)?;
        if gpus.is_empty() {
            return None;
        }
        let indices: Vec<u32> = gpus.keys().copied().collect();
        let ranks = self.ranks(self.graph.set(&indices).ok()?)?;
        let mut sorted: Vec<_> = self.spec.gpus.iter().collect();
        sorted.retain(|gpu| gpus.contains_key(&gpu.index));
        // NVML numbers GPUs by PCI address. A source without addresses numbers them so, too.
        sorted.sort_by_key(|gpu| (gpu.pci_bus_id.clone(), gpu.index));
        let relative = |rank: &u32| sorted.iter().position(|gpu| gpu.index == *rank);
        let uuid = |rank: &u32| {
            let gpu = sorted.iter().find(|gpu| gpu.index == *rank)?;
            gpu.uuid.clone()
        };
        Some(Order {
            relative: ranks.iter().map(relative).collect::<Option<_>>()?,
            uuids: ranks.iter().map(uuid).collect::<Option<_>>()?,
        })
    }

    /// Returns the best rank order of GPUs.
    fn ranks(&self, held: GpuSet) -> Option<Vec<u32>> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = orders.get(&held) {
            return known.clone();
        }
        let found = nvlink_topology::search::rate(&self.graph, held, held, Pattern::default());
        let ranks = found.ok().map(|placement| placement.gpus);
        if orders.len() >= MOST_ORDERS {
            orders.clear();
        }
        orders.insert(held, ranks.clone());
        ranks
    }
}

#[cfg(test)]
mod tests {
    use nvlink_source::SourceSpec;
    use nvlink_topology::{Fault, missing_links};

    use super::*;

    const GPU: &str = "nvidia.com/gpu";

    fn spec(profile: &str) -> NodeTopologySpec {
        let source: SourceSpec = format!("sim:{profile}").parse().unwrap();
        let reading = source.open(Some("n")).unwrap().read(Default::default());
        let mut reading = reading.unwrap();
        let gpus = reading.topology.spec.gpus.clone();
        for gpu in &mut reading.topology.spec.gpus {
            if missing_links(gpu, &gpus) > Some(0) {
                gpu.faults.push(Fault::MissingLinks);
            }
        }
        reading.topology.spec
    }

    fn uuids(spec: &NodeTopologySpec, gpus: &[usize]) -> Vec<String> {
        let uuid = |&gpu: &usize| spec.gpus[gpu].uuid.clone().unwrap();
        gpus.iter().map(uuid).collect()
    }

    fn wish(available: &[String], required: &[String], size: i32) -> Wish {
        Wish {
            available: available.to_vec(),
            required: required.to_vec(),
            size,
        }
    }

    #[test]
    fn the_preferred_gpus_are_those_of_place_in_their_order() {
        let spec = spec("dgx1-v100");
        let chooser = Chooser::new(&spec).unwrap();
        let free = uuids(&spec, &[1, 2, 3, 4, 6, 7]);
        let preferred = chooser.prefer(GPU, &wish(&free, &[], 4)).unwrap();
        let request = Request {
            gpus: 4,
            free: chooser.graph.set(&[1, 2, 3, 4, 6, 7]).unwrap(),
            required: GpuSet::EMPTY,
            pattern: Pattern::default(),
            scope: Scope::Node,
        };
        let placed = place(&chooser.graph, &request).unwrap().gpus;
        let placed: Vec<usize> = placed.iter().map(|&gpu| gpu as usize).collect();
        assert_eq!(preferred, uuids(&spec, &placed));

        let required = uuids(&spec, &[4]);
        let preferred = chooser.prefer(GPU, &wish(&free, &required, 2)).unwrap();
        assert!(preferred.contains(&required[0]));
        let indices: Vec<String> = ["1", "2", "3"].map(str::to_owned).into();
        assert!(chooser.prefer(GPU, &wish(&indices, &[], 2)).is_some());
    }

    #[test]
    fn broken_gpus_come_last() {
        let spec = spec("h200-degraded");
        let chooser = Chooser::new(&spec).unwrap();
        let all: Vec<usize> = (0..8).collect();
        let broken: Vec<u32> = spec.broken_gpus().collect();
        let sound = i32::try_from(8 - broken.len()).unwrap();
        let all = uuids(&spec, &all);
        let preferred = chooser.prefer(GPU, &wish(&all, &[], sound)).unwrap();
        let broken: Vec<usize> = broken.iter().map(|&gpu| gpu as usize).collect();
        assert!(!broken.is_empty());
        for uuid in uuids(&spec, &broken) {
            assert!(!preferred.contains(&uuid), "{uuid}");
        }
        assert_eq!(chooser.prefer(GPU, &wish(&all, &[], 8)).unwrap().len(), 8);
    }

    #[test]
    fn shares_of_gpus_are_the_vendor_s_choice() {
        let spec = spec("a100-pcie-pairs");
        let chooser = Chooser::new(&spec).unwrap();
        let uuids = uuids(&spec, &[0, 2, 3]);
        let shares = uuids
            .iter()
            .flat_map(|uuid| [1, 0].map(|share| format!("{uuid}::{share}")));
        let shares: Vec<String> = shares.collect();
        for size in 1..=3 {
            assert_eq!(chooser.prefer(GPU, &wish(&shares, &[], size)), None);
        }
        assert_eq!(chooser.order(GPU, &shares), None);
    }

    #[test]
    fn gpus_with_mig_come_last() {
        let mut spec = spec("dgx1-v100");
        spec.gpus[0].mig_enabled = true;
        let chooser = Chooser::new(&spec).unwrap();
        let all: Vec<usize> = (0..8).collect();
        let all = uuids(&spec, &all);
        for size in [1, 2, 7] {
            let preferred = chooser.prefer(GPU, &wish(&all, &[], size)).unwrap();
            assert!(!preferred.contains(&all[0]), "{preferred:?}");
        }
        assert_eq!(chooser.prefer(GPU, &wish(&all, &[], 8)).unwrap().len(), 8);
    }

    #[test]
    fn the_vendor_answers_what_is_no_whole_gpu_of_this_node() {
        let spec = spec("dgx-h100");
        let chooser = Chooser::new(&spec).unwrap();
        let good = uuids(&spec, &[0, 1]);
        for odd in [
            "MIG-7f3e1b1c-0000-5555-aaaa-123456789abc".to_owned(),
            format!("MIG-{}/1/0", good[0]),
            "0:1".to_owned(),
            "nvidia0/gi2".to_owned(),
            "GPU-foreign".to_owned(),
            "9".to_owned(),
            String::new(),
        ] {
            let mixed = [&good[..], std::slice::from_ref(&odd)].concat();
            assert_eq!(chooser.prefer(GPU, &wish(&mixed, &[], 2)), None, "{odd}");
            assert_eq!(chooser.order(GPU, &mixed), None, "{odd}");
        }
        for size in [0, -1, 3, i32::MAX, i32::MIN] {
            assert_eq!(chooser.prefer(GPU, &wish(&good, &[], size)), None, "{size}");
        }
        // Numbers are GPUs only for NVIDIA's own resources.
        let numbers = ["0".to_owned(), "1".to_owned()];
        assert_eq!(
            chooser.prefer("example.com/card", &wish(&numbers, &[], 2)),
            None
        );
        assert!(
            chooser
                .prefer("example.com/card", &wish(&good, &[], 2))
                .is_some()
        );
    }

    #[test]
    fn an_order_counts_the_container_s_own_gpus() {
        let spec = spec("dgx1-v100");
        let chooser = Chooser::new(&spec).unwrap();
        let order = chooser.order(GPU, &uuids(&spec, &[7, 6, 5, 4])).unwrap();
        let placement = nvlink_topology::search::rate(
            &chooser.graph,
            chooser.graph.set(&[4, 5, 6, 7]).unwrap(),
            chooser.graph.set(&[4, 5, 6, 7]).unwrap(),
            Pattern::default(),
        );
        let ranks = placement.unwrap().gpus;
        let ranks: Vec<usize> = ranks.iter().map(|&gpu| gpu as usize).collect();
        assert_eq!(order.uuids, uuids(&spec, &ranks));
        let relative: Vec<usize> = ranks.iter().map(|gpu| gpu - 4).collect();
        assert_eq!(order.relative, relative);
        assert_eq!(
            chooser.order(GPU, &uuids(&spec, &[3])).unwrap().relative,
            [0]
        );
        assert_eq!(chooser.order(GPU, &[]), None);
    }

    #[test]
    fn without_known_nvlinks_there_is_no_board() {
        let mut spec = spec("dgx-h100");
        spec.edges.clear();
        spec.gpus.iter_mut().for_each(|gpu| gpu.links = None);
        assert!(Chooser::new(&spec).is_none());
    }
}
