//! One GPU, asked for everything that it says of itself.

use std::{collections::BTreeMap, path::Path, time::Duration};

use nvlink_topology::Gpu;
use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{NVML_AFFINITY_SCOPE_NODE, field_id::*};

use super::{
    Session, address,
    counters::{Choices, Traffic},
    error::{Trouble, known},
    fields::{Answers, Era, bytes_per_second, old_speed_field},
    gpm::Rate,
    graph::{FarEnd, GpuFacts, LinkFacts},
    raw,
};
use crate::source::LinkCounters;

/// The PCI devices that the kernel knows.
const PCI_DEVICES: &str = "/sys/bus/pci/devices";
/// More NUMA nodes than any machine has, in words of the mask.
const NUMA_WORDS: usize = 16;
/// The largest number of links that is believed; NVML's own limit is 36.
const MOST_LINKS: u64 = 64;

/// What does not change as long as the library is loaded.
#[derive(Clone, Debug)]
pub(super) struct Fixed {
    /// PCI address in NVML's spelling.
    pub(super) bus_id: Option<String>,
    model: Option<String>,
    numa_node: Option<u32>,
    era: Era,
    /// PCIe generation and width.
    pub(super) pcie: Option<(u32, u32)>,
}

/// What is remembered of GPUs, by UUID.
#[derive(Debug, Default)]
pub(super) struct Memory {
    fixed: BTreeMap<String, Fixed>,
    /// Far ends of links that have been up ever since they were asked: each
    /// costs two calls, and a cable is not moved while it carries traffic.
    far: BTreeMap<(String, u32), FarEnd>,
}

/// A GPU that answered.
pub(super) struct Answered {
    /// Its UUID, else its address or index: what it is remembered by.
    pub(super) key: String,
    /// What it says of itself.
    pub(super) facts: GpuFacts,
    /// PCIe generation and width.
    pub(super) pcie: Option<(u32, u32)>,
    /// The moving parts of its links.
    pub(super) counters: Vec<LinkCounters>,
    /// Its XIDs are counted.
    pub(super) watched: bool,
}

/// Asks the GPU of index `index`.
///
/// # Errors
/// When it, or the library, is lost.
pub(super) fn read(
    session: &mut Session,
    choices: &mut Choices,
    device: &Device<'_>,
    index: u32,
    now: Duration,
) -> Result<Answered, Trouble> {
    let uuid = known(device.uuid())?;
    let key = uuid.clone().unwrap_or_else(|| format!("index {index}"));
    let fixed = match session.memory.fixed.get(&key) {
        Some(fixed) => fixed.clone(),
        None => {
            let fixed = fixed(device)?;
            session.memory.fixed.insert(key.clone(), fixed.clone());
            fixed
        }
    };
    let mig_enabled = known(device.mig_mode())?.is_some_and(|mode| mode.current == 1);
    let watched = session
        .events
        .watch(&session.library.loaded, device, &key)?;
    // A GPU that MIG splits reports its links as down: it says so instead.
    let (links, counters) = match mig_enabled {
        true => (None, Vec::new()),
        false => match link_count(device)? {
            Some(count) => {
                let mut reader = Reader {
                    session,
                    device,
                    key: &key,
                    index,
                    count,
                    era: fixed.era,
                };
                let (links, counters) = reader.links(choices, now)?;
                (Some(links), counters)
            }
            None => (None, Vec::new()),
        },
    };
    let gpu = Gpu {
        index,
        uuid,
        pci_bus_id: fixed.bus_id,
        model: fixed.model,
        numa_node: fixed.numa_node,
        mig_enabled,
        links: None,
    };
    let fabric = known(raw::fabric_info(device))?;
    Ok(Answered {
        key,
        facts: GpuFacts { gpu, links, fabric },
        pcie: fixed.pcie,
        counters,
        watched,
    })
}

fn fixed(device: &Device<'_>) -> Result<Fixed, Trouble> {
    let bus_id = known(device.pci_info())?.and_then(|info| address::normal(&info.bus_id));
    let generation = known(device.max_pcie_link_gen())?.filter(|&n| n > 0);
    let width = known(device.max_pcie_link_width())?.filter(|&n| n > 0);
    let capability = known(device.cuda_compute_capability())?;
    Ok(Fixed {
        model: known(device.name())?,
        numa_node: numa_node(device, bus_id.as_deref())?,
        bus_id,
        era: Era::of(capability.map(|one| one.major)),
        pcie: generation.zip(width),
    })
}

/// The NUMA node that the GPU is attached to, the lowest of several. (The
/// call named after NUMA nodes tells that of the GPU's own memory, where it is one.)
fn numa_node(device: &Device<'_>, bus_id: Option<&str>) -> Result<Option<u32>, Trouble> {
    let mask = known(device.memory_affinity(NUMA_WORDS, NVML_AFFINITY_SCOPE_NODE))?;
    let lowest = mask.and_then(|mask| {
        let word = mask.iter().position(|&word| word != 0)?;
        Some(word as u32 * std::ffi::c_ulong::BITS + mask[word].trailing_zeros())
    });
    let kernel = || address::numa_node(Path::new(PCI_DEVICES), bus_id?);
    Ok(lowest.or_else(kernel))
}

/// How many links the GPU has; `None` where the driver cannot tell.
fn link_count(device: &Device<'_>) -> Result<Option<u32>, Trouble> {
    use nvml_wrapper::error::NvmlError;
    let count = raw::field_values(device, &[(NVML_FI_DEV_NVLINK_LINK_COUNT, 0)]);
    let Some(answers) = known(count)? else {
        return Ok(None);
    };
    match answers.into_iter().next() {
        Some(Ok(count)) => Ok(Some(count.min(MOST_LINKS) as u32)),
        Some(Err(NvmlError::NotSupported)) => Ok(Some(0)),
        Some(Err(error)) => Ok(known::<u32>(Err(error))?),
        None => Ok(None),
    }
}

/// Reads the links of one GPU.
struct Reader<'a, 'nvml> {
    session: &'a mut Session,
    device: &'a Device<'nvml>,
    key: &'a str,
    index: u32,
    count: u32,
    era: Era,
}

impl Reader<'_, '_> {
    fn links(
        &mut self,
        choices: &mut Choices,
        now: Duration,
    ) -> Result<(Vec<LinkFacts>, Vec<LinkCounters>), Trouble> {
        let answers = Answers::ask(self.device, self.count, self.era.link_fields())?;
        let mut links = Vec::with_capacity(self.count as usize);
        for link in 0..self.count {
            links.push(self.link(&answers, link)?);
        }
        self.old_speeds(&mut links)?;
        let rates = self.rates(choices, &links, now)?;
        let mut counters = Vec::with_capacity(self.count as usize);
        for link in 0..self.count {
            let mut traffic = Traffic::of(&answers, link);
            if let Some(rate) = rates.get(link as usize) {
                traffic.gpm = rate.flow;
                traffic.gpm_moved_before = rate.moved_before;
            }
            counters.extend(self.counters(choices, &answers, &traffic, link)?);
        }
        Ok((links, counters))
    }

    fn link(&mut self, answers: &Answers, link: u32) -> Result<LinkFacts, Trouble> {
        let wrapper = self.device.link_wrapper_for(link);
        let up = match answers.up(link) {
            Some(up) => up,
            // A link that is switched off answers "not supported".
            None => known(wrapper.is_active())?.unwrap_or_default(),
        };
        let at = (self.key.to_owned(), link);
        let memory = &mut self.session.memory.far;
        let far = match (up, memory.get(&at)) {
            (false, _) => {
                memory.remove(&at);
                FarEnd::default()
            }
            (true, Some(far)) => far.clone(),
            (true, None) => {
                let far = far_end(self.device, link)?;
                if far.address.is_some() || far.device_type == Some(2) {
                    memory.insert(at, far.clone());
                }
                far
            }
        };
        Ok(LinkFacts {
            index: link,
            up,
            bytes_per_second: answers.speed(link),
            far,
        })
    }

    /// Speeds from the fields that older drivers have instead: the common one
    /// of all active links, then one of each link.
    fn old_speeds(&self, links: &mut [LinkFacts]) -> Result<(), Trouble> {
        let lacks = |link: &LinkFacts| link.up && link.bytes_per_second.is_none();
        if !links.iter().any(lacks) {
            return Ok(());
        }
        let mut wanted = vec![(NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, 0)];
        let old = links.iter().filter_map(|link| old_speed_field(link.index));
        wanted.extend(old.map(|id| (id, 0)));
        let Some(values) = known(raw::field_values(self.device, &wanted))? else {
            return Ok(());
        };
        let mut speeds = Vec::with_capacity(values.len());
        for value in values {
            speeds.push(bytes_per_second(known(value)?));
        }
        let common = speeds.first().copied().flatten();
        for link in links.iter_mut().filter(|link| lacks(link)) {
            let own = speeds.get(1 + link.index as usize).copied().flatten();
            link.bytes_per_second = common.or(own);
        }
        Ok(())
    }

    /// Rates of the links, sampled only while some link needs them.
    fn rates(
        &mut self,
        choices: &Choices,
        links: &[LinkFacts],
        now: Duration,
    ) -> Result<Vec<Rate>, Trouble> {
        use crate::source::CounterSource::Gpm;
        let needs = |link: &LinkFacts| {
            link.up && matches!(choices.get(self.key, link.index), None | Some(Gpm))
        };
        if self.era == Era::Ampere || !links.iter().any(needs) {
            self.session.gpm.forget(self.key);
            return Ok(Vec::new());
        }
        let library = &self.session.library.loaded;
        let gpm = &mut self.session.gpm;
        let rates = gpm.rates(library, self.device, self.key, self.count, now)?;
        Ok(rates.to_vec())
    }

    /// What is counted of a link, if anything is.
    fn counters(
        &self,
        choices: &mut Choices,
        answers: &Answers,
        traffic: &Traffic,
        link: u32,
    ) -> Result<Option<LinkCounters>, Trouble> {
        let empty = LinkCounters {
            gpu: self.index,
            link,
            ..LinkCounters::default()
        };
        let mut counters = empty.clone();
        choices.apply(self.key, traffic, &mut counters);
        counters.errors = answers.errors(link);
        counters.bit_error_ratios = answers.bit_error_ratios(link);
        if counters.bit_error_ratios.is_empty() {
            for &(kind, number) in self.era.error_calls() {
                if !counters.errors.iter().any(|(one, _)| *one == kind) {
                    let count = known(raw::error_counter(self.device, link, number))?;
                    counters.errors.extend(count.map(|count| (kind, count)));
                }
            }
            counters.errors.sort_unstable();
        }
        Ok((counters != empty).then_some(counters))
    }
}

fn far_end(device: &Device<'_>, link: u32) -> Result<FarEnd, Trouble> {
    let info = known(device.link_wrapper_for(link).remote_pci_info())?;
    let address = info.and_then(|info| address::normal(&info.bus_id));
    let device_type = known(raw::remote_type(device, link))?;
    let is_switch = match (&address, device_type) {
        (Some(address), None | Some(0xff)) => address::is_switch(Path::new(PCI_DEVICES), address),
        _ => false,
    };
    Ok(FarEnd {
        device_type,
        address,
        is_switch,
    })
}
