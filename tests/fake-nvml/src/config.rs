//! The configuration file: a board, its properties that a recording does not have, and
//! faults.

use std::{collections::BTreeMap, path::PathBuf};

use nvlink_topology::NodeTopology;
use serde::Deserialize;

/// The configuration file. Everything but the board has a default from the GPUs' model.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) board: BoardSpec,
    #[serde(default = "driver_version")]
    pub(crate) driver_version: String,
    /// Differences from the model's defaults, by position on the board.
    #[serde(default)]
    pub(crate) gpus: BTreeMap<usize, GpuOptions>,
    /// Answers of `nvmlDeviceGetP2PStatus`; the first matching one is used.
    #[serde(default)]
    pub(crate) p2p: Vec<P2p>,
    /// Versions of `nvmlGpuFabricInfoV` that the driver supports.
    #[serde(default = "fabric_versions")]
    pub(crate) fabric_info_versions: Vec<u32>,
    /// Positions of GPUs that have fallen off the bus.
    #[serde(default)]
    pub(crate) lost: Vec<usize>,
    /// Positions of GPUs that are no longer listed; the indices of those after them
    /// decrease.
    #[serde(default)]
    pub(crate) removed: Vec<usize>,
    /// XIDs, each delivered once, in this order; append to deliver more.
    #[serde(default)]
    pub(crate) xids: Vec<Xid>,
    /// The library does not separate event sets: the first caller gets the event.
    #[serde(default)]
    pub(crate) event_sets_shared: bool,
    #[serde(default)]
    pub(crate) faults: Vec<Fault>,
    /// A file to which a line is added when a function is called for the first
    /// time (`call NAME`), and whenever a call begins to hang (`hang NAME`).
    pub(crate) trace: Option<PathBuf>,
}

fn driver_version() -> String {
    "580.95.05".to_owned()
}

fn fabric_versions() -> Vec<u32> {
    vec![2, 3]
}

/// A recording, inline or in a separate file.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum BoardSpec {
    File(PathBuf),
    Here(Box<NodeTopology>),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct GpuOptions {
    pub(crate) fabric: Option<FabricOptions>,
    /// The traffic counters that answer.
    pub(crate) counters: Option<Vec<Counter>>,
    /// Type of far ends without a PCI address (2 switch, 255 unknown).
    pub(crate) hidden_type: Option<u32>,
    pub(crate) minor: Option<u32>,
    /// As `nvmlGpuVirtualizationMode_t`.
    pub(crate) virtualization: u32,
    /// As `nvmlDeviceGpuRecoveryAction_t`.
    pub(crate) recovery_action: u32,
    /// Rows wait to be remapped, or could not be.
    pub(crate) row_remap_pending: bool,
    pub(crate) row_remap_failed: bool,
    pub(crate) links: BTreeMap<u32, LinkOptions>,
}

/// Ways to count traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Counter {
    ThroughputData,
    Nvlink5Bytes,
    Gpm,
}

/// The fabric as the GPU reports it, in NVML's own numbers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct FabricOptions {
    /// The call itself fails with this code.
    pub(crate) error: Option<u32>,
    pub(crate) state: Option<u8>,
    pub(crate) status: Option<u32>,
    pub(crate) cluster_uuid: Option<String>,
    pub(crate) clique: Option<u32>,
    pub(crate) health_mask: Option<u32>,
    pub(crate) health_summary: Option<u8>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct LinkOptions {
    /// As field 165: 0 inactive, 1 active, 2 asleep.
    pub(crate) state: Option<u32>,
    /// Counts so far. By default, the far end of a direct link receives what is sent.
    pub(crate) transmit_kib: Option<u64>,
    pub(crate) receive_kib: Option<u64>,
    pub(crate) transmit_kib_per_second: Option<u64>,
    pub(crate) receive_kib_per_second: Option<u64>,
    /// By the names in [`crate::fields`].
    pub(crate) errors: BTreeMap<String, u64>,
    /// Raw values of fields, for any model.
    pub(crate) fields: BTreeMap<u32, u64>,
}

/// P2P status of a pair, in both directions; of all pairs if none is given.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct P2p {
    pub(crate) pair: Option<(usize, usize)>,
    /// As `nvmlGpuP2PCapsIndex_t`; any if absent.
    pub(crate) index: Option<u32>,
    /// As `nvmlGpuP2PStatus_t`.
    pub(crate) status: u32,
}

/// An XID error of a GPU.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Xid {
    pub(crate) gpu: usize,
    pub(crate) xid: u64,
}

/// A fault of the calls that match all given conditions.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Fault {
    /// Name of the function; any if absent.
    pub(crate) function: Option<String>,
    pub(crate) gpu: Option<usize>,
    pub(crate) link: Option<u32>,
    /// One value of `nvmlDeviceGetFieldValues`.
    pub(crate) field: Option<u32>,
    /// The call returns this code.
    #[serde(default)]
    pub(crate) error: Option<u32>,
    /// The call does not return until the fault is removed from the file.
    #[serde(default)]
    pub(crate) hang: bool,
}
