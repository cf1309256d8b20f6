//! `ingest`.

use std::{fs, time::Duration};

use anyhow::{Context, bail};
use nvlink_collectives::{
    ingest::{self, Follower, Scene},
    report, summary,
    watch::Watched,
};
use nvlink_runtime::signals;
use nvlink_topology::NodeTopologySpec;
use tokio::task::spawn_blocking;

use super::{print, runtime, warn};
use crate::{
    args::{IngestArgs, IngestFormat, LogFormat, PlaceFlags},
    log,
};

pub(super) fn ingest(args: &IngestArgs) -> anyhow::Result<()> {
    let scene = Scene {
        given: args.place.given(),
        node: node(&args.place)?,
    };
    if let (Some(directory), Some(state)) = (&args.watch, &args.state) {
        log::start(LogFormat::Text);
        let watched = Watched::new(directory.clone(), args.settle);
        let follower = Follower::new(watched, scene, state.clone());
        return runtime()?.block_on(follow(follower, args.interval));
    }
    let mut ingested = scene.read(&args.files)?;
    let reports = &mut ingested.reports;
    if let Some(directory) = &args.state {
        ingest::keep(directory, reports)?
            .iter()
            .for_each(|text| warn(text));
    }
    print(&match args.output {
        IngestFormat::Table => report::table(reports),
        IngestFormat::Json => report::json(reports)?,
    })?;
    if let Some(path) = &args.summary {
        let text = summary::write(reports);
        fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    let mut problems = ingested.problems;
    problems.extend(reports.iter().filter_map(ingest::failure));
    let unmeasured = reports.iter().filter_map(ingest::unmeasured);
    if let Some(gate) = args.gate() {
        problems.extend(unmeasured);
        let judgement = ingest::judge(&gate, reports);
        judgement.warnings.iter().for_each(|text| warn(text));
        problems.extend(judgement.problems);
    } else {
        unmeasured.for_each(|text| warn(&text));
    }
    conclude(problems)
}

/// Reads the node on which the runs took place.
fn node(flags: &PlaceFlags) -> anyhow::Result<Option<NodeTopologySpec>> {
    let Some(source) = &flags.source else {
        return Ok(None);
    };
    let reading = source.open(None)?.read(Duration::ZERO)?;
    reading.warnings.iter().for_each(|warning| warn(warning));
    if !reading.topology.spec.calibration.is_empty() {
        bail!(
            "{source}: its bandwidths are measured ones, and measurements compared with themselves say nothing; record it without --calibration"
        );
    }
    Ok(Some(reading.topology.spec))
}

/// Fails if there are problems. All are printed, the last one as the error.
fn conclude(mut problems: Vec<String>) -> anyhow::Result<()> {
    let Some(last) = problems.pop() else {
        return Ok(());
    };
    problems.iter().for_each(|problem| warn(problem));
    bail!(last)
}

async fn follow(mut follower: Follower, interval: Duration) -> anyhow::Result<()> {
    let mut signals = signals::install()?;
    loop {
        let looked = spawn_blocking(move || {
            let result = follower.look();
            (follower, result)
        });
        let result;
        (follower, result) = looked.await?;
        if let Err(error) = result {
            tracing::warn!(error = format!("{error:#}"), "looking again later");
        }
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            signal = signals.received() => {
                tracing::info!("received {signal}, stopping");
                return Ok(());
            }
        }
    }
}
