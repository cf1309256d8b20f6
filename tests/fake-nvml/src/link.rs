//! Links: state, version, far end, errors up to Hopper.

use std::ffi::{c_uint, c_ulonglong};

use nvlink_topology::RemoteKind;
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEnableState_t, nvmlIntNvLinkDeviceType_t, nvmlNvLinkCapability_t,
    nvmlNvLinkErrorCounter_t, nvmlPciInfo_t,
};

use crate::{
    board::Port,
    c::{Answer, INVALID_ARGUMENT, NOT_SUPPORTED, put},
    call::{Gpu, export},
    device::pci_info,
    fields,
};

/// NVML's address of a far end that is hidden from the node.
const SENTINEL: &str = "FFFFFFFF:FF:FF.0";
const TYPE_GPU: u32 = 0;
const TYPE_SWITCH: u32 = 2;
const TYPE_UNKNOWN: u32 = 0xff;

export! {
    fn nvmlDeviceGetNvLinkState(
        call, device: nvmlDevice_t, link: c_uint, state: *mut nvmlEnableState_t,
    ) {
        let gpu = call.gpu(device)?;
        // A sleeping link is not enabled here; only field 165 shows that it sleeps.
        put(state, (gpu.port(link)?.state == 1).into())
    }

    fn nvmlDeviceGetNvLinkVersion(
        call, device: nvmlDevice_t, link: c_uint, version: *mut c_uint,
    ) {
        let gpu = call.gpu(device)?;
        gpu.port(link)?;
        put(version, gpu.card().generation.nvlink_version)
    }

    fn nvmlDeviceGetNvLinkCapability(
        call, device: nvmlDevice_t, link: c_uint, capability: nvmlNvLinkCapability_t,
        result: *mut c_uint,
    ) {
        let gpu = call.gpu(device)?;
        let active = gpu.port(link)?.state != 0;
        match capability {
            0..=2 | 5 => put(result, active.into()),
            3 | 4 => put(result, 0),
            _ => Err(INVALID_ARGUMENT),
        }
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
        call, device: nvmlDevice_t, link: c_uint, pci: *mut nvmlPciInfo_t,
    ) {
        let gpu = call.gpu(device)?;
        put(pci, remote_pci(&gpu, active(&gpu, link)?))
    }

    fn nvmlDeviceGetNvLinkRemoteDeviceType(
        call, device: nvmlDevice_t, link: c_uint, kind: *mut nvmlIntNvLinkDeviceType_t,
    ) {
        let gpu = call.gpu(device)?;
        put(kind, remote_type(&gpu, active(&gpu, link)?))
    }

    fn nvmlDeviceGetNvLinkErrorCounter(
        call, device: nvmlDevice_t, link: c_uint, counter: nvmlNvLinkErrorCounter_t,
        value: *mut c_ulonglong,
    ) {
        let gpu = call.gpu(device)?;
        let port = active(&gpu, link)?;
        let kind = fields::OLD_ERRORS.get(counter as usize).ok_or(INVALID_ARGUMENT)?;
        put(value, fields::old_error(gpu.card(), port, kind)?)
    }
}

/// Returns the link if it is up. The far end of other links is unknown.
fn active(gpu: &Gpu, link: u32) -> Answer<&Port> {
    let port = gpu.port(link)?;
    (port.state != 0).then_some(port).ok_or(NOT_SUPPORTED)
}

fn remote_pci(gpu: &Gpu, port: &Port) -> nvmlPciInfo_t {
    let generation = gpu.card().generation;
    let remote = port.remote.as_ref();
    match remote.and_then(|remote| remote.pci_bus_id.as_deref()) {
        None => pci_info(SENTINEL, u32::MAX),
        Some(bus_id) if port.ends_on_switch() => pci_info(bus_id, generation.switch_device_id()),
        Some(bus_id) => pci_info(bus_id, generation.pci_device_id()),
    }
}

fn remote_type(gpu: &Gpu, port: &Port) -> u32 {
    match &port.remote {
        Some(remote) if remote.kind == RemoteKind::Gpu => TYPE_GPU,
        Some(remote) if remote.pci_bus_id.is_some() => TYPE_SWITCH,
        _ => gpu.card().options.hidden_type.unwrap_or(TYPE_UNKNOWN),
    }
}
