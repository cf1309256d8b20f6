//! Faults for the log: a line when one comes, another when it is gone, none
//! while nothing changes.

use std::collections::{BTreeMap, BTreeSet};

use nvlink_topology::missing_links;

use crate::source::{FabricCondition, FabricState, GpuHealth, LostGpu, Reading};

/// What can be wrong with a GPU, for as long as it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Lost,
    Links,
    Fabric,
    Condition(FabricCondition),
}

/// What changed for one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Came(u32, String),
    /// It is no more.
    Gone(u32, String),
}

/// The faults that hold and the XIDs that came, to see what changed.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// What is said of each that holds, by GPU.
    holding: BTreeMap<(u32, Fault), String>,
    /// Times, by GPU and XID.
    xids: BTreeMap<(u32, u64), u64>,
}

impl Faults {
    /// What changed since the reading before; at the first one, all that is wrong.
    pub(crate) fn observe(&mut self, reading: &Reading) -> Vec<Change> {
        let mut changes = Vec::new();
        self.lost(reading, &mut changes);
        for gpu in &reading.topology.spec.gpus {
            let missing = missing_links(gpu, &reading.topology.spec.gpus);
            // What could not be read stays as it was.
            let Some(missing) = missing.filter(|_| reading.is_read(gpu.index)) else {
                continue;
            };
            let wrong = (missing > 0).then(|| {
                let plural = if missing == 1 { "" } else { "s" };
                format!("{missing} NVLink link{plural} missing")
            });
            let key = (gpu.index, Fault::Links);
            self.set(key, wrong, "all NVLink links are up again", &mut changes);
        }
        for health in &reading.health {
            self.fabric(health, &mut changes);
            self.xids(health, &mut changes);
        }
        changes
    }

    fn lost(&mut self, reading: &Reading, changes: &mut Vec<Change>) {
        let lost = reading
            .lost
            .iter()
            .map(|gpu| (gpu.index, words_of_lost(gpu)));
        let lost: BTreeMap<u32, String> = lost.collect();
        let held = self
            .holding
            .keys()
            .filter(|(_, fault)| *fault == Fault::Lost);
        let held = held.map(|(gpu, _)| *gpu);
        let all: BTreeSet<u32> = held.chain(lost.keys().copied()).collect();
        for gpu in all {
            let wrong = lost.get(&gpu).cloned();
            self.set((gpu, Fault::Lost), wrong, "answers again", changes);
        }
    }

    fn fabric(&mut self, health: &GpuHealth, changes: &mut Vec<Change>) {
        let Some(fabric) = &health.fabric else {
            return;
        };
        let wrong = (fabric.state != FabricState::Completed)
            .then(|| format!("NVLink fabric is {}", words(fabric.state.as_str())));
        let key = (health.gpu, Fault::Fabric);
        self.set(key, wrong, "NVLink fabric is completed again", changes);
        for (condition, holds) in &fabric.conditions {
            let name = words(condition.as_str());
            let wrong = holds.then(|| format!("fabric reports {name}"));
            let right = format!("fabric reports no {name} any more");
            let key = (health.gpu, Fault::Condition(*condition));
            self.set(key, wrong, &right, changes);
        }
    }

    /// XIDs are events: none of them ends.
    fn xids(&mut self, health: &GpuHealth, changes: &mut Vec<Change>) {
        let gpu = health.gpu;
        for (xid, times) in health.xids.iter().flatten() {
            let before = self.xids.insert((gpu, *xid), *times).unwrap_or(0);
            if *times > before {
                let plural = if *times == 1 { "" } else { "s" };
                let text = format!("XID {xid}, {times} time{plural} since the start");
                changes.push(Change::Came(gpu, text));
            }
        }
    }

    fn set(
        &mut self,
        key: (u32, Fault),
        wrong: Option<String>,
        right: &str,
        changes: &mut Vec<Change>,
    ) {
        let before = self.holding.get(&key);
        match wrong {
            Some(text) if before != Some(&text) => {
                changes.push(Change::Came(key.0, text.clone()));
                self.holding.insert(key, text);
            }
            None if before.is_some() => {
                changes.push(Change::Gone(key.0, right.to_owned()));
                self.holding.remove(&key);
            }
            _ => {}
        }
    }
}

/// Which one it was, why it is lost, and what it reported by itself.
fn words_of_lost(gpu: &LostGpu) -> String {
    let reason = gpu.reason.as_deref();
    let reason = reason.unwrap_or("it was there and does not answer");
    let xids: Vec<_> = gpu.xids.iter().map(|(xid, _)| xid.to_string()).collect();
    let xids = (!xids.is_empty()).then(|| format!("XIDs seen: {}", xids.join(", ")));
    let which: Vec<_> = [gpu.uuid.clone(), gpu.pci_bus_id.clone(), xids]
        .into_iter()
        .flatten()
        .collect();
    match which.is_empty() {
        true => format!("lost: {reason}"),
        false => format!("lost: {reason} ({})", which.join("; ")),
    }
}

fn words(name: &str) -> String {
    name.replace('_', " ")
}

impl Change {
    /// Writes it to the log, a line.
    pub(crate) fn log(&self, source: &str) {
        match self {
            Self::Came(gpu, text) => tracing::warn!(source, gpu, "GPU {gpu}: {text}"),
            Self::Gone(gpu, text) => tracing::info!(source, gpu, "GPU {gpu}: {text}"),
        }
    }
}
