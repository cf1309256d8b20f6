//! Infers what a table of nccl-tests does not say from its numbers.

use crate::{kind::Collective, run::Row};

/// Infers the collective of a table that does not name it, from the columns `redop` and
/// `root` and from the ratio of the two bandwidths. Returns `None` where several
/// collectives look the same (all_gather and alltoall do).
pub(crate) fn collective(rows: &[Row]) -> Option<Collective> {
    let row = rows.first()?;
    let (low, high) = ratio(rows)?;
    let reduces = row.redop != "none" && !row.redop.is_empty();
    match (reduces, row.root >= 0) {
        (true, true) => Some(Collective::Reduce),
        (true, false) if high < 1.0 => Some(Collective::ReduceScatter),
        (true, false) if low > 0.98 => Some(Collective::AllReduce),
        (false, true) if low <= 1.0 && 1.0 <= high => Some(Collective::Broadcast),
        _ => None,
    }
}

/// Infers the number of ranks from the ratio of bus bandwidth to algorithm bandwidth.
/// Returns `None` where the printed digits allow several numbers, and where the ratio
/// does not depend on it.
pub(crate) fn ranks(collective: Collective, rows: &[Row]) -> Option<u32> {
    let (low, high) = ratio(rows)?;
    let most = 1 << 20;
    // The factor grows with the number of ranks.
    let first = partition(most, |n| collective.bus_factor(n) >= low)?;
    let fits = |n: u32| (low..=high).contains(&collective.bus_factor(n));
    (fits(first) && !fits(first + 1)).then_some(first)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Measured;

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
    fn a_table_without_a_name_is_inferred_where_it_is_unambiguous() {
        let infer = |redop, root, bandwidths: &[_]| {
            let rows = rows(redop, root, bandwidths);
            let collective = super::collective(&rows)?;
            Some((collective, ranks(collective, &rows)))
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
            let found = super::ranks(Collective::AllReduce, &rows);
            assert_eq!(found, Some(ranks));
        }
    }
}
