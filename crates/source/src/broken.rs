//! What a reading says of broken GPUs, and how a reset shows in it.

mod xids;

use std::{collections::BTreeMap, fs, sync::LazyLock};

use super::{GpuHealth, LinkCounters};

pub use self::xids::breaks;

/// Traffic that each link of a GPU sent and received, by index of the link.
pub type Traffic = BTreeMap<u32, u64>;

/// Reports whether the driver says that a GPU is broken: by the action for which it asks, by
/// its memory, or, where it asks for no actions, by its XIDs.
#[must_use]
pub fn is_broken(health: &GpuHealth) -> bool {
    let rows = health.row_remap.iter().any(|(_, holds)| *holds);
    let xids = health.xids.as_deref().unwrap_or_default();
    match health.recovery {
        Some(action) => rows || action.breaks_gpu(),
        None => rows || has_broken(xids),
    }
}

/// Reports whether one of `xids`, with their counts, breaks a GPU.
#[must_use]
pub fn has_broken(xids: &[(u64, u64)]) -> bool {
    let mut counted = xids.iter().filter(|(_, count)| *count > 0);
    counted.any(|(xid, _)| breaks(*xid))
}

/// Returns what the links of each GPU sent and received, by index of the GPU.
#[must_use]
pub fn traffic_by_gpu(counters: &[LinkCounters]) -> BTreeMap<u32, Traffic> {
    let mut gpus: BTreeMap<u32, Traffic> = BTreeMap::new();
    for link in counters {
        if let (Some(sent), Some(received)) = (link.transmit_bytes, link.receive_bytes) {
            let bytes = gpus.entry(link.gpu).or_default();
            bytes.insert(link.link, sent.saturating_add(received));
        }
    }
    gpus
}

/// Reports whether a GPU was reset between two readings of its counters: all of them are
/// lower. One alone may be that of a link that was trained again.
#[must_use]
pub fn was_reset(before: &Traffic, now: &Traffic) -> bool {
    let both = before.iter().filter(|(_, bytes)| **bytes > 0);
    let mut both = both.filter_map(|(link, before)| Some((before, now.get(link)?)));
    let mut any = false;
    both.all(|(before, now)| {
        any = true;
        now < before
    }) && any
}

/// The id of the boot, by which the kernel distinguishes it from others.
pub static BOOT: LazyLock<String> = LazyLock::new(|| {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map(|id| id.trim().to_owned()).unwrap_or_default()
});
