//! What NCCL Inspector measures in any job, as runs.

use std::collections::BTreeMap;

use super::{
    Collective, log,
    run::{Known, Measured, Origin, Row, Run, SizeClass},
};

/// The maximum number of combinations of collective, ranks and nodes in one file.
pub(super) const MOST_RUNS: usize = 256;

/// Collective, number of ranks and number of nodes; 0 if a number is not known.
pub(super) type Key = (Collective, u32, u32);

/// What NCCL Inspector reports, by collective, ranks and nodes.
#[derive(Default)]
pub(super) struct Inspected(BTreeMap<Key, Run>);

impl Inspected {
    /// Adds a measurement of messages of `size` bytes. Returns `false` if there are too many
    /// different ones.
    pub(super) fn add(
        &mut self,
        key: Key,
        size: u64,
        kind: String,
        measured: Option<Measured>,
    ) -> bool {
        if !self.0.contains_key(&key) && self.0.len() >= MOST_RUNS {
            return false;
        }
        let (value, ranks, nodes) = key;
        let from = Origin::Output;
        let known = |value: u32| (value > 0).then_some(Known { value, from });
        let run = self.0.entry(key).or_insert_with(|| Run {
            line: 1,
            collective: Some(Known { value, from }),
            ranks: known(ranks),
            nodes: known(nodes),
            endless: true,
            ..Run::default()
        });
        run.add(Row {
            size,
            kind,
            root: -1,
            out_of_place: measured,
            measurements: 1,
            ..Row::default()
        })
    }

    /// Passes on all runs; returns how many.
    pub(super) fn end(self, sink: &mut dyn FnMut(Run)) -> u64 {
        let count = self.0.len() as u64;
        for mut run in self.0.into_values() {
            run.nvls = nvls(&run);
            sink(run);
        }
        count
    }
}

/// Returns whether NVSwitches added up the messages that count, by the label `algo_proto`, which
/// becomes the type of a row: `NVLS_SIMPLE`, `RING_LL128`; `unknown_…` where NCCL did not tell.
fn nvls(run: &Run) -> Option<Known<bool>> {
    let kind = &run.row(SizeClass::Large)?.kind;
    let known = !kind.is_empty() && !kind.starts_with("unknown");
    known.then(|| Known::new(log::is_nvls(kind), Origin::Output))
}
