//! `calibration`.

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use nvlink_source::calibrated;
use nvlink_topology::{
    Calibration,
    calibration::{MAX_AGE, MIN_RUNS},
};

use super::print;
use crate::{
    args::{CalibrationAction, CalibrationArgs},
    collective::store,
    output,
};

const DAY: u64 = 24 * 3600;

pub(super) fn calibration(args: &CalibrationArgs) -> anyhow::Result<()> {
    match &args.action {
        CalibrationAction::Make { directories } => {
            let mut runs = Vec::new();
            for directory in directories {
                runs.extend(store::read(directory)?.measured());
            }
            let calibration = Calibration::of(&runs, now());
            if calibration.entries.is_empty() {
                bail!(
                    "no model of GPUs and class of path has {MIN_RUNS} good runs of all_reduce with large messages (256 MiB and more) on one node in the last {} days, with what the model says; `nvlink-exporter ingest --state DIR --source nvml FILE` keeps such runs",
                    MAX_AGE / DAY
                );
            }
            print(&output::json(&calibration)?)
        }
        CalibrationAction::Show { file } => {
            let calibration = load(file)?;
            print(&output::calibration::table(&calibration, now()))
        }
    }
}

fn load(file: &Path) -> anyhow::Result<Calibration> {
    calibrated::load(file).with_context(|| file.display().to_string())
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}
