//! Queries one GPU for everything that it reports about itself.

use std::{collections::BTreeMap, path::Path, time::Duration};

use nvlink_topology::{Gpu, Tray};
use nvml_wrapper::{Device, enum_wrappers::device::GpuVirtualizationMode, error::NvmlError};
use nvml_wrapper_sys::bindings::{NVML_AFFINITY_SCOPE_NODE, field_id::*};

use super::{
    Session, address,
    counters::{Choices, Traffic},
    error::Trouble,
    failures::{Answer, Failures, detail, graph},
    fields::{Answers, Era, FIELDS, bytes_per_second, old_speed_field},
    gpm::Rate,
    graph::{FarEnd, GpuFacts, LinkFacts},
    raw::{self, FabricInfo},
    verdict::{self, Verdict},
};
use crate::{LinkCounters, pci::LinkRate};

/// The directory of the kernel's PCI devices.
const PCI_DEVICES: &str = "/sys/bus/pci/devices";
/// Words of the NUMA mask: for more nodes than any machine has.
const NUMA_WORDS: usize = 16;
/// The maximum number of links that is accepted; NVML's own limit is 36.
const MOST_LINKS: u64 = 64;

/// Facts about a GPU that do not change while the library is loaded.
#[derive(Clone, Debug)]
pub(super) struct Fixed {
    /// PCI address in NVML's spelling.
    pub(super) bus_id: Option<String>,
    model: Option<String>,
    numa_node: Option<u32>,
    virtual_machine: bool,
    /// `None` while the driver fails to report the compute capability.
    era: Option<Era>,
    pub(super) pcie: Option<LinkRate>,
}

/// Facts that the driver has answered, by UUID of the GPU.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// UUIDs, by the address of the GPU in the library.
    names: BTreeMap<usize, String>,
    fixed: BTreeMap<String, Fixed>,
    /// Places in the rack; `None` if the driver reports none.
    trays: BTreeMap<String, Option<Tray>>,
    /// Far ends of links that have been up since they were queried. Each costs two
    /// calls, and a cable is not moved while it carries traffic.
    far: BTreeMap<(String, u32), FarEnd>,
}

/// A GPU that answered.
pub(super) struct Answered {
    /// Its UUID, else its index: the key under which it is remembered.
    pub(super) key: String,
    /// What it reports about itself.
    pub(super) facts: GpuFacts,
    pub(super) pcie: Option<LinkRate>,
    /// The counters of its links.
    pub(super) counters: Vec<LinkCounters>,
    /// Its XIDs are counted.
    pub(super) watched: bool,
    /// What the driver says must be done with it.
    pub(super) verdict: Verdict,
    /// The calls that failed.
    pub(super) failures: Failures,
}

/// Queries the GPU with the index `index`.
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
    let mut failures = Failures::default();
    let uuid = uuid(&mut session.memory, device, &mut failures)?;
    let key = uuid.clone().unwrap_or_else(|| format!("index {index}"));
    let fixed = session.memory.fixed(device, &key, &mut failures)?;
    let mig = failures.ask(graph("nvmlDeviceGetMigMode"), device.mig_mode())?;
    let mig_enabled = matches!(&mig, Answer::Given(mode) if mode.current == 1);
    let (library, events) = (&session.library.loaded, &mut session.events);
    let watched = events.watch(library, device, &key, &mut failures)?;
    let (fabric, tray) = session.memory.fabric(device, &key, &mut failures)?;
    let verdict = verdict::read(device, &mut failures)?;
    // A GPU with MIG enabled reports its links as down: treat them as unknown.
    let count = match (&mig, mig_enabled) {
        (Answer::Failed, _) | (_, true) => None,
        _ => link_count(device, &mut failures)?,
    };
    let reader = count.map(|count| Reader {
        session,
        device,
        key: &key,
        index,
        count,
        era: fixed.era,
        failures: &mut failures,
    });
    let read = reader.map(|mut reader| reader.links(choices, now));
    let (links, counters) = read.transpose()?.unzip();
    let gpu = Gpu {
        index,
        uuid,
        pci_bus_id: fixed.bus_id,
        model: fixed.model,
        numa_node: fixed.numa_node,
        mig_enabled,
        virtual_machine: fixed.virtual_machine,
        faults: Vec::new(),
        links: None,
    };
    Ok(Answered {
        key,
        facts: GpuFacts {
            gpu,
            links,
            fabric,
            tray,
        },
        pcie: fixed.pcie,
        counters: counters.unwrap_or_default(),
        watched,
        verdict,
        failures,
    })
}

/// Returns the UUID, under which everything is remembered. If the driver fails to
/// report it, this is the UUID that it reported earlier for the same device.
fn uuid(
    memory: &mut Memory,
    device: &Device<'_>,
    failures: &mut Failures,
) -> Result<Option<String>, Trouble> {
    let result = device.uuid();
    let error = result.as_ref().err().map(ToString::to_string);
    let at = raw::address(device);
    match failures.ask(detail("nvmlDeviceGetUUID"), result)? {
        Answer::Given(uuid) => {
            memory.names.insert(at, uuid.clone());
            Ok(Some(uuid))
        }
        Answer::Unknown => Ok(None),
        Answer::Failed => match memory.names.get(&at) {
            Some(uuid) => Ok(Some(uuid.clone())),
            None => Err(Trouble::Nameless {
                address: bus_id(device, failures)?,
                error: format!("nvmlDeviceGetUUID failed: {}", error.unwrap_or_default()),
            }),
        },
    }
}

fn bus_id(device: &Device<'_>, failures: &mut Failures) -> Result<Option<String>, Trouble> {
    let info = failures.ask(graph("nvmlDeviceGetPciInfo"), device.pci_info())?;
    Ok(info.given().and_then(|info| address::normal(&info.bus_id)))
}

impl Memory {
    /// Returns the fixed facts of the GPU `key`. Queries them again while any of them fails.
    fn fixed(
        &mut self,
        device: &Device<'_>,
        key: &str,
        failures: &mut Failures,
    ) -> Result<Fixed, Trouble> {
        if let Some(fixed) = self.fixed.get(key) {
            return Ok(fixed.clone());
        }
        let before = failures.len();
        let fixed = fixed(device, failures)?;
        if failures.len() == before {
            self.fixed.insert(key.to_owned(), fixed.clone());
        }
        Ok(fixed)
    }

    /// Returns the fabric of the GPU `key`, and its place in the rack, which is queried until the driver
    /// answers.
    fn fabric(
        &mut self,
        device: &Device<'_>,
        key: &str,
        failures: &mut Failures,
    ) -> Result<(Option<FabricInfo>, Option<Tray>), Trouble> {
        let call = graph("nvmlDeviceGetGpuFabricInfo");
        let fabric = failures.ask(call, raw::fabric_info(device))?.given();
        let tray = match fabric.is_some_and(|info| info.progress().is_some()) {
            true => self.tray(device, key, failures)?,
            false => None,
        };
        Ok((fabric, tray))
    }

    fn tray(
        &mut self,
        device: &Device<'_>,
        key: &str,
        failures: &mut Failures,
    ) -> Result<Option<Tray>, Trouble> {
        if let Some(tray) = self.trays.get(key) {
            return Ok(tray.clone());
        }
        let call = detail("nvmlDeviceGetPlatformInfo");
        let tray = match failures.ask(call, raw::platform_info(device))? {
            Answer::Given(info) => info.tray(),
            Answer::Unknown => None,
            Answer::Failed => return Ok(None),
        };
        self.trays.insert(key.to_owned(), tray.clone());
        Ok(tray)
    }
}

fn fixed(device: &Device<'_>, failures: &mut Failures) -> Result<Fixed, Trouble> {
    let bus_id = bus_id(device, failures)?;
    let call = detail("nvmlDeviceGetMaxPcieLinkGeneration");
    let generation = failures.ask(call, device.max_pcie_link_gen())?.given();
    let call = detail("nvmlDeviceGetMaxPcieLinkWidth");
    let width = failures.ask(call, device.max_pcie_link_width())?.given();
    let call = graph("nvmlDeviceGetCudaComputeCapability");
    let era = match failures.ask(call, device.cuda_compute_capability())? {
        Answer::Given(capability) => Some(Era::of(Some(capability.major))),
        Answer::Unknown => Some(Era::of(None)),
        Answer::Failed => None,
    };
    let model = failures.ask(graph("nvmlDeviceGetName"), device.name())?;
    let call = detail("nvmlDeviceGetVirtualizationMode");
    let mode = failures.ask(call, device.virtualization_mode())?.given();
    let inside = [
        GpuVirtualizationMode::PassThrough,
        GpuVirtualizationMode::Vgpu,
    ];
    Ok(Fixed {
        model: model.given(),
        virtual_machine: mode.is_some_and(|mode| inside.contains(&mode)),
        numa_node: numa_node(device, bus_id.as_deref(), failures)?,
        bus_id,
        era,
        pcie: generation
            .zip(width)
            .filter(|&(generation, lanes)| generation > 0 && lanes > 0)
            .map(|(generation, lanes)| LinkRate { generation, lanes }),
    })
}

/// Returns the NUMA node to which the GPU is attached, the lowest of several.
/// (`nvmlDeviceGetNumaNodeId` returns the node of the GPU's own memory, if that is
/// a node.)
fn numa_node(
    device: &Device<'_>,
    bus_id: Option<&str>,
    failures: &mut Failures,
) -> Result<Option<u32>, Trouble> {
    let mask = device.memory_affinity(NUMA_WORDS, NVML_AFFINITY_SCOPE_NODE);
    let mask = failures.ask(detail("nvmlDeviceGetMemoryAffinity"), mask)?;
    let lowest = mask.given().and_then(|mask| {
        let word = mask.iter().position(|&word| word != 0)?;
        Some(word as u32 * std::ffi::c_ulong::BITS + mask[word].trailing_zeros())
    });
    let kernel = || address::numa_node(Path::new(PCI_DEVICES), bus_id?);
    Ok(lowest.or_else(kernel))
}

/// Returns the number of links of the GPU; `None` if the driver does not report it.
fn link_count(device: &Device<'_>, failures: &mut Failures) -> Result<Option<u32>, Trouble> {
    let field = NVML_FI_DEV_NVLINK_LINK_COUNT;
    let answers = raw::field_values(device, &[(field, 0)]);
    let Some(answers) = failures.ask(graph(FIELDS), answers)?.given() else {
        return Ok(None);
    };
    match answers.into_iter().next() {
        Some(Err(NvmlError::NotSupported)) => Ok(Some(0)),
        Some(answer) => {
            let count = failures.ask(graph(FIELDS).of_field(field), answer)?.given();
            Ok(count.map(|count| count.min(MOST_LINKS) as u32))
        }
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
    /// `None` while it is unknown.
    era: Option<Era>,
    failures: &'a mut Failures,
}

impl Reader<'_, '_> {
    fn links(
        &mut self,
        choices: &mut Choices,
        now: Duration,
    ) -> Result<(Vec<LinkFacts>, Vec<LinkCounters>), Trouble> {
        let fields = self.era.unwrap_or(Era::Unknown).link_fields();
        let answers = Answers::ask(self.device, self.count, fields, self.failures)?;
        let mut links = Vec::with_capacity(self.count as usize);
        for link in 0..self.count {
            links.push(self.link(&answers, link)?);
        }
        let up = |link: u32| links[link as usize].up != Some(false);
        answers.tell(up, self.failures);
        // Without the era it is unknown which counters have wrong values.
        let Some(era) = self.era else {
            return Ok((links, Vec::new()));
        };
        self.old_speeds(&mut links)?;
        let rates = self.rates(choices, era, &links, now)?;
        let mut counters = Vec::with_capacity(self.count as usize);
        for link in 0..self.count {
            let mut traffic = Traffic::of(&answers, link);
            if let Some(rate) = rates.get(link as usize) {
                traffic.gpm = rate.flow;
                traffic.gpm_moved_before = rate.moved_before;
            }
            counters.extend(self.counters(choices, era, (&answers, &traffic), link)?);
        }
        Ok((links, counters))
    }

    fn link(&mut self, answers: &Answers, link: u32) -> Result<LinkFacts, Trouble> {
        let wrapper = self.device.link_wrapper_for(link);
        let up = match answers.up(link) {
            Some(up) => Some(up),
            None => {
                let call = graph("nvmlDeviceGetNvLinkState").of_link(link);
                match self.failures.ask(call, wrapper.is_active())? {
                    Answer::Given(up) => Some(up),
                    // A link that is switched off answers "not supported".
                    Answer::Unknown if !answers.state_failed(link) => Some(false),
                    Answer::Unknown | Answer::Failed => None,
                }
            }
        };
        let at = (self.key.to_owned(), link);
        let memory = &mut self.session.memory.far;
        let far = match (up, memory.get(&at)) {
            (Some(false), _) => {
                memory.remove(&at);
                FarEnd::default()
            }
            (None, _) => FarEnd::default(),
            (Some(true), Some(far)) => far.clone(),
            (Some(true), None) => {
                let far = far_end(self.device, link, self.failures)?;
                let told = far.address.is_some() || far.device_type == Some(2);
                if told && !far.failed {
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

    /// Sets speeds from the fields of older drivers: the common speed of all active
    /// links, else that of each link.
    fn old_speeds(&mut self, links: &mut [LinkFacts]) -> Result<(), Trouble> {
        let lacks = |link: &LinkFacts| link.up == Some(true) && link.bytes_per_second.is_none();
        if !links.iter().any(lacks) {
            return Ok(());
        }
        let mut wanted = vec![(NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, 0)];
        let old = links.iter().filter_map(|link| old_speed_field(link.index));
        wanted.extend(old.map(|id| (id, 0)));
        let values = raw::field_values(self.device, &wanted);
        let Some(values) = self.failures.ask(graph(FIELDS), values)?.given() else {
            return Ok(());
        };
        let mut speeds = Vec::with_capacity(values.len());
        for (value, (id, _)) in values.into_iter().zip(wanted) {
            let value = self.failures.ask(detail(FIELDS).of_field(id), value)?;
            speeds.push(bytes_per_second(value.given()));
        }
        let common = speeds.first().copied().flatten();
        for link in links.iter_mut().filter(|link| lacks(link)) {
            let own = speeds.get(1 + link.index as usize).copied().flatten();
            link.bytes_per_second = common.or(own);
        }
        Ok(())
    }

    /// Returns the rates of the links, which are sampled only while some link needs them.
    fn rates(
        &mut self,
        choices: &Choices,
        era: Era,
        links: &[LinkFacts],
        now: Duration,
    ) -> Result<Vec<Rate>, Trouble> {
        use crate::CounterSource::Gpm;
        let needs = |link: &LinkFacts| {
            link.up == Some(true) && matches!(choices.get(self.key, link.index), None | Some(Gpm))
        };
        if era == Era::Ampere || !links.iter().any(needs) {
            self.session.gpm.forget(self.key);
            return Ok(Vec::new());
        }
        let library = &self.session.library.loaded;
        let gpm = &mut self.session.gpm;
        let rates = gpm.rates(
            library,
            self.device,
            (self.key, self.count),
            now,
            self.failures,
        )?;
        Ok(rates.to_vec())
    }

    /// Returns the counters of a link, if there are any.
    fn counters(
        &mut self,
        choices: &mut Choices,
        era: Era,
        (answers, traffic): (&Answers, &Traffic),
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
            for &(kind, number) in era.error_calls() {
                if !counters.errors.iter().any(|(one, _)| *one == kind) {
                    let count = raw::error_counter(self.device, link, number);
                    let call = detail("nvmlDeviceGetNvLinkErrorCounter").of_link(link);
                    let count = self.failures.ask(call, count)?.given();
                    counters.errors.extend(count.map(|count| (kind, count)));
                }
            }
            counters.errors.sort_unstable();
        }
        Ok((counters != empty).then_some(counters))
    }
}

fn far_end(device: &Device<'_>, link: u32, failures: &mut Failures) -> Result<FarEnd, Trouble> {
    let call = graph("nvmlDeviceGetNvLinkRemotePciInfo").of_link(link);
    let info = failures.ask(call, device.link_wrapper_for(link).remote_pci_info())?;
    let call = graph("nvmlDeviceGetNvLinkRemoteDeviceType").of_link(link);
    let kind = failures.ask(call, raw::remote_type(device, link))?;
    let failed = matches!(info, Answer::Failed) || matches!(kind, Answer::Failed);
    let said = info.given();
    let address = said.as_ref().and_then(|info| address::normal(&info.bus_id));
    let device_type = kind.given();
    let is_switch = match (&address, device_type) {
        (Some(address), None | Some(0xff)) => address::is_switch(Path::new(PCI_DEVICES), address),
        _ => false,
    };
    Ok(FarEnd {
        device_type,
        hidden: said.is_some() && address.is_none(),
        address,
        is_switch,
        failed,
    })
}
