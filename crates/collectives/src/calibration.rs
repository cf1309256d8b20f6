//! What `calibration` does: it sums up the runs that `ingest` kept, and shows the sums.

use std::path::PathBuf;

use anyhow::bail;
use nvlink_runtime::columns::columns;
use nvlink_topology::{
    Calibration,
    calibration::{MAX_AGE, MIN_RUNS},
};

use crate::store;

const DAY: u64 = 24 * 3600;

/// Sums up the runs that are kept in `directories`; `now` is in seconds since 1970.
///
/// # Errors
/// When a directory cannot be read, or there are too few runs.
pub fn make(directories: &[PathBuf], now: u64) -> anyhow::Result<Calibration> {
    let mut runs = Vec::new();
    for directory in directories {
        runs.extend(store::read(directory)?.measured());
    }
    let calibration = Calibration::of(&runs, now);
    if calibration.entries.is_empty() {
        bail!(
            "no model of GPUs and class of path has {MIN_RUNS} good runs of all_reduce with large messages (256 MiB and more) on one node in the last {} days, with what the model says; `nvlink-exporter ingest --state DIR --source nvml FILE` keeps such runs",
            MAX_AGE / DAY
        );
    }
    Ok(calibration)
}

/// Renders a table; `now` is in seconds since 1970.
#[must_use]
pub fn table(calibration: &Calibration, now: u64) -> String {
    let titles = ["MODEL", "PATH", "MEASURED / CONSTANT", "RUNS", "LATEST RUN"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    for entry in &calibration.entries {
        let latest = match now.saturating_sub(entry.measured_at) / DAY {
            0 => "today".to_owned(),
            1 => "yesterday".to_owned(),
            days => format!("{days} days ago"),
        };
        rows.push(vec![
            entry.model.replace(char::is_control, " "),
            entry.path.as_str().to_owned(),
            format!("{:.2}", entry.factor),
            entry.runs.to_string(),
            latest,
        ]);
    }
    columns(&rows)
}
