//! `nvmlDeviceGetFieldValues`, with a code for each value and the real units and types.

use std::ffi::c_int;

use nvml_wrapper_sys::bindings as nvml;

use crate::{
    board::{Card, Port},
    c::{Answer, INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS, array},
    call::{Gpu, export},
    config::Counter,
    traffic::{Direction, kib},
};

/// Error counters up to Hopper, in the order of `nvmlNvLinkErrorCounter_t`.
pub(crate) const OLD_ERRORS: [&str; 5] = ["replay", "recovery", "crc_flit", "crc_data", "ecc_data"];

/// The same error counters as fields: those of the first link, of link 6, and the total.
const OLD_FIELDS: [(&str, u32, u32, u32); 5] = [
    ("crc_flit", 32, 96, 38),
    ("crc_data", 39, 102, 45),
    ("replay", 46, 108, 52),
    ("recovery", 53, 114, 59),
    ("ecc_data", 148, 154, 160),
];

/// Error counters from NVLink 5 on. `recovery` counts successful recoveries.
const NEW_ERRORS: [(u32, &str); 11] = [
    (206, "malformed_packet"),
    (207, "buffer_overrun"),
    (208, "receive"),
    (209, "receive_remote"),
    (210, "receive_general"),
    (211, "local_link_integrity"),
    (212, "transmit_discard"),
    (213, "recovery"),
    (214, "recovery_failed"),
    (219, "effective"),
    (221, "symbol"),
];

/// The scope that means all links of a GPU.
const ALL_LINKS: u32 = u32::MAX;
/// The ratio that means no errors: mantissa 15 and exponent 255.
const NO_BIT_ERRORS: u64 = 0xfff;

export! {
    fn nvmlDeviceGetFieldValues(
        call, device: nvml::nvmlDevice_t, count: c_int, values: *mut nvml::nvmlFieldValue_t,
    ) {
        let gpu = call.gpu(device)?;
        let count = usize::try_from(count).ok().filter(|&count| count > 0);
        for value in array(values, count.ok_or(INVALID_ARGUMENT)?)? {
            match field(&gpu, value.fieldId, value.scopeId) {
                Ok(found) => found.write(value),
                Err(code) => value.nvmlReturn = code,
            }
        }
        Ok(())
    }
}

/// A value with its C type.
#[derive(Clone, Copy)]
enum Value {
    Small(u32),
    Large(u64),
}

impl Value {
    fn write(self, to: &mut nvml::nvmlFieldValue_t) {
        to.nvmlReturn = SUCCESS;
        match self {
            Self::Small(value) => {
                to.valueType = nvml::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
                to.value.uiVal = value;
            }
            Self::Large(value) => {
                to.valueType = nvml::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
                to.value.ullVal = value;
            }
        }
    }
}

fn field(gpu: &Gpu, id: u32, scope: u32) -> Answer<Value> {
    gpu.field(id, scope)?;
    let card = gpu.card();
    let given = card.options.links.get(&scope);
    if let Some(&raw) = given.and_then(|link| link.fields.get(&id)) {
        return Ok(Value::Large(raw));
    }
    if matches!(id, 144 | 145 | 230) {
        return verdict(gpu, id).map(Value::Small);
    }
    if card.ports.is_empty() {
        return Err(NOT_SUPPORTED);
    }
    match id {
        90 | 91 | 147 => of_gpu(card, id).map(Value::Small),
        84..=89 => speed(card.ports.get(id as usize - 84)),
        132..=137 => speed(card.ports.get(id as usize - 126)),
        138..=141 | 202 | 204 => traffic(gpu, id, scope).map(Value::Large),
        146 | 164..=166 => of_link(card, id, scope).map(Value::Small),
        // From Hopper on these fields answer, but always with 0.
        32..=59 | 96..=119 | 148..=160 if card.generation.is_hopper_or_later() => {
            Ok(Value::Large(0))
        }
        32..=59 | 96..=119 | 148..=163 => old_field(card, id, scope).map(Value::Large),
        206..=222 => new_field(card, id, scope).map(Value::Large),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// The first branch of drivers that know recovery actions: NVIDIA's Xid catalog links XIDs with
/// them from R565 on.
const KNOWS_RECOVERY: u32 = 565;

/// Returns the recovery action, or whether rows wait to be remapped or could not be.
fn verdict(gpu: &Gpu, id: u32) -> Answer<u32> {
    let card = gpu.card();
    let branch = gpu.board.config.driver_version.split('.').next();
    let branch: u32 = branch.and_then(|text| text.parse().ok()).unwrap_or(0);
    match id {
        230 if branch < KNOWS_RECOVERY => Err(INVALID_ARGUMENT),
        _ if !card.generation.is_ampere_or_later() => Err(NOT_SUPPORTED),
        230 => Ok(card.options.recovery_action),
        _ if card.gpu.mig_enabled => Err(NOT_SUPPORTED),
        144 => Ok(card.options.row_remap_pending.into()),
        _ => Ok(card.options.row_remap_failed.into()),
    }
}

fn of_gpu(card: &Card, id: u32) -> Answer<u32> {
    let on_switch = || card.active().filter(|port| port.ends_on_switch()).count();
    match id {
        91 => Ok(card.ports.len() as u32),
        147 if card.generation.knows_switch_count() => Ok(on_switch() as u32),
        90 => {
            let speeds = card.active().filter_map(|port| port.megabytes_per_second);
            speeds.min().ok_or(NOT_SUPPORTED)
        }
        _ => Err(NOT_SUPPORTED),
    }
}

fn speed(port: Option<&Port>) -> Answer<Value> {
    let active = port.filter(|port| port.state != 0);
    let speed = active.and_then(|port| port.megabytes_per_second);
    speed.map(Value::Small).ok_or(NOT_SUPPORTED)
}

fn of_link(card: &Card, id: u32, link: u32) -> Answer<u32> {
    let port = card.ports.get(link as usize).ok_or(INVALID_ARGUMENT)?;
    match id {
        165 if card.generation.is_hopper_or_later() => Ok(port.state),
        166 => Ok(card.generation.nvlink_version),
        164 if port.state != 0 => port.megabytes_per_second.ok_or(NOT_SUPPORTED),
        146 => port.peer.map(|(_, link)| link).ok_or(NOT_SUPPORTED),
        _ => Err(NOT_SUPPORTED),
    }
}

/// Returns the links of a scope that are up.
fn in_scope(card: &Card, scope: u32) -> Answer<Vec<u32>> {
    let active = |link: &u32| card.ports[*link as usize].state != 0;
    let links = 0..card.ports.len() as u32;
    match scope {
        ALL_LINKS => Ok(links.filter(active).collect()),
        link if !links.contains(&link) => Err(INVALID_ARGUMENT),
        link if !active(&link) => Err(NOT_SUPPORTED),
        link => Ok(vec![link]),
    }
}

fn traffic(gpu: &Gpu, id: u32, scope: u32) -> Answer<u64> {
    let (counter, unit, direction) = match id {
        138 | 140 => (Counter::ThroughputData, 1, Direction::Transmit),
        139 | 141 => (Counter::ThroughputData, 1, Direction::Receive),
        202 => (Counter::Nvlink5Bytes, 1024, Direction::Transmit),
        _ => (Counter::Nvlink5Bytes, 1024, Direction::Receive),
    };
    if !gpu.card().counts(counter) {
        return Err(NOT_SUPPORTED);
    }
    let links = in_scope(gpu.card(), scope)?.into_iter();
    let payload: u64 = links
        .map(|link| kib(&gpu.board, gpu.position, link, direction) * unit)
        .sum();
    // Raw traffic includes the protocol: 1.4 times the payload, as captured.
    let raw = matches!(id, 140 | 141);
    Ok(if raw { payload / 5 * 7 } else { payload })
}

/// Returns the errors of one kind, up to Hopper.
pub(crate) fn old_error(card: &Card, port: &Port, kind: &str) -> Answer<u64> {
    let generation = card.generation;
    if !generation.counts_old_errors() || (kind == "ecc_data" && !generation.counts_ecc()) {
        return Err(NOT_SUPPORTED);
    }
    Ok(count(port, kind))
}

fn count(port: &Port, kind: &str) -> u64 {
    port.options.errors.get(kind).copied().unwrap_or(0)
}

fn old_field(card: &Card, id: u32, scope: u32) -> Answer<u64> {
    let (kind, links) = match id {
        161 => ("replay", in_scope(card, scope)?),
        162 => ("recovery", in_scope(card, scope)?),
        163 => ("crc_flit", in_scope(card, scope)?),
        _ => {
            let fits = |&&(_, first, later, total): &&(&str, u32, u32, u32)| {
                (first..first + 6).contains(&id) || (later..later + 6).contains(&id) || id == total
            };
            let found = OLD_FIELDS.iter().find(fits);
            let &(kind, first, later, total) = found.ok_or(INVALID_ARGUMENT)?;
            let scope = match id {
                _ if id == total => ALL_LINKS,
                _ if (later..later + 6).contains(&id) => id - later + 6,
                _ => id - first,
            };
            (kind, in_scope(card, scope)?)
        }
    };
    let counts = links
        .into_iter()
        .map(|link| old_error(card, &card.ports[link as usize], kind));
    counts.sum()
}

fn new_field(card: &Card, id: u32, scope: u32) -> Answer<u64> {
    if !card.generation.is_blackwell_or_later() {
        return Err(NOT_SUPPORTED);
    }
    let links = in_scope(card, scope)?;
    let sum = |kind: &str| -> u64 {
        let ports = links.iter().map(|&link| &card.ports[link as usize]);
        ports.map(|port| count(port, kind)).sum()
    };
    match id {
        215 => Ok(sum("recovery") + sum("recovery_failed")),
        220 | 222 => Ok(NO_BIT_ERRORS),
        _ => {
            let found = NEW_ERRORS.iter().find(|(field, _)| *field == id);
            found.map(|(_, kind)| sum(kind)).ok_or(NOT_SUPPORTED)
        }
    }
}
