//! Reads the files that NCCL Inspector writes for Prometheus (`NCCL_INSPECTOR_PROM_DUMP=1`):
//! `nccl_inspector_metrics_<gpu>.prom`. Source: `inspector_prom.cc` of NCCL's profiler plugin.

use std::collections::BTreeMap;

use super::{
    Collective,
    inspected::{Inspected, Key as Of, MOST_RUNS},
    lines::Line,
    run::{Measured, Run},
};

const BANDWIDTH: &str = "nccl_bus_bandwidth_gbs";
/// One name or the other, by version.
const TIMES: [&str; 2] = [
    "nccl_collective_exec_time_microseconds",
    "nccl_collective_exec_time_p50_microseconds",
];
/// The maximum number of series that are read. A file has some for each collective,
/// algorithm and message size.
const MOST_SERIES: usize = 2048;

/// Why a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpositionError {
    #[error("line {0}: expected NAME{{LABELS}} VALUE")]
    Line(u64),
    #[error("line {0}: more than {MOST_SERIES} series")]
    Series(u64),
    #[error("more than {MOST_RUNS} different communicators and collectives")]
    Runs,
    #[error("no series {BANDWIDTH} with a collective and its message size")]
    Nothing,
}

/// Reports whether a line is the first one of such a file.
#[must_use]
pub(crate) fn begins(line: &str) -> bool {
    let comment = ["# HELP ", "# TYPE "];
    let name = comment.iter().find_map(|mark| line.strip_prefix(mark));
    name.unwrap_or(line).starts_with("nccl_") && (name.is_some() || line.contains('{'))
}

/// What identifies a measurement.
type Key = (Of, u64, String);

/// Reads lines; the series of one measurement are joined at the end.
#[derive(Default)]
pub(crate) struct Parser {
    series: BTreeMap<Key, (Option<f64>, Option<f64>)>,
}

impl Parser {
    /// Reads one line.
    ///
    /// # Errors
    /// When it is no series, or there are too many.
    pub(crate) fn line(&mut self, line: Line<'_>) -> Result<(), ExpositionError> {
        let text = line.text;
        let bandwidth = text.starts_with(BANDWIDTH);
        if !bandwidth && !TIMES.iter().any(|name| text.starts_with(name)) {
            return Ok(());
        }
        let bad = ExpositionError::Line(line.number);
        let (labels, value) = series(text).ok_or(bad)?;
        let Some(key) = key(&labels) else {
            return Ok(());
        };
        if !self.series.contains_key(&key) && self.series.len() >= MOST_SERIES {
            return Err(ExpositionError::Series(line.number));
        }
        let (bus, time) = self.series.entry(key).or_default();
        *(if bandwidth { bus } else { time }) = Some(value);
        Ok(())
    }

    /// Passes on one run for each collective, number of ranks and number of nodes.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn end(self, sink: &mut dyn FnMut(Run)) -> Result<(), ExpositionError> {
        let mut inspected = Inspected::default();
        for ((key, size, kind), (bus, time)) in self.series {
            let Some(bus) = bus else { continue };
            let factor = key.0.bus_factor(key.1);
            let alg = if factor > 0.0 { bus / factor } else { bus };
            let measured = Measured::new(time.unwrap_or_default(), alg, bus, None);
            // The number of series bounds that of the rows.
            if !inspected.add(key, size, kind, measured) {
                return Err(ExpositionError::Runs);
            }
        }
        match inspected.end(sink) {
            0 => Err(ExpositionError::Nothing),
            _ => Ok(()),
        }
    }
}

/// Splits `NAME{LABELS} VALUE [TIME]`.
fn series(text: &str) -> Option<(BTreeMap<&str, String>, f64)> {
    let (_, rest) = text.split_once('{')?;
    let mut labels = BTreeMap::new();
    let mut rest = rest.trim_start();
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            let value = after.split_whitespace().next()?.parse().ok()?;
            return Some((labels, value));
        }
        let (name, after) = rest.split_once("=\"")?;
        let (value, after) = quoted(after)?;
        labels.insert(name.trim(), value);
        rest = after.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
}

/// Reads to the closing quote; returns what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            c => value.push(c),
        }
    }
    None
}

/// Returns what the labels identify; `None` for another series, and for a collective that is
/// not known.
fn key(labels: &BTreeMap<&str, String>) -> Option<Key> {
    let number = |names: [&str; 2]| {
        let text = names.iter().find_map(|name| labels.get(name));
        text.and_then(|text| text.parse().ok()).unwrap_or(0)
    };
    let collective = Collective::of_function(labels.get("collective")?)?;
    let size = size(labels.get("message_size")?)?;
    let of = (
        collective,
        number(["nranks", "n_ranks"]),
        number(["n_nodes", "nnodes"]),
    );
    let kind = labels.get("algo_proto").cloned().unwrap_or_default();
    Some((of, size, kind.chars().take(32).collect()))
}

/// Reads `134-135MB` (the smaller bound), `2.00GB` or `512B`, in decimal units.
fn size(text: &str) -> Option<u64> {
    let split = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (numbers, unit) = text.split_at(split);
    let first: f64 = numbers.split('-').next()?.trim().parse().ok()?;
    let unit = match unit {
        "B" => 1.0,
        "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        _ => return None,
    };
    // The cast saturates.
    let bytes = (first * unit).round() as u64;
    (first >= 0.0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Known, Origin, SizeClass};

    fn read(text: &str) -> Result<Vec<Run>, ExpositionError> {
        let mut parser = Parser::default();
        for (number, text) in (1..).zip(text.lines()) {
            parser.line(Line {
                number,
                text,
                ended: true,
            })?;
        }
        let mut runs = Vec::new();
        parser.end(&mut |run| runs.push(run))?;
        Ok(runs)
    }

    const LABELS: &str = r#"version="v5.1",slurm_job_id="7",node="n\"1",gpu="GPU0",comm_name="a,b}",n_nodes="4",nranks="32",collective="ReduceScatter",message_size="536-537MB",algo_proto="RING_SIMPLE""#;

    #[test]
    fn series_of_one_measurement_are_joined() {
        let text = format!(
            "# TYPE nccl_bus_bandwidth_gbs gauge\nnccl_bus_bandwidth_gbs{{{LABELS}}} 44.1181\n\
             nccl_collective_exec_time_microseconds{{{LABELS}}} 104164 1700000000\n\
             nccl_p2p_bus_bandwidth_gbs{{p2p_operation=\"Send\"}} 19\n"
        );
        let runs = read(&text).unwrap();
        let [run] = &runs[..] else { panic!("{runs:?}") };
        let (ranks, nodes) = (run.ranks.clone().unwrap(), run.nodes.clone().unwrap());
        assert_eq!((ranks.value, nodes.value), (32, 4));
        let level = run.level(SizeClass::Large).unwrap();
        assert_eq!(
            (level.size, level.bytes_per_second),
            (536_000_000, 44_118_100_000)
        );
        assert!((level.seconds - 0.104_164).abs() < 1e-9);
        assert_eq!(run.failure, None);
        let from = Origin::Output;
        let nvls = |value| Some(Known { value, from });
        assert_eq!(run.nvls, nvls(false));
        let of = |algorithm: &str| {
            read(&text.replace("RING_SIMPLE", algorithm))
                .unwrap()
                .remove(0)
        };
        assert_eq!(of("NVLS_SIMPLE").nvls, nvls(true));
        assert_eq!(of("unknown_unknown").nvls, None);
    }

    #[test]
    fn sizes_and_first_lines() {
        assert_eq!(size("2.00GB"), Some(2_000_000_000));
        assert_eq!(size("1-2KB"), Some(1000));
        assert_eq!(size("512B"), Some(512));
        for bad in ["", "12", "B", "-1B", "1XB"] {
            assert_eq!(size(bad), None, "{bad}");
        }
        assert!(begins("# HELP nccl_bus_bandwidth_gbs x"));
        assert!(begins("nccl_p2p_total{gpu=\"0\"} 1"));
        assert!(!begins("nccl_perf starting") && !begins("# nThread 1"));
    }

    #[test]
    fn errors_have_a_line() {
        assert_eq!(
            read("nccl_bus_bandwidth_gbs"),
            Err(ExpositionError::Line(1))
        );
        let cut = "\nnccl_bus_bandwidth_gbs{collective=\"AllRed";
        assert_eq!(read(cut), Err(ExpositionError::Line(2)));
        assert_eq!(read("nccl_x{} 1"), Err(ExpositionError::Nothing));
    }
}
