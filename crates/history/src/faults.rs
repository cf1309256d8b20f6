//! Faults for the log: one line when a fault begins, one when it ends, none while
//! nothing changes.

use std::collections::{BTreeMap, BTreeSet};

use nvlink_source::{FabricCondition, FabricState, GpuHealth, LostGpu, Reading, RowRemap};
use nvlink_topology::{RecoveryAction, missing_links};

/// A fault of a GPU that lasts for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Lost,
    Links,
    Fabric,
    Condition(FabricCondition),
    /// The driver asks for an action.
    Recovery,
    Rows(RowRemap),
    /// Placements treat the GPU as broken.
    Marked,
}

/// A change of one GPU's faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A fault began.
    Came(u32, String),
    /// A fault ended.
    Gone(u32, String),
}

/// The current faults and the XIDs so far, to find changes.
#[derive(Debug, Default)]
pub struct Faults {
    /// The log text of each current fault, by GPU.
    holding: BTreeMap<(u32, Fault), String>,
    /// Number of XIDs, by GPU and XID.
    xids: BTreeMap<(u32, u64), u64>,
}

impl Faults {
    /// Returns the changes since the previous reading; at the first one, all faults.
    pub fn observe(&mut self, reading: &Reading) -> Vec<Change> {
        let mut changes = Vec::new();
        self.lost(reading, &mut changes);
        for gpu in &reading.topology.spec.gpus {
            let missing = missing_links(gpu, &reading.topology.spec.gpus);
            // A fault that could not be read does not change.
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
            self.verdict(health, &mut changes);
            self.xids(health, &mut changes);
        }
        for gpu in &reading.topology.spec.gpus {
            let faults: Vec<_> = gpu.faults.iter().map(ToString::to_string).collect();
            let wrong = (!faults.is_empty()).then(|| {
                let faults = faults.join(", ");
                format!("marked as broken ({faults}): placements leave it out or rank it last")
            });
            let key = (gpu.index, Fault::Marked);
            self.set(key, wrong, "no longer marked as broken", &mut changes);
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
            let right = format!("fabric no longer reports {name}");
            let key = (health.gpu, Fault::Condition(*condition));
            self.set(key, wrong, &right, changes);
        }
    }

    /// Follows what the driver says of a GPU.
    fn verdict(&mut self, health: &GpuHealth, changes: &mut Vec<Change>) {
        if let Some(action) = health.recovery {
            let wrong = (action != RecoveryAction::None)
                .then(|| format!("the driver asks for: {}", words(action.as_str())));
            let key = (health.gpu, Fault::Recovery);
            self.set(key, wrong, "the driver asks for nothing more", changes);
        }
        for (state, holds) in &health.row_remap {
            let (wrong, right) = match state {
                RowRemap::Pending => (
                    "rows of memory wait to be remapped",
                    "no rows of memory wait to be remapped any more",
                ),
                RowRemap::Failed => (
                    "rows of memory could not be remapped",
                    "no failure to remap rows of memory any more",
                ),
            };
            let wrong = holds.then(|| wrong.to_owned());
            self.set((health.gpu, Fault::Rows(*state)), wrong, right, changes);
        }
    }

    /// Adds the new XIDs. They are events, so none of them ends.
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

/// Describes a lost GPU: which one it is, why it is lost, and which XIDs it reported.
fn words_of_lost(gpu: &LostGpu) -> String {
    let reason = gpu.reason.as_deref();
    let reason = reason.unwrap_or("it no longer answers");
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
    /// Logs the change, as one line.
    pub fn log(&self, source: &str) {
        match self {
            Self::Came(gpu, text) => tracing::warn!(source, gpu, "GPU {gpu}: {text}"),
            Self::Gone(gpu, text) => tracing::info!(source, gpu, "GPU {gpu}: {text}"),
        }
    }
}
