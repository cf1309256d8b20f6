//! The text of `nvidia-smi topo -m`, as found in captures, issues and chat logs.
//!
//! The parser is tolerant of form: escapes, tabs or blanks, quotes and surrounding
//! prose, a second `-p2p` matrix, a missing legend. It is strict about content: a
//! matrix that is truncated or wrapped, has joined cells or contradicts itself is
//! refused with its line, since a wrong relation would place jobs wrongly.

mod cell;
mod check;
mod draft;
mod line;
mod read;
mod spec;
mod tail;

use super::text::LineError;
use line::{unquoted, without_escapes};

pub use cell::Relation;
pub use spec::{of_document, spec};

/// What to do about a text that was damaged by copying.
const SAVE_IT: &str = "save it with `nvidia-smi topo -m > topo.txt` and use that file";

/// Parses the topology matrix in `text`.
///
/// # Errors
/// No such matrix, two of them, or one that is truncated or contradicts itself.
pub fn parse(text: &str) -> Result<Matrix, LineError> {
    let lines = text.lines().map(|line| without_escapes(unquoted(line)));
    read::read((1..).zip(lines))
}

/// A complete and consistent matrix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matrix {
    /// The GPUs, in the order of the columns.
    pub gpus: Vec<GpuRow>,
    /// The NICs, in the order of the columns.
    pub nics: Vec<NicColumn>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuRow {
    /// The number in `GPUn`.
    pub index: u32,
    /// The relation to each GPU, including itself.
    pub to_gpus: Vec<Relation>,
    pub to_nics: Vec<Relation>,
    /// The `CPU Affinity` cell; empty if there is none.
    pub cpu_affinity: String,
    /// The `NUMA Affinity` cell; empty if there is none.
    pub numa_affinity: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicColumn {
    /// The column's title: `NIC0`, `mlx5_0`.
    pub title: String,
    /// The name in the NIC legend, else the title.
    pub name: String,
    /// The relation to each NIC, including itself; empty if the capture has no NIC rows.
    pub to_nics: Vec<Relation>,
}

#[cfg(test)]
mod tests;
