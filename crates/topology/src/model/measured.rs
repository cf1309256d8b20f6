//! What benchmarks measured on a node, and on those like it.

use serde::{Deserialize, Serialize};

use super::PathClass;

/// The measured bandwidth of one class of path between GPUs of one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    /// Product name of the GPUs, `NVIDIA H100 80GB HBM3`.
    pub model: String,
    /// The class of the slowest path between the GPUs that were measured.
    pub path: PathClass,
    /// Measured bandwidth of the path divided by what the constants give for the same GPUs: the
    /// median of the runs, without what switches gained by adding up the data (NVLS).
    pub factor: f64,
    /// Number of runs without outliers.
    pub runs: u32,
    /// When the latest of them ended, seconds since 1970.
    pub measured_at: u64,
    /// The same for each number of GPUs, ascending, with which the runs of a node are compared.
    /// Only runs of as many GPUs are alike: NVLS, for one, makes all-reduces faster from
    /// some number on. Absent if another version wrote the entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 128)))]
    pub sets: Vec<MeasuredSet>,
}

/// What sets of as many GPUs measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct MeasuredSet {
    /// Number of GPUs that were measured together.
    pub gpus: u32,
    /// Measured bus bandwidth divided by what the constants give: the median of the runs, with
    /// what switches gained.
    pub factor: f64,
    /// Number of runs without outliers.
    pub runs: u32,
}

/// What GPUs of a node measured, compared with as many GPUs of its siblings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// Product name of the GPUs, `NVIDIA H100 80GB HBM3`.
    pub model: String,
    /// The class of the slowest path between the GPUs that were measured.
    pub path: PathClass,
    /// Number of GPUs that were measured together.
    pub gpus: u32,
    /// The median of the node's latest runs divided by that of its siblings, in hundredths.
    pub ratio: f64,
    /// Number of the node's runs.
    pub runs: u32,
}
