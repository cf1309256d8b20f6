//! Event sets: XID errors, each delivered once.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{c_uint, c_ulonglong},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t};

use crate::{
    board::Board,
    c::{Answer, GPU_IS_LOST, INVALID_ARGUMENT, TIMEOUT, put},
    call::{board, export, lock},
};

const XID: u64 = 8;
/// Double-bit ECC, power states and XIDs.
const SUPPORTED: u64 = 2 | 4 | XID;
const PAUSE: Duration = Duration::from_millis(5);

/// Event sets by number, each with the positions that it watches.
static SETS: Mutex<BTreeMap<usize, Vec<usize>>> = Mutex::new(BTreeMap::new());
/// Indices of the file's XIDs that have been delivered, or that no set watched.
static DELIVERED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

export! {
    fn nvmlEventSetCreate(_call, set: *mut nvmlEventSet_t) {
        let mut sets = lock(&SETS);
        let number = sets.last_key_value().map_or(1, |(last, _)| last + 1);
        sets.insert(number, Vec::new());
        put(set, std::ptr::without_provenance_mut(number << 4))
    }

    fn nvmlEventSetFree(_call, set: nvmlEventSet_t) {
        lock(&SETS).remove(&(set.addr() >> 4)).map(drop).ok_or(INVALID_ARGUMENT)
    }

    fn nvmlDeviceGetSupportedEventTypes(
        call, device: nvmlDevice_t, types: *mut c_ulonglong,
    ) {
        call.gpu(device)?;
        put(types, SUPPORTED)
    }

    fn nvmlDeviceRegisterEvents(
        call, device: nvmlDevice_t, types: c_ulonglong, set: nvmlEventSet_t,
    ) {
        let gpu = call.gpu(device)?;
        let mut sets = lock(&SETS);
        let watched = sets.get_mut(&(set.addr() >> 4)).ok_or(INVALID_ARGUMENT)?;
        if types & !SUPPORTED != 0 {
            return Err(crate::c::NOT_SUPPORTED);
        }
        if types & XID != 0 {
            watched.push(gpu.position);
        }
        Ok(())
    }

    fn nvmlEventSetWait_v2(
        call, set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeout: c_uint,
    ) {
        let until = Instant::now() + Duration::from_millis(timeout.into());
        loop {
            let watched = lock(&SETS).get(&(set.addr() >> 4)).cloned().ok_or(INVALID_ARGUMENT)?;
            if let Some((position, xid)) = next(board()?.as_ref(), &watched)? {
                return put(data, nvmlEventData_t {
                    device: call.gpu_at(position)?.handle(),
                    eventType: XID,
                    eventData: xid,
                    gpuInstanceId: u32::MAX,
                    computeInstanceId: u32::MAX,
                });
            }
            if Instant::now() >= until {
                return Err(TIMEOUT);
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Returns the next XID of a watched GPU: its position and number.
fn next(board: &Board, watched: &[usize]) -> Answer<Option<(usize, u64)>> {
    let config = &board.config;
    if watched
        .iter()
        .any(|position| config.lost.contains(position))
    {
        return Err(GPU_IS_LOST);
    }
    let anybody: BTreeSet<usize> = lock(&SETS).values().flatten().copied().collect();
    let is_mine = |gpu: &usize| match config.event_sets_shared {
        true => anybody.contains(gpu),
        false => watched.contains(gpu),
    };
    let mut delivered = lock(&DELIVERED);
    delivered.retain(|&event| event < config.xids.len());
    for (n, event) in config.xids.iter().enumerate() {
        if delivered.contains(&n) {
            continue;
        }
        let mine = is_mine(&event.gpu);
        if mine || !anybody.contains(&event.gpu) {
            delivered.insert(n);
        }
        if mine {
            return Ok(Some((event.gpu, event.xid)));
        }
    }
    Ok(None)
}
