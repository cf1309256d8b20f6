//! The result of one reading of a node: the document, counters and health.

use nvlink_topology::{NodeTopology, NodeTopologySpec, RecoveryAction};
use serde::{Deserialize, Serialize};

use super::topo_matrix;

/// The result of one reading.
#[derive(Clone, Debug)]
pub struct Reading {
    pub topology: NodeTopology,
    /// The spec with the constants that a calibration replaced; none if nothing was replaced.
    pub uncalibrated: Option<NodeTopologySpec>,
    /// Counters of the links; empty if the source has none.
    pub counters: Vec<LinkCounters>,
    /// Health of the GPUs; empty if the source has none.
    pub health: Vec<GpuHealth>,
    /// GPUs that answered earlier in this process and do not answer now.
    pub lost: Vec<LostGpu>,
    /// The relations as `nvidia-smi topo -m` shows them, if the source knows
    /// more relations than the document holds (those of the NICs).
    pub matrix: Option<topo_matrix::Matrix>,
    /// Problems that leave the reading usable, a sentence each.
    pub warnings: Vec<String>,
    /// Facts that the source knows but failed to read now. While there are
    /// any, the graph is incomplete and must not be acted on.
    pub unread: Vec<Unread>,
}

impl Reading {
    /// Returns a reading of `topology` alone.
    #[must_use]
    pub(crate) fn of(topology: NodeTopology) -> Self {
        Self {
            topology,
            uncalibrated: None,
            counters: Vec::new(),
            health: Vec::new(),
            lost: Vec::new(),
            matrix: None,
            warnings: Vec::new(),
            unread: Vec::new(),
        }
    }

    /// Returns the health of the GPU `index`.
    #[must_use]
    pub fn health_of(&self, index: u32) -> Option<&GpuHealth> {
        self.health.iter().find(|one| one.gpu == index)
    }

    /// Returns the spec with constants for all bandwidths, with which measurements are compared:
    /// compared with themselves they would say nothing.
    #[must_use]
    pub fn by_constants(&self) -> &NodeTopologySpec {
        let calibrated = &self.topology.spec;
        self.uncalibrated.as_ref().unwrap_or(calibrated)
    }

    /// Reports whether everything about the GPU `index` could be read.
    #[must_use]
    pub fn is_read(&self, index: u32) -> bool {
        self.unread.iter().all(|one| one.gpu != Some(index))
    }
}

/// A fact that the source should know but failed to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Index of the GPU that was queried; `None` if the failure is not of one GPU.
    pub gpu: Option<u32>,
    /// What failed and why, as a sentence.
    pub reason: String,
}

/// Counters of one link. Values that the source cannot count are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkCounters {
    /// Index of the GPU.
    pub gpu: u32,
    /// Index of the link on the GPU.
    pub link: u32,
    /// The counter from which the traffic is read; it never changes while the process runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<CounterSource>,
    /// Payload bytes sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transmit_bytes: Option<u64>,
    /// Payload bytes received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_bytes: Option<u64>,
    /// Payload bytes sent per second, if the source has a rate but no count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transmit_bytes_per_second: Option<f64>,
    /// Payload bytes received per second, if the source has a rate but no count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_bytes_per_second: Option<f64>,
    /// Errors by kind, in the order of [`ErrorKind`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<(ErrorKind, u64)>,
    /// Bit error ratios by kind, in the order of [`BitErrorKind`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bit_error_ratios: Vec<(BitErrorKind, f64)>,
}

/// The counter from which the traffic of a link is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum CounterSource {
    /// Bytes, from NVLink 5 on (NVML fields 202 and 204).
    Nvlink5Bytes,
    /// KiB of payload (NVML fields 138 and 139).
    ThroughputData,
    /// The rate between two GPM samples (Hopper and later).
    Gpm,
}

impl CounterSource {
    /// Returns the word used in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Kinds of link errors. GPUs up to Hopper count the first five, GPUs with NVLink 5 the others.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ErrorKind {
    /// Flits with a wrong checksum.
    CrcFlit,
    /// Data packets with a wrong checksum.
    CrcData,
    /// Packets that were retransmitted.
    Replay,
    /// Retrainings of the link (NVLink 5: successful ones only).
    Recovery,
    /// Errors that the link's memory corrected (NVML `DL_ECC_DATA`).
    EccData,
    /// Retrainings that failed (NVLink 5).
    RecoveryFailed,
    /// Packets received that could not be parsed (NVLink 5).
    MalformedPacket,
    /// Packets dropped because no buffer was free (NVLink 5).
    BufferOverrun,
    /// Packets received with errors (NVLink 5).
    Receive,
    /// Packets received that the sender had marked as bad (NVLink 5).
    ReceiveRemote,
    /// Packets received whose header does not match (NVLink 5).
    ReceiveGeneral,
    /// How often the link's errors exceeded a threshold (NVLink 5).
    LocalLinkIntegrity,
    /// Packets discarded before they were sent (NVLink 5).
    TransmitDiscard,
    /// Errors in packets that forward error correction left (NVLink 5).
    Effective,
    /// Errors in received symbols that all correction of the physical layer left (NVLink 5).
    Symbol,
}

impl ErrorKind {
    /// Returns the word used in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Kinds of bit error ratio, as the fields `Effective_BER` and `Symbol_BER` of NVIDIA UFM's telemetry are defined:
/// <https://docs.nvidia.com/networking/display/ufmenterpriseumv6242/low-frequency-(secondary)-telemetry-fields>.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum BitErrorKind {
    /// After forward error correction.
    Effective,
    /// After forward error correction and the retransmission of the physical layer.
    Symbol,
}

impl BitErrorKind {
    /// Returns the word used in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The health of a GPU and of its registration with the fabric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuHealth {
    /// Index of the GPU.
    pub gpu: u32,
    /// The fabric as the GPU sees it; absent if the GPU has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<FabricHealth>,
    /// What the driver says must be done with the GPU. Absent if the driver does not say it,
    /// or if that could not be read now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryAction>,
    /// Whether rows of its memory wait to be remapped or could not be, in ascending order.
    /// What the driver does not report is absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub row_remap: Vec<(RowRemap, bool)>,
    /// XIDs, each with its count since the source was opened, by ascending
    /// XID. Absent if the source cannot watch for XIDs, empty if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xids: Option<Vec<(u64, u64)>>,
}

/// A state of the remapping of rows of a GPU's memory (NVML's fields 144 and 145).
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RowRemap {
    /// The next reset of the GPU remaps rows.
    Pending,
    /// Rows could not be remapped.
    Failed,
}

impl RowRemap {
    /// Returns the word used in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The NVLink fabric as one GPU sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FabricHealth {
    /// State of the GPU's registration.
    pub state: FabricState,
    /// Conditions that the fabric manager reports, in ascending order. Others are absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<(FabricCondition, bool)>,
}

/// State of a GPU's registration with its fabric.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    strum::EnumIter,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum FabricState {
    /// Not started: there is no fabric manager, or it does not know the GPU.
    NotStarted,
    InProgress,
    /// Ended successfully.
    Completed,
    /// Ended with an error.
    Failed,
}

impl FabricState {
    /// Returns the word used in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A problem of a GPU's connection to its fabric, named after the masks
/// `NVML_GPU_FABRIC_HEALTH_MASK_*`.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::EnumIter,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum FabricCondition {
    /// Fewer links than the board has.
    DegradedBandwidth,
    RouteRecovery,
    RouteUnhealthy,
    /// Recovery after an access timed out.
    AccessTimeoutRecovery,
    /// Wired or configured in a way that the fabric does not accept.
    IncorrectConfiguration,
}

impl FabricCondition {
    /// Returns the word used in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A GPU that answered earlier and does not answer now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LostGpu {
    /// Its last known index.
    pub index: u32,
    /// `GPU-…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// PCI address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_bus_id: Option<String>,
    /// What the driver reports about it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// XIDs with their counts, as in [`GpuHealth`]: they often explain the loss.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xids: Vec<(u64, u64)>,
}
