//! Collectives: their names, their bus bandwidth, and how to tell them apart.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::run::Row;

/// A collective operation that a benchmark measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    #[serde(rename = "alltoall")]
    AllToAll,
    Gather,
    Scatter,
    #[serde(rename = "sendrecv")]
    SendRecv,
    Hypercube,
}

impl Collective {
    /// All collectives, for label values and help texts.
    pub const ALL: [Self; 10] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::Reduce,
        Self::AllToAll,
        Self::Gather,
        Self::Scatter,
        Self::SendRecv,
        Self::Hypercube,
    ];

    /// Returns the name that nccl-tests uses, which is also the value of the label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllToAll => "alltoall",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::SendRecv => "sendrecv",
            Self::Hypercube => "hypercube",
        }
    }

    /// Returns the collective of a program of nccl-tests, such as
    /// `/opt/nccl-tests/build/all_reduce_perf`.
    #[must_use]
    pub fn of_program(path: &str) -> Option<Self> {
        let name = path.rsplit('/').next().unwrap_or(path);
        let name = name.strip_suffix("_mpi").unwrap_or(name);
        name.strip_suffix("_perf").unwrap_or(name).parse().ok()
    }

    /// Returns the collective of a function of NCCL, such as `ReduceScatter`.
    #[must_use]
    pub fn of_function(name: &str) -> Option<Self> {
        let plain = |text: &str| text.replace('_', "").to_ascii_lowercase();
        let name = plain(name);
        Self::ALL
            .into_iter()
            .find(|one| plain(one.as_str()) == name)
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

    /// Infers the collective of a table that does not name it, from the columns `redop` and
    /// `root` and from the ratio of the two bandwidths. Returns `None` where several
    /// collectives look the same (all_gather and alltoall do).
    #[must_use]
    pub fn infer(rows: &[Row]) -> Option<Self> {
        let row = rows.first()?;
        let (low, high) = ratio(rows)?;
        let reduces = row.redop != "none" && !row.redop.is_empty();
        match (reduces, row.root >= 0) {
            (true, true) => Some(Self::Reduce),
            (true, false) if high < 1.0 => Some(Self::ReduceScatter),
            (true, false) if low > 0.98 => Some(Self::AllReduce),
            (false, true) if low <= 1.0 && 1.0 <= high => Some(Self::Broadcast),
            _ => None,
        }
    }

    /// Infers the number of ranks from the ratio of bus bandwidth to algorithm bandwidth.
    /// Returns `None` where the printed digits allow several numbers, and where the ratio
    /// does not depend on it.
    #[must_use]
    pub fn infer_ranks(self, rows: &[Row]) -> Option<u32> {
        let (low, high) = ratio(rows)?;
        let most = 1 << 20;
        // The factor grows with the number of ranks.
        let first = partition(most, |n| self.bus_factor(n) >= low)?;
        let fits = |n: u32| (low..=high).contains(&self.bus_factor(n));
        (fits(first) && !fits(first + 1)).then_some(first)
    }
}

/// Returns the smallest number from 2 to `most` for which `reached` holds; it holds for all
/// that follow.
fn partition(most: u32, reached: impl Fn(u32) -> bool) -> Option<u32> {
    let (mut low, mut high) = (2, most);
    while low < high {
        let middle = low + (high - low) / 2;
        match reached(middle) {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    reached(low).then_some(low)
}

/// Returns the range of bus bandwidth over algorithm bandwidth that all rows allow, given
/// that both are printed with a limited number of digits.
fn ratio(rows: &[Row]) -> Option<(f64, f64)> {
    let measured = rows
        .iter()
        .flat_map(|row| [&row.out_of_place, &row.in_place]);
    let measured = measured.flatten().filter(|one| one.alg_bandwidth >= 1.0);
    let mut range: Option<(f64, f64)> = None;
    for one in measured {
        // nccl-tests prints two decimals, and fewer from 1,000 on (`getFloatStr`).
        let half = |value: f64| if value < 1000.0 { 0.0051 } else { 0.51 };
        let (alg, bus) = (one.alg_bandwidth, one.bus_bandwidth);
        let low = (bus - half(bus)) / (alg + half(alg));
        let high = (bus + half(bus)) / (alg - half(alg));
        let (known_low, known_high) = range.unwrap_or((low, high));
        range = Some((known_low.max(low), known_high.min(high)));
    }
    range.filter(|(low, high)| low <= high)
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The error for a word that is not a collective.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown collective {0:?}: use one of {known}", known = Collective::ALL.map(Collective::as_str).join(", "))]
pub struct UnknownCollective(String);

impl FromStr for Collective {
    type Err = UnknownCollective;

    fn from_str(text: &str) -> Result<Self, UnknownCollective> {
        let found = Self::ALL.into_iter().find(|one| one.as_str() == text);
        found.ok_or_else(|| UnknownCollective(text.chars().take(64).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::run::Measured;

    fn rows(redop: &str, root: i64, bandwidths: &[(f64, f64)]) -> Vec<Row> {
        let row = |&(alg_bandwidth, bus_bandwidth): &(f64, f64)| Row {
            redop: redop.to_owned(),
            root,
            out_of_place: Some(Measured {
                alg_bandwidth,
                bus_bandwidth,
                ..Measured::default()
            }),
            ..Row::default()
        };
        bandwidths.iter().map(row).collect()
    }

    #[test]
    fn names_are_read_from_programs_and_functions() {
        let of = Collective::of_program;
        assert_eq!(of("/opt/x/all_reduce_perf"), Some(Collective::AllReduce));
        assert_eq!(of("alltoall_perf_mpi"), Some(Collective::AllToAll));
        assert_eq!(of("alltoallv_perf"), None);
        for one in Collective::ALL {
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

    #[test]
    fn a_table_without_a_name_is_inferred_where_it_is_unambiguous() {
        let infer = |redop, root, bandwidths: &[_]| {
            let rows = rows(redop, root, bandwidths);
            let collective = Collective::infer(&rows)?;
            Some((collective, collective.infer_ranks(&rows)))
        };
        use Collective::{AllReduce, Broadcast, Reduce, ReduceScatter};
        let eight = [(100.00, 175.00), (200.02, 350.04)];
        assert_eq!(infer("sum", -1, &eight), Some((AllReduce, Some(8))));
        assert_eq!(
            infer("sum", -1, &[(50.0, 50.0)]),
            Some((AllReduce, Some(2)))
        );
        let scatter = [(400.00, 350.00)];
        assert_eq!(infer("sum", -1, &scatter), Some((ReduceScatter, Some(8))));
        assert_eq!(infer("sum", 0, &[(50.0, 50.0)]), Some((Reduce, None)));
        assert_eq!(infer("none", 0, &[(50.0, 50.0)]), Some((Broadcast, None)));
        assert_eq!(infer("none", -1, &scatter), None, "all_gather or alltoall");
        // Too few digits, and rows that contradict each other.
        assert_eq!(infer("sum", -1, &[(1.0, 1.97)]), Some((AllReduce, None)));
        assert_eq!(infer("sum", -1, &[(100.0, 175.0), (100.0, 150.0)]), None);
        assert_eq!(infer("sum", -1, &[]), None);
    }

    #[test]
    fn every_number_of_ranks_is_found_again() {
        for ranks in 2..=128 {
            let alg = 400.0;
            let factor = Collective::AllReduce.bus_factor(ranks);
            let bus = (alg * factor * 100.0).round() / 100.0;
            let rows = rows("sum", -1, &[(alg, bus)]);
            let found = Collective::AllReduce.infer_ranks(&rows);
            assert_eq!(found, Some(ranks));
        }
    }
}
