//! Marks broken GPUs in the document, so that placements leave them out or rank them last.
//!
//! Missing links and problems of the fabric are states. A state is marked at the first
//! reading that shows it. The mark ends after [`CALM`] readings without it, so that a link
//! that comes and goes does not move jobs to and fro. What all GPUs of a domain have alike is a mark
//! of the domain: its switches are the reason, and no other GPU of it would be better.
//!
//! The driver's own verdict, the recovery action that it asks for, is a state that the driver
//! keeps until it was done: its mark begins and ends with it, and so do those of rows of memory
//! that wait to be remapped or could not be.
//!
//! XIDs are events. They mark a GPU only while the driver gives no verdict ([`broken::breaks`]). The mark
//! ends when the GPU was reset, which the counters of its links show: they start from zero. It
//! also ends when the node boots anew. A [`Record`] in the cluster keeps it while the exporter
//! restarts.

use std::collections::{BTreeMap, BTreeSet};

use nvlink_source::{
    FabricCondition, FabricHealth, FabricState, GpuHealth, LostGpu, Reading, RowRemap,
    broken::{self, BOOT, Traffic},
};
use nvlink_topology::{
    Domain, Fault, Gpu, Lost, NodeTopologySpec, RecoveryAction, own_missing_links,
    shared_missing_links,
};
use serde::{Deserialize, Serialize};

use crate::Key;

/// The condition of a fabric that all GPUs can have and still use NVLink.
const SLOWER: FabricCondition = FabricCondition::DegradedBandwidth;
/// Readings without a fault after which its mark ends: a minute at the default interval.
pub const CALM: u32 = 12;

/// What is known about the faults of each GPU from all readings so far.
#[derive(Debug, Default)]
pub struct Marks {
    gpus: BTreeMap<Key, History>,
    restored: bool,
}

#[derive(Debug, Default)]
struct History {
    /// Faults that are states, with the number of readings since each was last seen.
    states: BTreeMap<Fault, u32>,
    /// The action for which the driver asked last; `None` if it never said one.
    verdict: Option<RecoveryAction>,
    /// What it said last of rows of memory.
    rows: BTreeSet<Fault>,
    /// XIDs since the last reset; none once the driver gave a verdict.
    xids: BTreeSet<u64>,
    /// The counters when the last of `xids` was seen.
    marked_at: Traffic,
    /// The source's count of each XID at the last reading.
    counts: BTreeMap<u64, u64>,
    /// The counters at the last reading that had them.
    bytes: Traffic,
}

impl Marks {
    /// Marks the broken GPUs of `reading`, and lists the lost ones in its document. Marks
    /// that the source itself has set, such as those of a recording, stay.
    pub fn observe(&mut self, reading: &mut Reading) {
        let mut bytes = broken::traffic_by_gpu(&reading.counters);
        let mut marks = Vec::new();
        let shared = reading.topology.spec.domains.iter();
        let shared: Vec<_> = shared.map(|domain| shared_by(domain, reading)).collect();
        for (domain, shared) in reading.topology.spec.domains.iter_mut().zip(shared) {
            let all: BTreeSet<Fault> = domain.faults.drain(..).chain(shared).collect();
            domain.faults = all.into_iter().collect();
        }
        let missing = own_missing_links(&reading.topology.spec);
        for (gpu, missing) in reading.topology.spec.gpus.iter().zip(missing) {
            let history = self.history(gpu.index, gpu.uuid.as_deref());
            let health = reading.health.iter().find(|one| one.gpu == gpu.index);
            let xids = health.and_then(|health| health.xids.as_deref());
            let bytes = bytes.remove(&gpu.index).unwrap_or_default();
            health.inspect(|health| history.hear(health));
            history.count(xids.unwrap_or_default(), bytes);
            // A fault that could not be read does not change.
            if reading.is_read(gpu.index) {
                history.see(states(gpu, missing, &reading.topology.spec, health));
            }
            marks.push(history.faults());
        }
        for lost in &reading.lost {
            let history = self.history(lost.index, lost.uuid.as_deref());
            history.count(&lost.xids, Traffic::new());
        }
        let spec = &mut reading.topology.spec;
        for (gpu, marks) in spec.gpus.iter_mut().zip(marks) {
            let all: BTreeSet<Fault> = gpu.faults.drain(..).chain(marks).collect();
            gpu.faults = all.into_iter().collect();
        }
        if !reading.lost.is_empty() {
            spec.lost = reading.lost.iter().map(lost).collect();
        }
    }

    /// Restores what an earlier process recorded, unless the node has booted since then.
    /// Only the first call has an effect.
    pub fn restore(&mut self, record: &Record) {
        if std::mem::replace(&mut self.restored, true) || record.boot != *BOOT {
            return;
        }
        for (uuid, marked) in &record.gpus {
            let history = self.history(0, Some(uuid));
            if history.verdict.is_some() || broken::was_reset(&marked.bytes, &history.bytes) {
                continue;
            }
            history.xids.extend(&marked.xids);
            if history.bytes.is_empty() {
                history.bytes.clone_from(&marked.bytes);
            }
            if history.marked_at.is_empty() {
                history.marked_at.clone_from(&marked.bytes);
            }
        }
    }

    /// Returns what must survive a restart of the exporter.
    #[must_use]
    pub fn record(&self) -> Record {
        let marked = |(key, history): (&Key, &History)| match key {
            Key::Uuid(uuid) if !history.xids.is_empty() => Some((
                uuid.clone(),
                Marked {
                    xids: history.xids.clone(),
                    bytes: history.marked_at.clone(),
                },
            )),
            _ => None,
        };
        Record {
            boot: BOOT.clone(),
            gpus: self.gpus.iter().filter_map(marked).collect(),
            restored: self.restored,
        }
    }

    fn history(&mut self, index: u32, uuid: Option<&str>) -> &mut History {
        self.gpus.entry(Key::new(index, uuid)).or_default()
    }
}

impl History {
    /// Takes the driver's verdict. What it does not say, or could not be asked now, stays.
    fn hear(&mut self, health: &GpuHealth) {
        if health.recovery.is_some() {
            self.verdict = health.recovery;
            self.xids.clear();
        }
        for (state, holds) in &health.row_remap {
            let fault = of_rows(*state);
            match holds {
                true => _ = self.rows.insert(fault),
                false => _ = self.rows.remove(&fault),
            }
        }
    }

    /// Adds the new ones of `xids`, each with its count; forgets the earlier ones if the
    /// GPU was reset.
    fn count(&mut self, xids: &[(u64, u64)], bytes: Traffic) {
        let fresh = |(xid, count): &&(u64, u64)| *count > 0 && self.counts.get(xid) != Some(count);
        let fresh: Vec<u64> = xids.iter().filter(fresh).map(|(xid, _)| *xid).collect();
        self.counts.extend(xids.iter().copied());
        if broken::was_reset(&self.bytes, &bytes) {
            // Also an XID of this reading: it is why somebody reset the GPU.
            self.xids.clear();
        } else {
            let before = self.xids.len();
            let silent = self.verdict.is_none();
            let breaking = fresh
                .into_iter()
                .filter(|&xid| silent && broken::breaks(xid));
            self.xids.extend(breaking);
            if self.xids.len() > before {
                let now = if bytes.is_empty() {
                    &self.bytes
                } else {
                    &bytes
                };
                self.marked_at.clone_from(now);
            }
        }
        // A lost GPU has no counters, and after its return they are compared with these.
        if !bytes.is_empty() {
            self.bytes = bytes;
        }
    }

    /// Follows the faults that are states.
    fn see(&mut self, now: BTreeSet<Fault>) {
        for calm in self.states.values_mut() {
            *calm += 1;
        }
        self.states.extend(now.into_iter().map(|fault| (fault, 0)));
        self.states.retain(|_, calm| *calm < CALM);
    }

    fn faults(&self) -> Vec<Fault> {
        let xids = self.xids.iter().map(|&xid| Fault::Xid(xid));
        let verdict = self.verdict.filter(|action| action.breaks_gpu());
        let verdict = verdict.map(Fault::Recovery).into_iter();
        let states = self.states.keys().chain(&self.rows).cloned();
        states.chain(verdict).chain(xids).collect()
    }
}

fn of_rows(state: RowRemap) -> Fault {
    match state {
        RowRemap::Pending => Fault::RowRemapPending,
        RowRemap::Failed => Fault::RowRemapFailed,
    }
}

/// Returns what is wrong with all GPUs of a domain alike: links that each of them lacks, or the
/// bandwidth that its fabric reports as degraded.
fn shared_by(domain: &Domain, reading: &Reading) -> BTreeSet<Fault> {
    let mut faults = BTreeSet::new();
    if shared_missing_links(domain, &reading.topology.spec) > 0 {
        faults.insert(Fault::MissingLinks);
    }
    let inside = |health: &&GpuHealth| domain.gpus.contains(&health.gpu);
    let fabrics = reading.health.iter().filter(inside);
    let mut fabrics = fabrics
        .filter_map(|health| health.fabric.as_ref())
        .peekable();
    let several = domain.gpus.len() > 1 && fabrics.peek().is_some();
    if several && fabrics.all(|fabric| is_completed(fabric) && is_slower(fabric)) {
        faults.insert(Fault::Fabric);
    }
    faults
}

/// Returns the faults of `gpu` that are states, without those of its domain. It lacks `missing` links
/// that others of its domain have.
fn states(
    gpu: &Gpu,
    missing: Option<u64>,
    spec: &NodeTopologySpec,
    health: Option<&GpuHealth>,
) -> BTreeSet<Fault> {
    let mut faults = BTreeSet::new();
    if missing > Some(0) {
        faults.insert(Fault::MissingLinks);
    }
    // A GPU that should have no links, such as one alone in a virtual machine, needs no fabric.
    let linked = missing.is_some() || gpu.links.iter().flatten().any(|link| link.up);
    let domain = spec.domain_of(gpu.index);
    let shared = domain.is_some_and(|domain| domain.faults.contains(&Fault::Fabric));
    let own = |condition: FabricCondition| !(shared && condition == SLOWER);
    let fabric = health.and_then(|health| health.fabric.as_ref());
    let broken = fabric.is_some_and(|fabric| {
        let mut conditions = fabric.conditions.iter();
        !is_completed(fabric) || conditions.any(|(condition, holds)| *holds && own(*condition))
    });
    if linked && broken {
        faults.insert(Fault::Fabric);
    }
    faults
}

fn is_completed(fabric: &FabricHealth) -> bool {
    fabric.state == FabricState::Completed
}

fn is_slower(fabric: &FabricHealth) -> bool {
    fabric.conditions.contains(&(SLOWER, true))
}

fn lost(gpu: &LostGpu) -> Lost {
    Lost {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        pci_bus_id: gpu.pci_bus_id.clone(),
    }
}

/// The XIDs of the GPUs of a node, as they are kept in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Id of the boot in which they happened; empty if the system gives none.
    boot: String,
    /// By UUID of the GPU.
    gpus: BTreeMap<String, Marked>,
    /// Whether the record of the earlier process is a part of it.
    #[serde(skip)]
    restored: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Marked {
    /// XIDs since the last reset.
    xids: BTreeSet<u64>,
    /// The counters when the last of them was seen, by which a reset is recognized.
    #[serde(default)]
    bytes: Traffic,
}

impl Record {
    /// Reports whether no GPU has an XID.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Reports whether the record of the earlier process is a part of it.
    #[must_use]
    pub fn is_restored(&self) -> bool {
        self.restored
    }
}
