//! Which GPUs of a node a container gets: from a device plugin alone, and with `Preferred`.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result};
use nvlink_tests::{Allocator, Choice, LabNode, programs};
use serde_json::Value;

use crate::terminal::Terminal;

/// The simulation of a board, and which of its GPUs are free.
pub(crate) const MESH: &str = "dgx1-v100";
pub(crate) const FREE_OF_MESH: &[u64] = &[2, 3, 5, 6, 7];
/// Name and simulation of a board, and which of its GPUs are free.
const BOARDS: [(&str, &str, &[u64]); 2] = [
    ("mesh", MESH, FREE_OF_MESH),
    ("pairs", "a100-pcie-pairs", &[0, 1, 2, 3, 5, 6]),
];
/// GPUs of the job.
const GPUS: usize = 4;
const HEADER: [&str; 6] = [
    "BOARD",
    "FREE",
    "WHO CHOOSES",
    "GPUS BY RANK",
    "ALL-REDUCE",
    "TO THE NEXT RANK",
];

pub(crate) fn show(terminal: &Terminal) -> Result<()> {
    terminal.step("Which GPUs a container gets, and in which order")?;
    terminal.say(
        "On boards with meshes or bridges it matters which GPUs a container gets. A device plugin is asked\n\
         for it: one that knows no links, one that counts them as NVIDIA's does, and the same with\n\
         `nvlink-exporter device-plugin` between it and the kubelet. That program and the sockets are\n\
         real here; this demo speaks for the kubelet, and runs no container. 4 of the free GPUs:",
    )?;
    let mut rows = vec![HEADER.map(str::to_owned).to_vec()];
    let mut seen = Vec::new();
    for board in BOARDS {
        let node = LabNode::new(board.0, board.1);
        let any = node.clone().choosing(Choice::Scattered);
        rows.push(row(board, "a plugin that knows no links", &any)?.0);
        rows.push(row(board, "a plugin that counts links", &node)?.0);
        let (last, got) = row(board, "Preferred", &node.preferring())?;
        rows.push(last);
        seen.push(got.variables);
    }
    terminal.table(&rows)?;
    terminal.say(
        "The last column is the slowest step of a pipeline over the ranks. With `Preferred`, the container\n\
         on the mesh sees:",
    )?;
    let names = ["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"];
    let mesh = seen.first().context("no board")?;
    let shown = names.iter().filter_map(|name| mesh.get_key_value(*name));
    let lines: Vec<String> = shown
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    terminal.output(&lines.join("\n"))
}

/// Shows the row of the mesh for the GPUs that a claim gave.
pub(crate) fn show_claimed(terminal: &Terminal, recording: &Value, ranks: &[u64]) -> Result<()> {
    let row = Board::new(recording)?.row(BOARDS[0], "Claim", ranks)?;
    terminal.table(&[HEADER.map(str::to_owned).to_vec(), row])
}

/// Asks for GPUs of a board, and returns a row of the table.
fn row(
    on @ (_, _, free): (&str, &str, &[u64]),
    who: &str,
    node: &LabNode,
) -> Result<(Vec<String>, Got)> {
    let allocator = Allocator::start(node)?;
    let board = Board::new(allocator.recording())?;
    let got = board.ask(&allocator, free)?;
    Ok((board.row(on, who, &got.ranks)?, got))
}

/// What a container got.
struct Got {
    /// The indices of its GPUs, in the order in which it uses them.
    ranks: Vec<u64>,
    variables: HashMap<String, String>,
}

/// A board in the terms of its device plugin.
struct Board {
    /// By index.
    uuids: BTreeMap<u64, String>,
    /// Bytes per second between two GPUs, the smaller index first.
    paths: BTreeMap<(u64, u64), u64>,
}

impl Board {
    fn new(recording: &Value) -> Result<Self> {
        let all = |key: &str| recording["spec"][key].as_array().into_iter().flatten();
        let uuid = |gpu: &Value| Some((gpu["index"].as_u64()?, gpu["uuid"].as_str()?.to_owned()));
        let path = |path: &Value| {
            let ends = (path["a"].as_u64()?, path["b"].as_u64()?);
            Some((ends, path["bytesPerSecond"].as_u64()?))
        };
        let uuids: Option<_> = all("gpus").map(uuid).collect();
        let paths: Option<_> = all("paths").map(path).collect();
        Ok(Self {
            uuids: uuids.context("a GPU has no UUID")?,
            paths: paths.context("a path has no bandwidth")?,
        })
    }

    fn row(
        &self,
        (name, profile, free): (&str, &str, &[u64]),
        who: &str,
        ranks: &[u64],
    ) -> Result<Vec<String>> {
        Ok(vec![
            name.to_owned(),
            list(free),
            who.to_owned(),
            list(ranks),
            gigabytes(all_reduce(profile, ranks)?),
            gigabytes(self.slowest_step(ranks)),
        ])
    }

    /// Asks for a container's GPUs, as the kubelet does.
    fn ask(&self, allocator: &Allocator, free: &[u64]) -> Result<Got> {
        let uuids = free.iter().filter_map(|gpu| self.uuids.get(gpu).cloned());
        let preferred = allocator.prefer(&uuids.collect::<Vec<_>>(), GPUS)?;
        let variables = allocator.allocate(&preferred)?;
        let index = |uuid: &str| {
            let mut found = self.uuids.iter();
            found.find(|(_, own)| *own == uuid).map(|(&index, _)| index)
        };
        let ranks = match variables.get("NVLINK_DOMAINS_GPUS") {
            Some(order) => order.split(',').filter_map(index).collect(),
            // Without a variable, CUDA numbers GPUs of one model by PCI address.
            None => {
                let mut ranks: Vec<u64> = preferred.iter().filter_map(|id| index(id)).collect();
                ranks.sort_unstable();
                ranks
            }
        };
        Ok(Got { ranks, variables })
    }

    /// Returns the bandwidth of the slowest step from a rank to the next, bytes per second.
    fn slowest_step(&self, ranks: &[u64]) -> u64 {
        let steps = ranks.windows(2).filter_map(|step| {
            let ends = (step[0].min(step[1]), step[0].max(step[1]));
            self.paths.get(&ends).copied()
        });
        steps.min().unwrap_or_default()
    }
}

/// Returns what one GPU can send in an all-reduce over these GPUs, bytes per second.
fn all_reduce(profile: &str, gpus: &[u64]) -> Result<u64> {
    let (source, count) = (format!("sim:{profile}"), gpus.len().to_string());
    let gpus = gpus
        .iter()
        .map(u64::to_string)
        .collect::<Vec<_>>()
        .join(",");
    let set = ["--gpus", &count, "--free", &gpus, "--scope", "node"];
    let own = ["place", "--source", &source, "--output", "json"];
    let text = programs::run(programs::EXPORTER, &[&own[..], &set].concat(), "")?;
    let placement: Value = serde_json::from_str(&text)?;
    let bandwidth = placement["bottleneckBytesPerSecond"].as_u64();
    bandwidth.context("a placement has no bandwidth")
}

fn list(gpus: &[u64]) -> String {
    gpus.iter()
        .map(u64::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

fn gigabytes(bytes_per_second: u64) -> String {
    format!("{:.0} GB/s", bytes_per_second as f64 / 1e9)
}
