//! `calibration`.

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use nvlink_collectives::calibration;
use nvlink_source::calibrated;
use nvlink_topology::Calibration;

use super::print;
use crate::{
    args::{CalibrationAction, CalibrationArgs},
    output,
};

pub(super) fn calibration(args: &CalibrationArgs) -> anyhow::Result<()> {
    match &args.action {
        CalibrationAction::Make { directories } => {
            print(&output::json(&calibration::make(directories, now())?)?)
        }
        CalibrationAction::Show { file } => print(&calibration::table(&load(file)?, now())),
    }
}

fn load(file: &Path) -> anyhow::Result<Calibration> {
    calibrated::load(file).with_context(|| file.display().to_string())
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}
