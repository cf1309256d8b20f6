//! The table of nccl-tests: a header that names the columns, and rows.
//!
//! The header decides how a row is read, because the columns depend on the version and on
//! the flags: `#wrong` or `error`, `redop`, `#bitdiff`, per-iteration statistics (`-I`),
//! time stamps (`-S`). Source: `writeResultHeader` and `writeBenchmarkLineBody` in
//! `src/util.cu` of nccl-tests.

use super::run::{Measured, Row, short};

/// The maximum length of a type or an operation, in characters.
const MOST_WORD: usize = 32;

/// A column that is read, or skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Size,
    Kind,
    Redop,
    Root,
    Time,
    Alg,
    Bus,
    Wrong,
    Skipped,
    /// Date and time of day: two words.
    Timestamp,
}

impl Column {
    fn words(self) -> usize {
        match self {
            Self::Timestamp => 2,
            _ => 1,
        }
    }
}

/// The columns of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    /// Those in front of the measurements.
    fixed: Vec<Column>,
    /// Those of one measurement; out-of-place and in-place have the same.
    measured: Vec<Column>,
    /// Those behind the measurements.
    after: Vec<Column>,
}

/// Why a line is not a row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadRow {
    #[error("the row has {found} values; expected {expected}")]
    Count { found: usize, expected: usize },
    #[error("{0:?} is not a number")]
    Number(String),
}

impl Columns {
    /// Returns the columns that a header names; `None` for another line.
    #[must_use]
    pub(crate) fn of_header(line: &str) -> Option<Self> {
        let names = line.strip_prefix('#')?;
        let mut columns = Vec::new();
        for name in names.split_whitespace() {
            columns.push(match name {
                "size" => Column::Size,
                "type" => Column::Kind,
                "redop" => Column::Redop,
                "root" => Column::Root,
                "time" | "cputime" => Column::Time,
                "algbw" => Column::Alg,
                "busbw" => Column::Bus,
                "#wrong" => Column::Wrong,
                "timestamp" => Column::Timestamp,
                _ => Column::Skipped,
            });
        }
        let times = columns.iter().enumerate();
        let times: Vec<_> = times
            .filter(|(_, column)| **column == Column::Time)
            .map(|(at, _)| at)
            .collect();
        if columns.first() != Some(&Column::Size) || !columns.contains(&Column::Bus) {
            return None;
        }
        let stamp = columns.iter().position(|one| *one == Column::Timestamp);
        let after = columns.split_off(stamp.unwrap_or(columns.len()));
        let measured = match times[..] {
            [one] => columns.split_off(one),
            [one, two] => {
                let second = columns.split_off(two);
                let first = columns.split_off(one);
                (first == second).then_some(first)?
            }
            _ => return None,
        };
        Some(Self {
            fixed: columns,
            measured,
            after,
        })
    }

    /// Returns the number of values of a row.
    fn expected(&self) -> usize {
        let after: usize = self.after.iter().map(|column| column.words()).sum();
        self.fixed.len() + 2 * self.measured.len() + after
    }

    /// Reports whether the values begin a row.
    #[must_use]
    pub(crate) fn begin(&self, values: &[&str]) -> bool {
        let number = |at: usize| {
            values
                .get(at)
                .is_some_and(|text| text.parse::<u64>().is_ok())
        };
        // `size` and `count` are the first two columns in all versions.
        number(0) && number(1)
    }

    /// Reports whether a row needs more values than these.
    #[must_use]
    pub(crate) fn wants_more(&self, values: usize) -> bool {
        values < self.expected()
    }

    /// Reads a row. A row with one measurement is in-place: replayed traces have no other.
    ///
    /// # Errors
    /// When the number of values is wrong, or one is not a number.
    pub(crate) fn row(&self, values: &[&str]) -> Result<Row, BadRow> {
        let (expected, half) = (self.expected(), self.measured.len());
        let one_sided = values.len() + half == expected;
        if values.len() != expected && !one_sided {
            let found = values.len();
            return Err(BadRow::Count { found, expected });
        }
        let mut row = Row {
            root: -1,
            ..Row::default()
        };
        for (column, text) in self.fixed.iter().zip(values) {
            match column {
                Column::Size => row.size = whole(text)?,
                Column::Kind => row.kind = short(text, MOST_WORD),
                Column::Redop => row.redop = short(text, MOST_WORD),
                Column::Root => row.root = text.parse().map_err(|_| not_a_number(text))?,
                _ => {}
            }
        }
        let rest = &values[self.fixed.len()..];
        if one_sided {
            row.in_place = self.measurement(rest)?;
        } else {
            row.out_of_place = self.measurement(rest)?;
            row.in_place = self.measurement(&rest[half..])?;
        }
        Ok(row)
    }

    fn measurement(&self, values: &[&str]) -> Result<Option<Measured>, BadRow> {
        let (mut time, mut alg, mut bus, mut wrong) = (None, None, None, None);
        for (column, text) in self.measured.iter().zip(values) {
            match column {
                Column::Time => time = real(text)?,
                Column::Alg => alg = real(text)?,
                Column::Bus => bus = real(text)?,
                // Printed as `%g`: large counts are in scientific notation.
                Column::Wrong => wrong = real(text)?.map(count),
                _ => {}
            }
        }
        let (Some(time), Some(alg), Some(bus)) = (time, alg, bus) else {
            return Ok(None);
        };
        Ok(Measured::new(time, alg, bus, wrong))
    }
}

fn not_a_number(text: &str) -> BadRow {
    BadRow::Number(text.chars().take(64).collect())
}

fn whole(text: &str) -> Result<u64, BadRow> {
    text.parse().map_err(|_| not_a_number(text))
}

/// Reads a number; `None` for `N/A`.
fn real(text: &str) -> Result<Option<f64>, BadRow> {
    match text {
        "N/A" | "n/a" => Ok(None),
        text => text.parse().map(Some).map_err(|_| not_a_number(text)),
    }
}

/// Converts a count that is printed as a real number. What is not a number counts as one.
pub(super) fn count(value: f64) -> u64 {
    // The cast saturates.
    let count = value as u64;
    if value.is_nan() { 1 } else { count }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(header: &str, row: &str) -> Result<Row, BadRow> {
        let columns = Columns::of_header(header).expect(header);
        columns.row(&row.split_whitespace().collect::<Vec<_>>())
    }

    /// Returns time, algorithm and bus bandwidth and wrong values.
    fn parts(one: Option<Measured>) -> Option<(f64, f64, f64, Option<u64>)> {
        one.map(|one| (one.time_us, one.alg_bandwidth, one.bus_bandwidth, one.wrong))
    }

    const WRONG: &str =
        "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong";
    const ITERATIONS: &str = "# size count type redop root time algbw busbw #wrong i_min i_max i_p99 i_cv% time algbw busbw #wrong i_min i_max i_p99 i_cv% timestamp";
    const BITWISE: &str = "# size count type redop root time algbw busbw #wrong #bitdiff time algbw busbw #wrong #bitdiff";
    /// A header, a row, and its wrong values out-of-place and in-place.
    const ROWS: [(&str, &str, Option<u64>, Option<u64>); 7] = [
        (
            WRONG,
            "8 2 float sum -1 10.0 1.0 2.0 0 20.0 3.0 4.0 1e+02",
            Some(0),
            Some(100),
        ),
        (
            WRONG,
            "8 2 float sum -1 10.0 1.0 2.0 N/A 20.0 3.0 4.0 N/A",
            None,
            None,
        ),
        (
            WRONG,
            "8 2 float sum -1 1e+01 1.0 2.0 0 2e+01 3.0 4.0 0",
            Some(0),
            Some(0),
        ),
        (
            "# size count type redop root time algbw busbw time algbw busbw",
            "8 2 float sum -1 10.0 1.0 2.0 20.0 3.0 4.0",
            None,
            None,
        ),
        (
            "# size count type root cputime algbw busbw error cputime algbw busbw error",
            "8 2 int8 -1 10.0 1.0 2.0 2e-07 20.0 3.0 4.0 N/A",
            None,
            None,
        ),
        (
            ITERATIONS,
            "8 2 float sum -1 10.0 1.0 2.0 0 9.0 12.0 11.0 3.5 20.0 3.0 4.0 7 19.0 22.0 21.0 3.5 2026-08-01 10:11:12",
            Some(0),
            Some(7),
        ),
        (
            BITWISE,
            "8 2 float sum -1 10.0 1.0 2.0 0 0 20.0 3.0 4.0 0 0",
            Some(0),
            Some(0),
        ),
    ];

    #[test]
    fn the_header_decides_how_a_row_is_read() {
        for (header, row, out_wrong, in_wrong) in ROWS {
            let read = read(header, row).expect(row);
            assert_eq!((read.size, read.root), (8, -1), "{row}");
            assert_eq!(
                parts(read.out_of_place),
                Some((10.0, 1.0, 2.0, out_wrong)),
                "{row}"
            );
            assert_eq!(
                parts(read.in_place),
                Some((20.0, 3.0, 4.0, in_wrong)),
                "{row}"
            );
        }
    }

    #[test]
    fn rows_of_replayed_traces_are_in_place() {
        let header = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong";
        let row = read(header, "8 2 float none 3 20.0 3.0 4.0 0").unwrap();
        assert_eq!((row.out_of_place, row.root), (None, 3));
        assert_eq!(parts(row.in_place), Some((20.0, 3.0, 4.0, Some(0))));
    }

    #[test]
    fn what_is_no_row_has_a_reason() {
        let header = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong";
        let reason = |row| read(header, row).unwrap_err().to_string();
        assert_eq!(reason("8 2 float sum"), "the row has 4 values; expected 13");
        let words = "8 2 float sum -1 fast 1.0 2.0 0 20.0 3.0 4.0 0";
        assert_eq!(reason(words), "\"fast\" is not a number");
        let inf = "8 2 float sum -1 0.00 inf inf 0 20.0 nan nan 0";
        let row = read(header, inf).unwrap();
        assert_eq!((row.out_of_place, row.in_place), (None, None));
    }

    #[test]
    fn other_lines_are_no_header() {
        for line in [
            "size count busbw time",
            "# (B) (elements) (us)",
            "# size count",
            "# size busbw",
            "# size time busbw time algbw busbw",
            "# size time busbw time busbw time busbw",
            "#",
        ] {
            assert_eq!(Columns::of_header(line), None, "{line}");
        }
    }
}
