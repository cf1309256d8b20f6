//! `place`.

use anyhow::Context;
use nvlink_topology::{Graph, Request};

use super::{print, read_and_warn, warn};
use crate::{
    args::{PlaceArgs, PlaceFormat},
    output,
};

pub(super) fn place(args: &PlaceArgs) -> anyhow::Result<()> {
    let node = read_and_warn(&args.source)?.topology;
    if !node.spec.knows_nvlink() {
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
    let placement = nvlink_topology::place(&graph, &request).context("no placement")?;
    let next_best = || nvlink_topology::next_best(&graph, &request, &placement);
    print(&match args.output {
        PlaceFormat::Table => {
            output::placement::table(&placement, next_best().as_ref(), &node.spec)
        }
        PlaceFormat::Json => output::placement::json(&placement, next_best().as_ref(), &node.spec)?,
        PlaceFormat::Env => output::environment::render(&placement),
    })
}
