//! What one reading of a node gives: the document, and what moves.

use nvlink_topology::NodeTopology;
use serde::{Deserialize, Serialize};

use super::topo_matrix;

/// What one reading gives.
#[derive(Clone, Debug)]
pub struct Reading {
    pub topology: NodeTopology,
    /// The moving parts of the links; empty where the source has none.
    pub counters: Vec<LinkCounters>,
    /// The moving parts of the GPUs; empty where the source has none.
    pub health: Vec<GpuHealth>,
    /// GPUs that were there earlier in this process and do not answer now.
    pub lost: Vec<LostGpu>,
    /// The relations as `nvidia-smi topo -m` shows them, where the source
    /// knows more of them than the document keeps (those of the NICs).
    pub matrix: Option<topo_matrix::Matrix>,
    /// What is odd but usable, a sentence each.
    pub warnings: Vec<String>,
    /// What could not be read now though the source knows it: while there is
    /// any, the graph is not whole and nobody may act on it.
    pub unread: Vec<Unread>,
}

impl Reading {
    /// Whether all that the GPU `index` knows could be read.
    #[must_use]
    pub fn is_read(&self, index: u32) -> bool {
        self.unread.iter().all(|one| one.gpu != Some(index))
    }
}

/// Something that should be known and could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Index of the GPU that was asked; `None` where it is none of those read.
    pub gpu: Option<u32>,
    /// What failed and why, a sentence.
    pub reason: String,
}

/// Counters of one link. What a source cannot count is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkCounters {
    /// Index of the GPU.
    pub gpu: u32,
    /// Index of the link on the GPU.
    pub link: u32,
    /// Where the traffic is read; the same as long as the process lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<CounterSource>,
    /// Payload bytes sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transmit_bytes: Option<u64>,
    /// Payload bytes received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_bytes: Option<u64>,
    /// Payload bytes sent per second, where there is a rate and no count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transmit_bytes_per_second: Option<f64>,
    /// Payload bytes received per second, where there is a rate and no count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_bytes_per_second: Option<f64>,
    /// Errors by kind, in the order of [`ErrorKind`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<(ErrorKind, u64)>,
    /// Bit error ratios by kind, in the order of [`BitErrorKind`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bit_error_ratios: Vec<(BitErrorKind, f64)>,
}

/// Where the traffic of a link is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CounterSource {
    /// Bytes, counted from NVLink 5 on (NVML fields 202 and 204).
    Nvlink5Bytes,
    /// KiB of payload (NVML fields 138 and 139).
    ThroughputData,
    /// A rate between two samples of GPM (Hopper and later).
    Gpm,
}

impl CounterSource {
    /// The word used in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nvlink5Bytes => "nvlink5_bytes",
            Self::ThroughputData => "throughput_data",
            Self::Gpm => "gpm",
        }
    }
}

/// Kinds of link errors. The first five are counted up to Hopper, the others from NVLink 5 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// Flits with a wrong checksum.
    CrcFlit,
    /// Data packets with a wrong checksum.
    CrcData,
    /// Packets that were sent again.
    Replay,
    /// Retrainings of the link (NVLink 5: those that succeeded).
    Recovery,
    /// Errors that the link's memory corrected (NVML `DL_ECC_DATA`).
    EccData,
    /// Retrainings that failed (NVLink 5).
    RecoveryFailed,
    /// Packets received that could not be parsed (NVLink 5).
    MalformedPacket,
    /// Packets dropped for want of a buffer (NVLink 5).
    BufferOverrun,
    /// Packets received with errors (NVLink 5).
    Receive,
    /// Packets received that the sender had marked as bad (NVLink 5).
    ReceiveRemote,
    /// Packets received whose header does not fit (NVLink 5).
    ReceiveGeneral,
    /// Times that the errors of the link exceeded a threshold (NVLink 5).
    LocalLinkIntegrity,
    /// Packets discarded before they were sent (NVLink 5).
    TransmitDiscard,
    /// Errors in packets (NVLink 5).
    Effective,
    /// Errors in received symbols (NVLink 5).
    Symbol,
}

impl ErrorKind {
    /// The word used in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CrcFlit => "crc_flit",
            Self::CrcData => "crc_data",
            Self::Replay => "replay",
            Self::Recovery => "recovery",
            Self::EccData => "ecc_data",
            Self::RecoveryFailed => "recovery_failed",
            Self::MalformedPacket => "malformed_packet",
            Self::BufferOverrun => "buffer_overrun",
            Self::Receive => "receive",
            Self::ReceiveRemote => "receive_remote",
            Self::ReceiveGeneral => "receive_general",
            Self::LocalLinkIntegrity => "local_link_integrity",
            Self::TransmitDiscard => "transmit_discard",
            Self::Effective => "effective",
            Self::Symbol => "symbol",
        }
    }
}

/// Kinds of bit error ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BitErrorKind {
    /// After forward error correction.
    Effective,
    /// Of symbols.
    Symbol,
}

impl BitErrorKind {
    /// The word used in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Effective => "effective",
            Self::Symbol => "symbol",
        }
    }
}

/// How a GPU and its place in the fabric do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuHealth {
    /// Index of the GPU.
    pub gpu: u32,
    /// The fabric as the GPU sees it; absent where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<FabricHealth>,
    /// XID and how often it came since the source was opened, by ascending
    /// XID. Absent where the source cannot watch for them, empty where none came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xids: Option<Vec<(u64, u64)>>,
}

/// The NVLink fabric as one GPU sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FabricHealth {
    /// How far the GPU's registration is.
    pub state: FabricState,
    /// What the fabric manager says of it, by ascending condition; what it does not say is absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<(FabricCondition, bool)>,
}

/// How far the registration of a GPU with its fabric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FabricState {
    /// Nobody has begun: no fabric manager, or it does not know the GPU.
    NotStarted,
    /// Under way.
    InProgress,
    /// Ended well.
    Completed,
    /// Ended with an error.
    Failed,
}

impl FabricState {
    pub const ALL: [Self; 4] = [
        Self::NotStarted,
        Self::InProgress,
        Self::Completed,
        Self::Failed,
    ];

    /// The word used in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotStarted => "not_started",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }
}

/// What can be wrong with a GPU's place in its fabric; named after the masks
/// `NVML_GPU_FABRIC_HEALTH_MASK_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FabricCondition {
    /// Fewer links than the board has.
    DegradedBandwidth,
    RouteRecovery,
    RouteUnhealthy,
    /// Recovery after an access timed out.
    AccessTimeoutRecovery,
    /// Wired or set up in a way that the fabric does not take.
    IncorrectConfiguration,
}

impl FabricCondition {
    /// The word used in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DegradedBandwidth => "degraded_bandwidth",
            Self::RouteRecovery => "route_recovery",
            Self::RouteUnhealthy => "route_unhealthy",
            Self::AccessTimeoutRecovery => "access_timeout_recovery",
            Self::IncorrectConfiguration => "incorrect_configuration",
        }
    }
}

/// A GPU that was there and does not answer now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LostGpu {
    /// Its index, while it was there.
    pub index: u32,
    /// `GPU-…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// PCI address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_bus_id: Option<String>,
    /// What the driver says of it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// XIDs and how often they came, as in [`GpuHealth`]: they often say why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xids: Vec<(u64, u64)>,
}
