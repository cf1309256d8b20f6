//! The devices of a topology: GPUs and NICs, and their places in the PCI tree.

use std::collections::BTreeSet;

use nvlink_topology::{Gpu, MAX_GPUS, Nic, generation::Generation};
use roxmltree::{Document, Node};

use super::{check_count, links, wrong};
use crate::{
    pci::{Address, Bridge, LinkRate, Place, is_name},
    text::LineError,
};

/// The maximum number of bridges above a device.
const MAX_DEPTH: usize = 64;
/// The maximum number of NICs in a NodeTopology object.
const MAX_NICS: usize = 256;

/// A GPU of the file.
pub(super) struct GpuDevice {
    pub(super) gpu: Gpu,
    pub(super) place: Place,
    pub(super) generation: Option<Generation>,
    /// A problem with its links.
    pub(super) warning: Option<String>,
}

/// A NIC of the file.
pub(super) struct NicDevice {
    pub(super) nic: Nic,
    pub(super) place: Place,
}

/// Returns the GPUs by index. The index is the driver's if the file has it, else
/// the position in ascending order of address.
pub(super) fn gpus(document: &Document<'_>) -> Result<Vec<GpuDevice>, LineError> {
    let mut found: Vec<(Address, Node<'_, '_>)> = Vec::new();
    for node in document.descendants().filter(|node| is_gpu(*node)) {
        let address = address(node)?;
        if found.iter().any(|(other, _)| *other == address) {
            return Err(wrong(node, format!("a second GPU at {address}")));
        }
        found.push((address, node));
        check_count(found.len(), node)?;
    }
    if found.is_empty() {
        return Err(no_gpu(document));
    }
    found.sort_unstable_by_key(|(address, _)| *address);
    let numbers: Vec<_> = found
        .iter()
        .map(|(_, pci)| number(*pci))
        .collect::<Result<_, _>>()?;
    let numbered = numbers.iter().all(Option::is_some);
    let mut seen = BTreeSet::new();
    let mut gpus = Vec::new();
    for (position, ((address, pci), number)) in found.iter().zip(numbers).enumerate() {
        let index = number.filter(|_| numbered).unwrap_or(position as u32);
        if !seen.insert(index) {
            return Err(wrong(*pci, format!("a second GPU of dev {index}")));
        }
        gpus.push(gpu(index, *address, *pci)?);
    }
    gpus.sort_by_key(|device| device.gpu.index);
    Ok(gpus)
}

fn gpu(index: u32, address: Address, pci: Node<'_, '_>) -> Result<GpuDevice, LineError> {
    let place = place(pci)?;
    let element = child(pci, "gpu");
    let links = element
        .map(|element| links::read(element, address))
        .transpose()?;
    let own = links.as_ref().map_or(0, |links| links.own);
    let capability = element.and_then(|element| element.attribute("sm")?.parse().ok());
    Ok(GpuDevice {
        gpu: Gpu {
            index,
            pci_bus_id: Some(address.to_string()),
            numa_node: place.numa,
            links: links.and_then(|links| links.known),
            ..Gpu::default()
        },
        place,
        generation: capability.and_then(Generation::of_compute_capability),
        warning: (own > 0).then(|| {
            format!("GPU {index} has {own} NVLinks to itself: dropped (their far ends are unknown)")
        }),
    })
}

/// Reports whether `node` is a PCI function that is an NVIDIA GPU, or that NCCL used as one.
fn is_gpu(node: Node<'_, '_>) -> bool {
    let class = node.attribute("class").unwrap_or_default();
    let vendor = node.attribute("vendor");
    let by_class = ["0x0302", "0x0300"]
        .iter()
        .any(|known| class.starts_with(known))
        && vendor.is_none_or(|vendor| vendor.eq_ignore_ascii_case("0x10de"));
    node.has_tag_name("pci") && (by_class || child(node, "gpu").is_some())
}

fn no_gpu(document: &Document<'_>) -> LineError {
    let devices = document
        .descendants()
        .filter(|node| node.has_tag_name("pci"));
    let (all, known) = devices.fold((0, 0), |(all, known), pci| {
        (all + 1, known + usize::from(pci.has_attribute("class")))
    });
    let reason = match (all, known) {
        (1.., 0) => format!(
            "no GPU: none of the {all} PCI devices has a class (NCCL looks it up on the machine \
             itself); use the file that NCCL_TOPO_DUMP_FILE writes on that machine"
        ),
        _ => format!("no GPU among the {all} PCI devices"),
    };
    wrong(document.root_element(), reason)
}

fn number(pci: Node<'_, '_>) -> Result<Option<u32>, LineError> {
    let Some(gpu) = child(pci, "gpu") else {
        return Ok(None);
    };
    let Some(dev) = gpu.attribute("dev") else {
        return Ok(None);
    };
    let number = dev.parse().ok().filter(|&dev| dev < MAX_GPUS as u32);
    let odd = || wrong(gpu, format!("dev is not a GPU index below {MAX_GPUS}"));
    number.map(Some).ok_or_else(odd)
}

/// Returns the NICs by address and name: the devices that NCCL used for RDMA, and
/// the PCI functions that are network controllers, which are named by their
/// address. Sockets are skipped.
pub(super) fn nics(document: &Document<'_>) -> Result<Vec<NicDevice>, LineError> {
    let mut found: Vec<(Option<Address>, NicDevice)> = Vec::new();
    for node in document.descendants() {
        let Some((address, device)) = nic(node)? else {
            continue;
        };
        // All ports of a NIC have the same name.
        if found
            .iter()
            .any(|(_, other)| other.nic.name == device.nic.name)
        {
            continue;
        }
        found.push((address, device));
        if found.len() > MAX_NICS {
            return Err(wrong(node, format!("more than {MAX_NICS} network devices")));
        }
    }
    found.sort_by(|(a, one), (b, other)| {
        (a.is_none(), a, &one.nic.name).cmp(&(b.is_none(), b, &other.nic.name))
    });
    Ok(found.into_iter().map(|(_, device)| device).collect())
}

fn nic(node: Node<'_, '_>) -> Result<Option<(Option<Address>, NicDevice)>, LineError> {
    let (pci, name, rate) = if node.has_tag_name("net") {
        let none = |key: &str| {
            node.attribute(key)
                .is_none_or(|value| matches!(value, "0" | "0x0"))
        };
        let socket = none("guid") && none("port");
        let name = node.attribute("name").filter(|_| !socket);
        let Some(name) = name else { return Ok(None) };
        if !is_name(name) {
            return Err(wrong(
                node,
                "the name of this network device is not a valid device name",
            ));
        }
        let pci = node.ancestors().find(|above| above.has_tag_name("pci"));
        (pci, Some(name), node.attribute("speed"))
    } else if is_network_controller(node) && child(node, "nic").is_none() {
        (Some(node), None, None)
    } else {
        return Ok(None);
    };
    let address = pci.map(address).transpose()?;
    let Some(name) = name
        .map(str::to_owned)
        .or(address.map(|address| address.kernel_name()))
    else {
        return Ok(None);
    };
    let place = place(pci.unwrap_or(node))?;
    // Mbit/s.
    let rate = rate
        .and_then(|text| text.parse::<u64>().ok())
        .filter(|&rate| rate > 0);
    let nic = Nic {
        name,
        pci_bus_id: address.map(|address| address.to_string()),
        guid: None,
        numa_node: place.numa,
        down: false,
        bytes_per_second: rate.map(|megabits| megabits.saturating_mul(1_000_000 / 8)),
        gpus: Vec::new(),
    };
    Ok(Some((address, NicDevice { nic, place })))
}

/// Reports whether `node` is an Ethernet or InfiniBand controller.
fn is_network_controller(node: Node<'_, '_>) -> bool {
    let class = node.attribute("class").unwrap_or_default();
    node.has_tag_name("pci") && (class.starts_with("0x0200") || class.starts_with("0x0207"))
}

/// Returns the place of `device`: its CPU, and the bridges above it.
fn place(device: Node<'_, '_>) -> Result<Place, LineError> {
    let mut bridges = Vec::new();
    let mut cpu = None;
    for above in device.ancestors().skip(1) {
        if above.has_tag_name("pci") {
            bridges.push(Bridge {
                address: address(above)?,
                rate: rate(above),
            });
        } else if above.has_tag_name("cpu") {
            cpu = cpu.or(Some(above));
        }
        if bridges.len() > MAX_DEPTH {
            return Err(wrong(device, "nested deeper than any PCI tree"));
        }
    }
    bridges.reverse();
    let numa = cpu.map(numa_node).transpose()?.flatten();
    Ok(Place {
        numa,
        host: cpu.map_or_else(String::new, |cpu| format!("cpu {}", cpu.id().get())),
        bridges,
        rate: rate(device),
    })
}

/// Returns the NUMA node of `cpu`; `None` for -1, which means unknown.
fn numa_node(cpu: Node<'_, '_>) -> Result<Option<u32>, LineError> {
    let Some(text) = cpu.attribute("numaid") else {
        return Ok(None);
    };
    let number: Option<i32> = text.parse().ok();
    let number = number.filter(|&number| number >= -1);
    let number = number.ok_or_else(|| wrong(cpu, "numaid is not a NUMA node"))?;
    Ok(u32::try_from(number).ok())
}

fn address(pci: Node<'_, '_>) -> Result<Address, LineError> {
    let text = pci.attribute("busid");
    let text = text.ok_or_else(|| wrong(pci, "<pci> has no busid"))?;
    let parsed = text.parse();
    parsed.map_err(|error| wrong(pci, format!("busid: {error}")))
}

fn rate(pci: Node<'_, '_>) -> Option<LinkRate> {
    LinkRate::parse(pci.attribute("link_speed")?, pci.attribute("link_width")?)
}

fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|child| child.has_tag_name(name))
}
