//! The words of a matrix.

use std::fmt;

use nvlink_topology::PathClass;

/// The connection between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Relation {
    /// `X`: a device and itself.
    Own,
    /// `NV#`: the number of NVLinks.
    Nvlink(u32),
    Class(PathClass),
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("X"),
            Self::Nvlink(links) => write!(f, "NV{links}"),
            Self::Class(class) => f.write_str(class.as_str()),
        }
    }
}

/// A valid word of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cell {
    /// A word of `topo -m`.
    Relation(Relation),
    /// A word of `topo -p2p`.
    PeerStatus,
}

/// The maximum number of links of a GPU (`NVML_NVLINK_MAX_LINKS`). Guards against
/// joined cells such as `NV1818`.
pub(super) const MAX_LINKS: u32 = 36;

pub(super) fn parse(word: &str) -> Option<Cell> {
    let class = |class| Some(Cell::Relation(Relation::Class(class)));
    match word {
        "X" => Some(Cell::Relation(Relation::Own)),
        "PIX" => class(PathClass::Pix),
        "PXB" => class(PathClass::Pxb),
        "PHB" => class(PathClass::Phb),
        "NODE" => class(PathClass::Node),
        // Drivers before 2017 wrote SOC ("socket-level link") for SYS.
        "SYS" | "SOC" => class(PathClass::Sys),
        "OK" | "NS" | "CNS" | "GNS" | "TNS" | "DR" | "U" => Some(Cell::PeerStatus),
        word => {
            let digits = word.strip_prefix("NV")?;
            let plain = !digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit());
            let links = plain.then(|| digits.parse().ok()).flatten()?;
            (1..=MAX_LINKS)
                .contains(&links)
                .then_some(Cell::Relation(Relation::Nvlink(links)))
        }
    }
}

/// Returns the number in `GPUn`.
pub(super) fn gpu(word: &str) -> Option<u32> {
    let digits = word.strip_prefix("GPU")?;
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

/// Reports whether `word` is a NIC's title, such as `NIC0` or `mlx5_bond_0`: a name
/// with a digit that is not a word of the matrix.
pub(super) fn is_nic(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.bytes().any(|byte| byte.is_ascii_digit())
        && word
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
        && word.len() <= 64
        && parse(word).is_none()
        && gpu(word).is_none()
}
