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

/// A link with errors.
pub(super) struct RisingError {
    pub(super) gpu: u32,
    pub(super) link: u32,
    pub(super) kind: ErrorKind,
    pub(super) per_hour: u64,
}

/// The errors of `h200-degraded`; the other boards have none.
const DEGRADED: (&str, &[RisingError]) = (
    "h200-degraded",
    &[
        RisingError {
            gpu: 6,
            link: 4,
            kind: CrcFlit,
            per_hour: 7200,
        },
        RisingError {
            gpu: 6,
            link: 4,
            kind: Replay,
            per_hour: 1800,
        },
        RisingError {
            gpu: 6,
            link: 4,
            kind: Recovery,
            per_hour: 60,
        },
        RisingError {
            gpu: 1,
            link: 9,
            kind: CrcFlit,
            per_hour: 240,
        },
    ],
);
/// Their XIDs: GPU, XID, and its count before the exporter was started. 74 is the NVLink error.
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

/// Returns the errors of the board's links.
pub(super) fn rising(profile: &Profile) -> &'static [RisingError] {
    match profile.name == DEGRADED.0 {
        true => DEGRADED.1,
        false => &[],
    }
}

/// Returns GPU, XID and count of each XID before the exporter was started.
pub(super) fn xids(profile: &Profile) -> &'static [(u32, u64, u64)] {
    match profile.name == DEGRADED.0 {
        true => DEGRADED_XIDS,
        false => &[],
    }
}

/// Returns GPU and action of each GPU for which the driver asks for an action from the start.
pub(super) fn actions(profile: &Profile) -> &'static [(u32, RecoveryAction)] {
    match profile.name == DEGRADED.0 {
        true => DEGRADED_ACTIONS,
        false => &[],
    }
}
