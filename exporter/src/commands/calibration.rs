//! `calibration`.

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use nvlink_topology::{
    Calibration,
    calibration::{MAX_AGE, MIN_RUNS, Run},
};

use super::print;
use crate::{
    args::{CalibrationAction, CalibrationArgs},
    collective::{
        Collective,
        run::SizeClass,
        state::{Entry, State},
        store,
        verdict::ratio,
    },
    output,
    source::calibrated,
};

const DAY: u64 = 24 * 3600;

pub(super) fn calibration(args: &CalibrationArgs) -> anyhow::Result<()> {
    match &args.action {
        CalibrationAction::Make { directories } => {
            let mut runs = Vec::new();
            for directory in directories {
                runs.extend(runs_of(&store::read(directory)?));
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

/// Returns the runs from which bandwidths follow. All-reduce is what the constants are for: its
/// bus bandwidth is that of the bottleneck. Over several nodes, the network limits it.
fn runs_of(state: &State) -> impl Iterator<Item = Run> {
    let measures = |entry: &&Entry| {
        entry.class.collective == Collective::AllReduce && entry.class.nodes == Some(1)
    };
    state.collectives.iter().filter(measures).flat_map(|entry| {
        let class = &entry.class;
        let known = class.model.clone().zip(class.path);
        let known = known.zip(entry.expected_bytes_per_second);
        known
            .into_iter()
            .flat_map(move |((model, path), expected)| {
                entry.runs.iter().filter_map(move |kept| {
                    let level = kept.levels.get(&SizeClass::Large)?;
                    Some(Run {
                        model: model.clone(),
                        path,
                        factor: ratio(level.bytes_per_second, expected),
                        ended_at: kept.at,
                    })
                })
            })
    })
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}
