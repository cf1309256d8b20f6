//! The list of GPUs, and their properties.

use std::ffi::{c_char, c_int, c_uint, c_ulong};

use nvml_wrapper_sys::bindings::{
    nvmlAffinityScope_t, nvmlDevice_t, nvmlDeviceArchitecture_t, nvmlGpuVirtualizationMode_t,
    nvmlPciInfo_t, nvmlPciInfoExt_t,
};

use crate::{
    c::{
        Answer, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, VERSION_MISMATCH,
        array, fill, get, put, put_text, text,
    },
    call::{Call, export},
};

/// CPUs of each NUMA node.
const CPUS_PER_NODE: u32 = 32;
const PCIE_WIDTH: u32 = 16;

export! {
    fn nvmlDeviceGetCount_v2(call, count: *mut c_uint) {
        put(count, call.listed().count() as c_uint)
    }

    fn nvmlDeviceGetHandleByIndex_v2(call, index: c_uint, device: *mut nvmlDevice_t) {
        let position = call.listed().nth(index as usize).ok_or(INVALID_ARGUMENT)?;
        put(device, call.gpu_at(position)?.handle())
    }

    fn nvmlDeviceGetHandleByUUID(call, uuid: *const c_char, device: *mut nvmlDevice_t) {
        let uuid = text(uuid)?;
        find(call, device, |gpu| gpu.uuid.as_deref() == Some(&uuid))
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(call, bus_id: *const c_char, device: *mut nvmlDevice_t) {
        let bus_id = address(&text(bus_id)?).ok_or(INVALID_ARGUMENT)?;
        find(call, device, |gpu| gpu.pci_bus_id.as_deref().and_then(address) == Some(bus_id))
    }

    fn nvmlDeviceGetIndex(call, device: nvmlDevice_t, index: *mut c_uint) {
        let gpu = call.gpu(device)?;
        let index_of = gpu.board.listed().position(|one| one == gpu.position);
        put(index, index_of.ok_or(NOT_FOUND)? as c_uint)
    }

    fn nvmlDeviceGetUUID(call, device: nvmlDevice_t, uuid: *mut c_char, length: c_uint) {
        let gpu = call.gpu(device)?;
        put_text(uuid, length, gpu.card().gpu.uuid.as_deref().ok_or(NOT_SUPPORTED)?)
    }

    fn nvmlDeviceGetName(call, device: nvmlDevice_t, name: *mut c_char, length: c_uint) {
        put_text(name, length, call.gpu(device)?.card().model())
    }

    fn nvmlDeviceGetPciInfo_v3(call, device: nvmlDevice_t, pci: *mut nvmlPciInfo_t) {
        let gpu = call.gpu(device)?;
        let card = gpu.card();
        put(pci, pci_info(card.bus_id(), card.generation.pci_device_id()))
    }

    fn nvmlDeviceGetPciInfoExt(call, device: nvmlDevice_t, pci: *mut nvmlPciInfoExt_t) {
        let gpu = call.gpu(device)?;
        put(pci, pci_info_ext(get(pci)?, &gpu)?)
    }

    fn nvmlDeviceGetMinorNumber(call, device: nvmlDevice_t, minor: *mut c_uint) {
        let gpu = call.gpu(device)?;
        put(minor, gpu.card().options.minor.unwrap_or(gpu.position as c_uint))
    }

    // Only for GPUs whose own memory is a NUMA node: that node, not the nearest one.
    fn nvmlDeviceGetNumaNodeId(call, device: nvmlDevice_t, node: *mut c_uint) {
        let gpu = call.gpu(device)?;
        match ["GB200", "GB300", "GH200"].iter().any(|one| gpu.card().model().contains(one)) {
            true => put(node, 2 + 8 * gpu.position as c_uint),
            false => Err(NOT_SUPPORTED),
        }
    }

    fn nvmlDeviceGetMemoryAffinity(
        call, device: nvmlDevice_t, size: c_uint, set: *mut c_ulong, _scope: nvmlAffinityScope_t,
    ) {
        let gpu = call.gpu(device)?;
        let node = gpu.card().gpu.numa_node.ok_or(NOT_SUPPORTED)?;
        put_bits(set, size, node..node + 1)
    }

    fn nvmlDeviceGetCpuAffinity(call, device: nvmlDevice_t, size: c_uint, set: *mut c_ulong) {
        let gpu = call.gpu(device)?;
        let first = gpu.card().gpu.numa_node.ok_or(NOT_SUPPORTED)? * CPUS_PER_NODE;
        put_bits(set, size, first..first + CPUS_PER_NODE)
    }

    fn nvmlDeviceGetArchitecture(
        call, device: nvmlDevice_t, architecture: *mut nvmlDeviceArchitecture_t,
    ) {
        put(architecture, call.gpu(device)?.card().generation.architecture)
    }

    fn nvmlDeviceGetCudaComputeCapability(
        call, device: nvmlDevice_t, major: *mut c_int, minor: *mut c_int,
    ) {
        let (one, other) = call.gpu(device)?.card().generation.compute_capability;
        put(major, one)?;
        put(minor, other)
    }

    fn nvmlDeviceGetMigMode(
        call, device: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint,
    ) {
        let gpu = call.gpu(device)?;
        if !gpu.card().generation.knows_mig() {
            return Err(NOT_SUPPORTED);
        }
        let mode = gpu.card().gpu.mig_enabled.into();
        put(current, mode)?;
        put(pending, mode)
    }

    fn nvmlDeviceGetVirtualizationMode(
        call, device: nvmlDevice_t, mode: *mut nvmlGpuVirtualizationMode_t,
    ) {
        let gpu = call.gpu(device)?;
        put(mode, gpu.card().options.virtualization)
    }

    fn nvmlDeviceGetMaxPcieLinkGeneration(call, device: nvmlDevice_t, generation: *mut c_uint) {
        put(generation, call.gpu(device)?.card().generation.pcie_generation)
    }

    fn nvmlDeviceGetGpuMaxPcieLinkGeneration(call, device: nvmlDevice_t, generation: *mut c_uint) {
        put(generation, call.gpu(device)?.card().generation.pcie_generation)
    }

    // Idle links slow down: the current generation is not the maximum of the link.
    fn nvmlDeviceGetCurrPcieLinkGeneration(call, device: nvmlDevice_t, generation: *mut c_uint) {
        call.gpu(device)?;
        put(generation, 1)
    }

    fn nvmlDeviceGetMaxPcieLinkWidth(call, device: nvmlDevice_t, width: *mut c_uint) {
        call.gpu(device)?;
        put(width, PCIE_WIDTH)
    }

    fn nvmlDeviceGetCurrPcieLinkWidth(call, device: nvmlDevice_t, width: *mut c_uint) {
        call.gpu(device)?;
        put(width, PCIE_WIDTH)
    }
}

fn find(
    call: &Call,
    device: *mut nvmlDevice_t,
    fits: impl Fn(&nvlink_topology::Gpu) -> bool,
) -> Answer {
    let mut listed = call.listed();
    let position = listed.find(|&position| fits(&call.board.cards[position].gpu));
    put(device, call.gpu_at(position.ok_or(NOT_FOUND)?)?.handle())
}

fn put_bits(set: *mut c_ulong, size: c_uint, bits: std::ops::Range<u32>) -> Answer {
    let set = array(set, size as usize)?;
    set.fill(0);
    for bit in bits {
        let word = set.get_mut((bit / c_ulong::BITS) as usize);
        *word.ok_or(INSUFFICIENT_SIZE)? |= 1 << (bit % c_ulong::BITS);
    }
    Ok(())
}

/// Returns domain, bus and device of a PCI address.
fn address(bus_id: &str) -> Option<(u32, u32, u32)> {
    let mut parts = bus_id.split([':', '.']);
    let mut number = || u32::from_str_radix(parts.next()?, 16).ok();
    Some((number()?, number()?, number()?))
}

/// Returns NVML's information about the PCI device at `bus_id`.
pub(crate) fn pci_info(bus_id: &str, device_id: u32) -> nvmlPciInfo_t {
    let (domain, bus, device) = address(bus_id).unwrap_or_default();
    let mut info = nvmlPciInfo_t {
        busIdLegacy: [0; 16],
        domain,
        bus,
        device,
        pciDeviceId: device_id,
        pciSubSystemId: 0,
        busId: [0; 32],
    };
    let text = format!("{domain:08X}:{bus:02X}:{device:02X}.0");
    fill(&mut info.busId, &text);
    // The older form has four digits of the domain.
    fill(&mut info.busIdLegacy, text.get(4..).unwrap_or_default());
    info
}

fn pci_info_ext(asked: nvmlPciInfoExt_t, gpu: &crate::call::Gpu) -> Answer<nvmlPciInfoExt_t> {
    let size = size_of::<nvmlPciInfoExt_t>() as u32;
    if asked.version != (size | 1 << 24) {
        return Err(VERSION_MISMATCH);
    }
    let card = gpu.card();
    let plain = pci_info(card.bus_id(), card.generation.pci_device_id());
    Ok(nvmlPciInfoExt_t {
        version: asked.version,
        domain: plain.domain,
        bus: plain.bus,
        device: plain.device,
        pciDeviceId: plain.pciDeviceId,
        pciSubSystemId: 0,
        baseClass: 3,
        subClass: 2,
        busId: plain.busId,
    })
}
