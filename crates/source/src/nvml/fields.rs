//! The fields that are queried for the links, and their meaning. Pure functions
//! except [`Answers::ask`].

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::field_id::*;

use super::{
    error::{Trouble, is_gpu, is_library, is_unknown},
    failures::{Failures, detail, graph},
    raw,
};
use crate::{BitErrorKind, ErrorKind};

/// The way a GPU counts, by its architecture.
///
/// The architecture decides which fields are queried, not which fields answer:
/// fields of older generations answer *success, 0* on newer ones
/// (`NVML_FI_DEV_NVLINK_*_ERROR_COUNT_*` on Hopper), and such a zero would hide a
/// failing link. Those fields are never queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Era {
    /// Up to Ampere: errors from a separate call.
    Ampere,
    /// Hopper: errors from fields with a scope, and from the call.
    Hopper,
    /// NVLink 5 and later: the counters introduced with Blackwell.
    Blackwell,
    /// Unknown: any field that answers, the newest first.
    Unknown,
}

/// Fields of each link on every GPU: traffic and speed.
const ALWAYS: [u32; 5] = [
    NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES,
    NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES,
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
    NVML_FI_DEV_NVLINK_GET_SPEED,
];

/// Error counters of Hopper. Its only CRC counter counts flits: NVLink 4 has no other,
/// and `nvidia-smi nvlink -e` shows one.
const HOPPER_ERRORS: [(ErrorKind, u32); 3] = [
    (ErrorKind::CrcFlit, NVML_FI_DEV_NVLINK_ERROR_DL_CRC),
    (ErrorKind::Replay, NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY),
    (ErrorKind::Recovery, NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY),
];

/// Error counters of NVLink 5.
const NVLINK5_ERRORS: [(ErrorKind, u32); 11] = [
    (
        ErrorKind::Recovery,
        NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS,
    ),
    (
        ErrorKind::RecoveryFailed,
        NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS,
    ),
    (
        ErrorKind::MalformedPacket,
        NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS,
    ),
    (
        ErrorKind::BufferOverrun,
        NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS,
    ),
    (ErrorKind::Receive, NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS),
    (
        ErrorKind::ReceiveRemote,
        NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS,
    ),
    (
        ErrorKind::ReceiveGeneral,
        NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS,
    ),
    (
        ErrorKind::LocalLinkIntegrity,
        NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS,
    ),
    (
        ErrorKind::TransmitDiscard,
        NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS,
    ),
    (
        ErrorKind::Effective,
        NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS,
    ),
    (ErrorKind::Symbol, NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS),
];

/// Bit error ratios of NVLink 5.
const NVLINK5_RATIOS: [(BitErrorKind, u32); 2] = [
    (
        BitErrorKind::Effective,
        NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER,
    ),
    (BitErrorKind::Symbol, NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER),
];

impl Era {
    /// Returns the era of a GPU with this CUDA compute capability (its major number).
    pub(super) fn of(capability: Option<i32>) -> Self {
        match capability {
            None => Self::Unknown,
            Some(..9) => Self::Ampere,
            Some(9) => Self::Hopper,
            Some(10..) => Self::Blackwell,
        }
    }

    /// Reports whether the state of a link is a field with a scope, which also shows
    /// sleeping links.
    pub(super) fn has_state_field(self) -> bool {
        self != Self::Ampere
    }

    /// Returns the error kinds that the call for error counters supports on such a
    /// GPU, each with its number in that call.
    pub(super) fn error_calls(self) -> &'static [(ErrorKind, u32)] {
        const CALLS: [(ErrorKind, u32); 5] = [
            (ErrorKind::Replay, 0),
            (ErrorKind::Recovery, 1),
            (ErrorKind::CrcFlit, 2),
            (ErrorKind::EccData, 4),
            (ErrorKind::CrcData, 3),
        ];
        match self {
            Self::Ampere | Self::Unknown => &CALLS,
            // Hopper has one CRC counter.
            Self::Hopper => &CALLS[..4],
            Self::Blackwell => &[],
        }
    }

    /// Returns the fields to query for each link, in one call.
    pub(super) fn link_fields(self) -> Vec<u32> {
        let mut ids = ALWAYS.to_vec();
        if self.has_state_field() {
            ids.push(NVML_FI_DEV_NVLINK_GET_STATE);
        }
        if matches!(self, Self::Hopper | Self::Unknown) {
            ids.extend(HOPPER_ERRORS.map(|(_, id)| id));
        }
        if matches!(self, Self::Blackwell | Self::Unknown) {
            ids.extend(NVLINK5_ERRORS.map(|(_, id)| id));
            ids.extend(NVLINK5_RATIOS.map(|(_, id)| id));
        }
        ids
    }
}

/// The call that queries fields.
pub(super) const FIELDS: &str = "nvmlDeviceGetFieldValues";

/// The field values of a GPU's links: one for each link and supported field.
#[derive(Debug, Default)]
pub(super) struct Answers {
    ids: Vec<u32>,
    values: Vec<Option<u64>>,
    /// Link, field and error of supported values that failed.
    failed: Vec<(u32, u32, String)>,
}

impl Answers {
    /// Queries the fields `ids` of the first `links` links of `device`, in one call.
    pub(super) fn ask(
        device: &Device<'_>,
        links: u32,
        ids: Vec<u32>,
        failures: &mut Failures,
    ) -> Result<Self, Trouble> {
        let wanted: Vec<_> = (0..links)
            .flat_map(|link| ids.iter().map(move |&id| (id, link)))
            .collect();
        let mut answers = Self {
            ids,
            ..Self::default()
        };
        if wanted.is_empty() {
            return Ok(answers);
        }
        let values = raw::field_values(device, &wanted);
        let values = failures.ask(graph(FIELDS), values)?.given();
        for ((id, link), value) in wanted.into_iter().zip(values.unwrap_or_default()) {
            answers.values.push(match value {
                Ok(value) => Some(value),
                Err(error) if is_library(&error) => return Err(Trouble::Library(error)),
                Err(error) if is_gpu(&error) => return Err(Trouble::Gpu(error)),
                Err(error) => {
                    if !is_unknown(&error) {
                        answers.failed.push((link, id, error.to_string()));
                    }
                    None
                }
            });
        }
        Ok(answers)
    }

    /// Adds the values that failed to `failures`. The graph depends on the states of
    /// links, and on the speeds of links that are `up`; other links need no speed.
    pub(super) fn tell(&self, up: impl Fn(u32) -> bool, failures: &mut Failures) {
        for (link, id, error) in &self.failed {
            let needed = match *id {
                NVML_FI_DEV_NVLINK_GET_STATE => true,
                NVML_FI_DEV_NVLINK_GET_SPEED => up(*link),
                _ => false,
            };
            let call = if needed { graph } else { detail };
            failures.add(call(FIELDS).of_field(*id).of_link(*link), error.clone());
        }
    }

    /// Reports whether reading the state of the link failed.
    pub(super) fn state_failed(&self, link: u32) -> bool {
        let state = (link, NVML_FI_DEV_NVLINK_GET_STATE);
        self.failed.iter().any(|&(link, id, _)| (link, id) == state)
    }

    /// Creates the answers of one link, for tests.
    #[cfg(test)]
    pub(super) fn of_link(answers: &[(u32, u64)]) -> Self {
        Self {
            ids: answers.iter().map(|&(id, _)| id).collect(),
            values: answers.iter().map(|&(_, value)| Some(value)).collect(),
            failed: Vec::new(),
        }
    }

    /// Returns the value of a field of a link.
    pub(super) fn get(&self, link: u32, id: u32) -> Option<u64> {
        let column = self.ids.iter().position(|&one| one == id)?;
        *self.values.get(link as usize * self.ids.len() + column)?
    }

    /// Reports whether the link is up. A sleeping link is up, since it wakes by itself.
    pub(super) fn up(&self, link: u32) -> Option<bool> {
        let state = self.get(link, NVML_FI_DEV_NVLINK_GET_STATE)?;
        Some(matches!(state, 1 | 2))
    }

    /// Returns the line rate of the link, bytes per second in one direction.
    pub(super) fn speed(&self, link: u32) -> Option<u64> {
        bytes_per_second(self.get(link, NVML_FI_DEV_NVLINK_GET_SPEED))
    }

    /// Returns the errors from fields, by ascending kind: the counters of NVLink 5 if
    /// any of them answers, else those of Hopper. Both families have one kind in common.
    pub(super) fn errors(&self, link: u32) -> Vec<(ErrorKind, u64)> {
        let all = |kinds: &[(ErrorKind, u32)]| -> Vec<_> {
            let value = |&(kind, id): &(ErrorKind, u32)| Some((kind, self.get(link, id)?));
            kinds.iter().filter_map(value).collect()
        };
        let mut errors = all(&NVLINK5_ERRORS);
        if errors.is_empty() {
            errors = all(&HOPPER_ERRORS);
        }
        errors.sort_unstable();
        errors
    }

    /// Returns the bit error ratios, by ascending kind.
    pub(super) fn bit_error_ratios(&self, link: u32) -> Vec<(BitErrorKind, f64)> {
        let ratio = |&(kind, id): &(BitErrorKind, u32)| Some((kind, ratio(self.get(link, id)?)?));
        NVLINK5_RATIOS.iter().filter_map(ratio).collect()
    }
}

/// Converts a speed in MB/s (10⁶ bytes) to bytes per second; 0 means unknown.
pub(super) fn bytes_per_second(megabytes: Option<u64>) -> Option<u64> {
    megabytes
        .filter(|&rate| rate > 0)
        .map(|rate| rate.saturating_mul(1_000_000))
}

/// Returns the field with the speed of a link on older drivers.
pub(super) fn old_speed_field(link: u32) -> Option<u32> {
    match link {
        0..6 => Some(NVML_FI_DEV_NVLINK_SPEED_MBPS_L0 + link),
        6..12 => Some(NVML_FI_DEV_NVLINK_SPEED_MBPS_L6 + link - 6),
        _ => None,
    }
}

/// Unpacks a bit error ratio of the driver: mantissa in bits 8 to 11, (negative)
/// decimal exponent in bits 0 to 7. The maximum of both means no errors. Returns
/// `None` for values above 1, which are not ratios.
pub(super) fn ratio(packed: u64) -> Option<f64> {
    let (mantissa, exponent) = (packed >> 8 & 0xf, packed & 0xff);
    let ratio = match (mantissa, exponent) {
        (15, 255) => 0.0,
        (mantissa, exponent) => mantissa as f64 * 10_f64.powi(-(exponent as i32)),
    };
    (ratio <= 1.0).then_some(ratio)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ratios_have_a_mantissa_and_an_exponent() {
        assert_eq!(ratio(15 << 8 | 255), Some(0.0), "no errors");
        assert_eq!(ratio(1 << 8 | 12), Some(1e-12));
        assert_eq!(ratio(15 << 8 | 254), Some(15.0 * 10_f64.powi(-254)));
        assert_eq!(ratio(0xffff_0000 | 3 << 8 | 7), Some(3.0 * 10_f64.powi(-7)));
        assert_eq!(ratio(0), Some(0.0));
        assert_eq!(ratio(1 << 8), Some(1.0));
        assert_eq!(ratio(2 << 8), None, "twice as many errors as bits");
    }

    proptest! {
        #[test]
        fn a_ratio_is_between_0_and_1(packed: u64) {
            let ratio = ratio(packed);
            prop_assert!(ratio.is_none_or(|ratio| (0.0..=1.0).contains(&ratio)), "{ratio:?}");
        }
    }

    #[test]
    fn fields_with_wrong_values_are_never_queried() {
        // NVML_FI_DEV_NVLINK_{CRC_FLIT,CRC_DATA,REPLAY,RECOVERY,ECC_DATA}_ERROR_COUNT_*.
        let legacy = |id: u32| matches!(id, 32..=59 | 96..=119 | 148..=160);
        for era in [Era::Ampere, Era::Hopper, Era::Blackwell, Era::Unknown] {
            assert!(!era.link_fields().into_iter().any(legacy), "{era:?}");
        }
        let blackwell = Era::Blackwell.link_fields();
        assert!(!blackwell.contains(&NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY));
        assert!(Era::Blackwell.error_calls().is_empty());
    }

    #[test]
    fn the_era_follows_from_the_capability() {
        let eras = [
            (None, Era::Unknown),
            (Some(6), Era::Ampere),
            (Some(8), Era::Ampere),
            (Some(9), Era::Hopper),
            (Some(10), Era::Blackwell),
            (Some(12), Era::Blackwell),
        ];
        for (capability, era) in eras {
            assert_eq!(Era::of(capability), era, "{capability:?}");
        }
    }

    #[test]
    fn sleeping_links_are_up_and_silent_ones_are_unknown() {
        let of = |state| Answers::of_link(&[(NVML_FI_DEV_NVLINK_GET_STATE, state)]).up(0);
        assert_eq!([of(0), of(1), of(2)], [Some(false), Some(true), Some(true)]);
        assert_eq!(Answers::default().up(0), None);
    }

    #[test]
    fn answers_are_found_by_link_and_field() {
        let answers = Answers {
            ids: vec![164, 165],
            values: vec![Some(26_562), Some(1), None, Some(0)],
            failed: Vec::new(),
        };
        assert_eq!(answers.speed(0), Some(26_562_000_000));
        assert_eq!(answers.speed(1), None);
        assert_eq!(answers.up(1), Some(false));
        assert_eq!(answers.get(2, 164), None, "no such link");
        assert_eq!(answers.get(0, 138), None, "not queried");
        assert_eq!(bytes_per_second(Some(0)), None);
    }

    #[test]
    fn each_generation_has_its_kinds_of_errors() {
        let hopper = Answers::of_link(&[(161, 7), (162, 0), (163, 2)]).errors(0);
        use ErrorKind::*;
        assert_eq!(hopper, [(CrcFlit, 2), (Replay, 7), (Recovery, 0)]);
        // Both families answer: the newer generation is used.
        let both = Answers::of_link(&[(162, 9), (213, 1), (214, 0), (221, 5)]).errors(0);
        assert_eq!(both, [(Recovery, 1), (RecoveryFailed, 0), (Symbol, 5)]);
        assert_eq!(Answers::default().errors(0), []);
    }

    #[test]
    fn old_speed_fields_exist_for_twelve_links() {
        assert_eq!(old_speed_field(0), Some(84));
        assert_eq!(old_speed_field(5), Some(89));
        assert_eq!(old_speed_field(6), Some(132));
        assert_eq!(old_speed_field(11), Some(137));
        assert_eq!(old_speed_field(12), None);
    }
}
