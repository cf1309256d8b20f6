//! The NVLink fabric as a GPU reports it, in the three forms of the call.

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfoV_t,
    nvmlPlatformInfo_v2_t,
};

use crate::{
    c::{Answer, NOT_SUPPORTED, SUCCESS, VERSION_MISMATCH, get, put},
    call::{Gpu, export},
};

const STATE_NOT_SUPPORTED: u8 = 0;
const STATE_COMPLETED: u8 = 3;
/// A healthy fabric: "false" for each condition, "none" for the configuration.
const HEALTHY: u32 = 0b1_1010_1010;

export! {
    fn nvmlDeviceGetGpuFabricInfo(call, device: nvmlDevice_t, info: *mut nvmlGpuFabricInfo_t) {
        let full = full(&call.gpu(device)?)?;
        put(info, nvmlGpuFabricInfo_t {
            clusterUuid: full.clusterUuid,
            status: full.status,
            cliqueId: full.cliqueId,
            state: full.state,
        })
    }

    fn nvmlDeviceGetGpuFabricInfoV(call, device: nvmlDevice_t, info: *mut nvmlGpuFabricInfoV_t) {
        let gpu = call.gpu(device)?;
        let version = get(info.cast::<u32>())?;
        let number = version >> 24;
        if !gpu.board.config.fabric_info_versions.contains(&number) {
            return Err(VERSION_MISMATCH);
        }
        let full = full(&gpu)?;
        match (number, (version & 0xff_ffff) as usize) {
            (3, size) if size == size_of::<nvmlGpuFabricInfoV_t>() => {
                put(info, nvmlGpuFabricInfoV_t { version, ..full })
            }
            (2, size) if size == size_of::<nvmlGpuFabricInfo_v2_t>() => {
                put(info.cast(), nvmlGpuFabricInfo_v2_t {
                    version,
                    clusterUuid: full.clusterUuid,
                    status: full.status,
                    cliqueId: full.cliqueId,
                    state: full.state,
                    healthMask: full.healthMask,
                })
            }
            _ => Err(VERSION_MISMATCH),
        }
    }

    // From Blackwell on. An HGX board has an empty serial number.
    fn nvmlDeviceGetPlatformInfo(call, device: nvmlDevice_t, info: *mut nvmlPlatformInfo_v2_t) {
        let gpu = call.gpu(device)?;
        if !gpu.card().generation.is_blackwell_or_later() {
            return Err(NOT_SUPPORTED);
        }
        let version = get(info.cast::<u32>())?;
        if version != size_of::<nvmlPlatformInfo_v2_t>() as u32 | 2 << 24 {
            return Err(VERSION_MISMATCH);
        }
        let tray = gpu.board.tray.as_ref();
        let mut serial = [0; 16];
        let text = tray.map_or("", |tray| &tray.chassis).bytes();
        serial.iter_mut().zip(text).for_each(|(to, byte)| *to = byte);
        put(info, nvmlPlatformInfo_v2_t {
            version,
            ibGuid: [0; 16],
            chassisSerialNumber: serial,
            slotNumber: tray.map_or(0, |tray| tray.slot),
            trayIndex: tray.map_or(0, |tray| tray.index),
            hostId: 1,
            peerType: 1,
            moduleId: 1,
        })
    }
}

/// Returns the complete information, in the newest form.
fn full(gpu: &Gpu) -> Answer<nvmlGpuFabricInfoV_t> {
    let card = gpu.card();
    let given = card.options.fabric.clone().unwrap_or_default();
    if let Some(code) = given.error {
        return Err(code);
    }
    if !card.generation.is_hopper_or_later() {
        return Err(NOT_SUPPORTED);
    }
    let (cluster, clique) = gpu.board.fabric.clone().unwrap_or_default();
    let in_fabric = card.ports.iter().any(|port| port.ends_on_switch());
    let state = match in_fabric {
        true => STATE_COMPLETED,
        false => STATE_NOT_SUPPORTED,
    };
    // Hopper's fabric manager does not report health.
    let says_health = in_fabric && card.generation.is_blackwell_or_later();
    let cluster = given.cluster_uuid.unwrap_or(cluster);
    Ok(nvmlGpuFabricInfoV_t {
        version: 0,
        clusterUuid: uuid(&cluster),
        status: given.status.unwrap_or(SUCCESS),
        cliqueId: given.clique.unwrap_or(clique),
        state: given.state.unwrap_or(state),
        healthMask: given
            .health_mask
            .unwrap_or(if says_health { HEALTHY } else { 0 }),
        healthSummary: given.health_summary.unwrap_or(says_health.into()),
    })
}

/// Returns the bytes of a UUID; all zero for an empty text.
fn uuid(text: &str) -> [u8; 16] {
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let value = u128::from_str_radix(&digits, 16).unwrap_or(0);
    value.to_be_bytes()
}
