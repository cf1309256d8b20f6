//! The errors that the GPUs of a profile count, and those that they have from the start.

use nvlink_topology::{RecoveryAction, profile::Profile};

use crate::ErrorKind::{self, *};

/// Error kinds that GPUs before Hopper count.
const BEFORE_HOPPER: &[ErrorKind] = &[CrcFlit, CrcData, Replay, Recovery];
/// Error kinds that GPUs with NVLink 4 count.
const NVLINK4: &[ErrorKind] = &[CrcFlit, Replay, Recovery, EccData];
/// Error kinds that GPUs with NVLink 5 count.
const NVLINK5: &[ErrorKind] = &[
    Recovery,
    RecoveryFailed,
    MalformedPacket,
    BufferOverrun,
    Receive,
    ReceiveRemote,
    ReceiveGeneral,
    LocalLinkIntegrity,
    TransmitDiscard,
    Effective,
    Symbol,
];

/// The board that has errors from the start; the others have none.
const DEGRADED: &str = "h200-degraded";
/// Its links with errors: GPU, link, kind and errors per hour.
const DEGRADED_LINKS: &[(u32, u32, ErrorKind, u64)] = &[
    (6, 4, CrcFlit, 7200),
    (6, 4, Replay, 1800),
    (6, 4, Recovery, 60),
    (1, 9, CrcFlit, 240),
];
/// Its XIDs: GPU, XID, and its count before the exporter was started. 74 is the NVLink error.
const DEGRADED_XIDS: &[(u32, u64, u64)] = &[(6, 74, 2)];
/// What the driver asks for since then: GPU and action.
const DEGRADED_ACTIONS: &[(u32, RecoveryAction)] = &[(6, RecoveryAction::GpuReset)];

/// Returns the kinds of errors that the GPUs count.
pub(super) fn kinds(profile: &Profile) -> &'static [ErrorKind] {
    match (profile.is_nvlink4(), profile.is_nvlink5()) {
        (_, true) => NVLINK5,
        (true, _) => NVLINK4,
        _ => BEFORE_HOPPER,
    }
}

/// Returns GPU, link, kind and rate per hour of the errors of the board's links.
pub(super) fn rising(profile: &Profile) -> &'static [(u32, u32, ErrorKind, u64)] {
    degraded(profile, DEGRADED_LINKS)
}

/// Returns GPU, XID and count of each XID before the exporter was started.
pub(super) fn xids(profile: &Profile) -> &'static [(u32, u64, u64)] {
    degraded(profile, DEGRADED_XIDS)
}

/// Returns GPU and action of each GPU for which the driver asks for an action from the start.
pub(super) fn actions(profile: &Profile) -> &'static [(u32, RecoveryAction)] {
    degraded(profile, DEGRADED_ACTIONS)
}

fn degraded<T>(profile: &Profile, all: &'static [T]) -> &'static [T] {
    if profile.name == DEGRADED { all } else { &[] }
}
