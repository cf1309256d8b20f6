//! Collectives: their names and their bus bandwidth.

use serde::{Deserialize, Serialize};
use strum::IntoEnumIterator;

/// A collective operation that a benchmark measures, by the name that nccl-tests uses.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    strum::Display,
    strum::EnumIter,
    strum::EnumString,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", parse_err_ty = UnknownCollective, parse_err_fn = unknown)]
pub enum Collective {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    #[serde(rename = "alltoall")]
    #[strum(serialize = "alltoall")]
    AllToAll,
    Gather,
    Scatter,
    #[serde(rename = "sendrecv")]
    #[strum(serialize = "sendrecv")]
    SendRecv,
    Hypercube,
}

impl Collective {
    /// Returns the name that nccl-tests uses, which is also the value of the label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns the collective of a program of nccl-tests, such as
    /// `/opt/nccl-tests/build/all_reduce_perf`.
    #[must_use]
    pub(crate) fn of_program(path: &str) -> Option<Self> {
        let name = path.rsplit('/').next().unwrap_or(path);
        let name = name.strip_suffix("_mpi").unwrap_or(name);
        name.strip_suffix("_perf").unwrap_or(name).parse().ok()
    }

    /// Returns the collective of a function of NCCL, such as `ReduceScatter`.
    #[must_use]
    pub(crate) fn of_function(name: &str) -> Option<Self> {
        let plain = |text: &str| text.replace('_', "").to_ascii_lowercase();
        let name = plain(name);
        Self::iter().find(|one| plain(one.as_str()) == name)
    }

    /// Returns bus bandwidth divided by algorithm bandwidth for `ranks` GPUs, as nccl-tests
    /// defines it (`doc/PERFORMANCE.md` of nccl-tests): the bus bandwidth of a perfect run
    /// is the bandwidth of the bottleneck, whatever the number of GPUs.
    #[must_use]
    pub fn bus_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks.max(1));
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::Broadcast | Self::Reduce | Self::SendRecv => 1.0,
            Self::AllGather
            | Self::ReduceScatter
            | Self::AllToAll
            | Self::Gather
            | Self::Scatter
            | Self::Hypercube => (n - 1.0) / n,
        }
    }
}

/// The error for a word that is not a collective.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown collective {0:?}: use one of {known}", known = Collective::iter().map(Collective::as_str).collect::<Vec<_>>().join(", "))]
pub struct UnknownCollective(String);

fn unknown(text: &str) -> UnknownCollective {
    UnknownCollective(text.chars().take(64).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_programs_and_functions() {
        let of = Collective::of_program;
        assert_eq!(of("/opt/x/all_reduce_perf"), Some(Collective::AllReduce));
        assert_eq!(of("alltoall_perf_mpi"), Some(Collective::AllToAll));
        assert_eq!(of("alltoallv_perf"), None);
        for one in Collective::iter() {
            assert_eq!(of(&format!("./{one}_perf")), Some(one));
            assert_eq!(one.as_str().parse(), Ok(one));
            let json = serde_json::to_value(one).unwrap();
            assert_eq!(json, one.as_str());
        }
        let of = Collective::of_function;
        assert_eq!(of("ReduceScatter"), Some(Collective::ReduceScatter));
        assert_eq!(of("AllToAll"), Some(Collective::AllToAll));
        assert_eq!(of("Send"), None);
    }
}
