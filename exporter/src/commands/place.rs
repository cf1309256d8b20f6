//! `place`.

use anyhow::{Context, anyhow, ensure};
use nvlink_topology::{
    BrokenGpus, GpuSet, Graph, NextBest, NoPlacement, NodeTopologySpec, Placement, Request, Scope,
};

use super::{patience::patiently, print, read_and_warn, say, warn};
use crate::{
    args::{PlaceArgs, PlaceFormat},
    output::{
        self,
        placement::{Broken, Explained},
    },
};

/// What to do for more GPUs than the node has.
const SEVERAL_NODES: &str = "place chooses GPUs of one node. For a job over several nodes, also of \
     one NVLink fabric, create one pod for each node; the webhook places them together as a gang, \
     and kubectl nvlink preview shows what it makes of them";

pub(super) fn place(args: &PlaceArgs) -> anyhow::Result<()> {
    let node = read_and_warn(&args.source)?.topology;
    if !node.spec.knows_nvlink() {
        ensure!(
            args.scope >= Scope::Node || args.gpus < 2,
            "no placement: NVLink is unknown in this source, so no domain is known (--scope node chooses by PCIe)"
        );
        warn("the source cannot see NVLink: the GPUs are chosen by their PCIe paths alone");
    }
    let graph = Graph::new(&node.spec).with_context(|| args.source.source.to_string())?;
    let free = match &args.free {
        Some(free) => free.0.clone(),
        None => node.free_gpus(),
    };
    let required = args
        .require
        .as_ref()
        .map(|gpus| &gpus.0[..])
        .unwrap_or_default();
    let request = Request {
        gpus: args.gpus,
        free: graph.set(&free).context("--free")?,
        required: graph.set(required).context("--require")?,
        pattern: args.pattern,
        scope: args.scope,
    };
    let broken: Vec<u32> = node.spec.broken_gpus().collect();
    let broken = graph.set(&broken)?;
    let searching =
        || say("searching for the best GPUs; the search ends after a limited number of steps");
    let found = patiently(searching, || search(args, &graph, &request, broken));
    let (placement, next_best) =
        found.map_err(|reason| no_placement(args, &node.spec, &free, &reason))?;
    let broken = Broken::of(&node.spec, &free, &placement, args.broken);
    if args.broken != BrokenGpus::Ignore && !broken.used.is_empty() {
        let used = output::placement::faults(&broken.used);
        warn(&format!(
            "GPUs that are marked as broken are used: {used}; no placement has fewer of them"
        ));
    }
    let explained = Explained {
        placement: &placement,
        next_best: next_best.as_ref(),
        broken_gpus: broken,
        calibration: &node.spec.calibration,
    };
    print(&match args.output {
        PlaceFormat::Table => output::placement::table(&explained, &node.spec),
        PlaceFormat::Json => output::json(&explained)?,
        PlaceFormat::Env => output::environment::render(&placement),
    })
}

/// Returns the best placement, and the best one of other GPUs where the output shows it.
fn search(
    args: &PlaceArgs,
    graph: &Graph,
    request: &Request,
    broken: GpuSet,
) -> Result<(Placement, Option<NextBest>), NoPlacement> {
    let request = nvlink_topology::sparing(graph, request, broken, args.broken)?;
    let placement = nvlink_topology::place(graph, &request)?;
    let next_best = match args.output {
        PlaceFormat::Env => None,
        _ => nvlink_topology::next_best(graph, &request, &placement),
    };
    Ok((placement, next_best))
}

/// Says why there is no placement, and what may be done.
fn no_placement(
    args: &PlaceArgs,
    spec: &NodeTopologySpec,
    free: &[u32],
    reason: &NoPlacement,
) -> anyhow::Error {
    let avoided = output::placement::broken(spec, free);
    match reason {
        NoPlacement::TooMany { .. } => anyhow!("no placement: {reason}: {SEVERAL_NODES}"),
        _ if args.broken == BrokenGpus::Avoid && !avoided.is_empty() => anyhow!(
            "no placement without the GPUs that are marked as broken: {} (--broken last uses them if it must): {reason}",
            output::placement::faults(&avoided)
        ),
        NoPlacement::Scope { scope, .. } if *scope < Scope::Node => {
            anyhow!("no placement: {reason} (--scope node also uses PCIe)")
        }
        _ => anyhow!("no placement: {reason}"),
    }
}
