//! Helpers of several tests.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use nvlink_exporter::snapshot::{Health, Snapshot};
use nvlink_history::{
    load::Meter,
    marks::{Marks, Record},
    remotes::Remotes,
    totals::Totals,
    xids::XidTimes,
};
use nvlink_source::{Opener, Reading, SourceSpec};

/// Reads `source` as the node `node-a`, 100 s after the start, and marks broken GPUs.
pub(crate) fn reading(source: &str) -> Reading {
    let spec: SourceSpec = source.parse().unwrap();
    let mut source = spec.open(Some("node-a")).unwrap();
    let mut reading = source.read(Duration::from_secs(100)).unwrap();
    Marks::default().observe(&mut reading);
    reading
}

/// Returns a snapshot with a fixed time: it was finished at `finished` and took 2 ms.
pub(crate) fn snapshot(source: &str, reading: Reading, finished: Instant) -> Snapshot {
    let health = Health {
        source: source.to_owned(),
        error: None,
        duration: Duration::from_millis(2),
        finished,
    };
    Snapshot {
        totals: Totals::default().observe(&reading, finished),
        data: Some(reading),
        loads: Vec::new(),
        remotes: Remotes::default(),
        xids: XidTimes::default(),
        record: Record::default(),
        health,
    }
}

/// Returns a snapshot of a simulated board that has had `faults` for 50 s, with
/// the rates, new errors and totals of that time.
pub(crate) fn broken(profile: &str, faults: &str, finished: Instant) -> Snapshot {
    let spec: SourceSpec = format!("sim:{profile}").parse().unwrap();
    let opener = Opener::new(spec.clone(), Some("node-a".to_owned()));
    let mut source = opener.open().unwrap();
    let (then, now) = (Duration::from_secs(50), Duration::from_secs(100));
    let mut meter = Meter::default();
    let mut remotes = Remotes::default();
    let mut totals = Totals::default();
    let healthy = source.read(then).unwrap();
    meter.observe(&healthy, finished);
    totals.observe(&healthy, finished);
    remotes.observe(&healthy);
    let control = opener.control().unwrap();
    control.replace(faults.as_bytes()).unwrap();
    let mut reading = source.read(now).unwrap();
    Marks::default().observe(&mut reading);
    let loads = meter.observe(&reading, finished + (now - then));
    let totals = totals.observe(&reading, finished + (now - then));
    remotes.observe(&reading);
    let mut xids = XidTimes::default();
    xids.observe(&reading, finished);
    Snapshot {
        loads,
        totals,
        remotes,
        xids,
        ..snapshot(&spec.to_string(), reading, finished)
    }
}

/// Compares `text` with `tests/golden/NAME`; `UPDATE_GOLDEN=1` writes it.
pub(crate) fn golden(name: &str, text: &str) {
    let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    let text = text.replace(&version, "version=\"VERSION\"");
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        return fs::write(path, text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    if expected != text {
        let line = expected.lines().zip(text.lines()).position(|(a, b)| a != b);
        let line = line.unwrap_or_else(|| expected.lines().count().min(text.lines().count()));
        panic!(
            "{} differs from line {}:\n  expected {:?}\n  got      {:?}\n\
             If the change is intended, run `make generate`.",
            path.display(),
            line + 1,
            expected.lines().nth(line),
            text.lines().nth(line),
        );
    }
}

/// Two bridged pairs and two NICs, as `nvidia-smi topo -m` prints them.
pub(crate) const PAIRS: &str = "\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV4\tSYS\tSYS\tPIX\tSYS\t0-31,64-95\t0\t\tN/A
GPU1\tNV4\t X \tSYS\tSYS\tPXB\tSYS\t0-31,64-95\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tNV4\tSYS\tNODE\t32-63,96-127\t1\t\tN/A
GPU3\tSYS\tSYS\tNV4\t X \tSYS\tNODE\t32-63,96-127\t1\t\tN/A
NIC0\tPIX\tPXB\tSYS\tSYS\t X \tSYS\t\t\t\t
NIC1\tSYS\tSYS\tNODE\tNODE\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_bond_0
";
