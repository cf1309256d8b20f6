//! The source `nvml`: the driver's management library, loaded at run time.
//!
//! The caller of [`NvmlSource::read`] owns the library. Each reading looks up the
//! devices; if the library fails as a whole, it is closed and the next reading
//! opens it again. State that must outlive this (which counter is used, XIDs,
//! GPUs that have been seen) is in `History`.
//!
//! `raw` makes the calls that the wrapper lacks; `gpu` queries one GPU; `graph`,
//! `counters`, `fields` and `fabric` interpret the answers; `failures` handles
//! calls that fail.

mod address;
mod counters;
mod error;
mod events;
mod fabric;
mod failures;
mod fields;
mod gpm;
mod gpu;
mod graph;
mod library;
mod loader;
mod pcie;
mod raw;
mod verdict;

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use nvlink_topology::{NodeTopology, NodeTopologySpec};
use nvml_wrapper::{Device, error::NvmlError};

use self::{
    counters::Choices,
    error::Trouble,
    events::{Events, Xids},
    failures::{Answer, Failures, Told},
    gpm::Gpm,
    gpu::{Answered, Memory},
    graph::{GpuFacts, PeerStatus},
    library::Library,
    pcie::Ancestors,
};
use super::{GpuHealth, LostGpu, Reading, Source, SourceError, Unread, sysfs};

pub(crate) use self::error::LibraryError;

/// While a GPU is lost, the library is opened again at this interval: otherwise it
/// may not see a GPU that came back.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// A node as the driver's library sees it.
pub(crate) struct NvmlSource {
    path: Option<String>,
    node: String,
    session: Option<Session>,
    history: History,
}

/// An open library, and the state that is valid while it is open.
#[derive(Debug)]
struct Session {
    events: Events,
    gpm: Gpm,
    memory: Memory,
    ancestors: Ancestors,
    library: Library,
    opened: Duration,
    lost: bool,
}

/// State that is kept for the life of the process, by UUID of the GPU.
#[derive(Debug, Default)]
struct History {
    choices: Choices,
    xids: Xids,
    seen: BTreeMap<String, LostGpu>,
}

/// The GPUs of one reading.
struct Gpus<'nvml> {
    answered: Vec<(Device<'nvml>, Answered)>,
    /// Errors, by the index of the GPU that failed.
    failed: BTreeMap<u32, String>,
    /// GPUs that do not report their UUID, by index.
    nameless: BTreeMap<u32, Nameless>,
}

/// A GPU that exists but does not report its UUID.
struct Nameless {
    address: Option<String>,
    error: String,
}

impl NvmlSource {
    /// Creates a source of the library at `path` for the node `node`. By default
    /// the library is where the loader finds it, else where the GPU operator's
    /// driver container puts it. Opens nothing: the driver may be loaded later.
    #[must_use]
    pub(crate) fn new(path: Option<&str>, node: &str) -> Self {
        Self {
            path: path.map(str::to_owned),
            node: node.to_owned(),
            session: None,
            history: History::default(),
        }
    }

    /// Creates a source and opens the library, for callers that fall back to
    /// another source if there is no driver.
    ///
    /// # Errors
    /// When there is no library, or it cannot be initialized because the driver is
    /// not loaded or has another version.
    pub(crate) fn open(path: Option<&str>, node: &str) -> Result<Self, SourceError> {
        let mut source = Self::new(path, node);
        source.session = Some(Session::open(path, Duration::ZERO)?);
        Ok(source)
    }
}

impl Source for NvmlSource {
    fn read(&mut self, now: Duration) -> Result<Reading, SourceError> {
        let mut session = match self.session.take() {
            Some(session) if !session.is_due(now) => session,
            old => {
                if let Some(old) = old {
                    old.end(&mut self.history);
                }
                Session::open(self.path.as_deref(), now)?
            }
        };
        // After an error the session is dropped, and the next reading opens a new one.
        let reading = session.read(&mut self.history, &self.node, now)?;
        session.lost = !reading.lost.is_empty();
        // A library that no longer shows any GPU is opened again, too.
        if !reading.topology.spec.gpus.is_empty() {
            self.session = Some(session);
        }
        Ok(reading)
    }

    fn release(&mut self) {
        if let Some(session) = self.session.take() {
            session.end(&mut self.history);
        }
    }
}

impl Session {
    fn open(path: Option<&str>, now: Duration) -> Result<Self, LibraryError> {
        let library = Library::open(path)?;
        Ok(Self {
            events: Events::default(),
            gpm: Gpm::default(),
            memory: Memory::default(),
            ancestors: Ancestors::default(),
            library,
            opened: now,
            lost: false,
        })
    }

    /// Reports whether it is time to open the library again and look for lost GPUs.
    fn is_due(&self, now: Duration) -> bool {
        self.lost && now.saturating_sub(self.opened) >= LOOK_AGAIN
    }

    /// Counts the pending events, which would be lost with the session.
    fn end(self, history: &mut History) {
        let _ = self.events.drain(&mut history.xids, &mut Told::default());
    }

    fn read(
        &mut self,
        history: &mut History,
        node: &str,
        now: Duration,
    ) -> Result<Reading, SourceError> {
        // The devices borrow the library, while reading them changes the session.
        let loaded = Arc::clone(&self.library.loaded);
        let gpus = self.gpus(&loaded, &mut history.choices, now)?;
        let mut told = gpus.told();
        if let Some(error) = gpus.none(&self.library.name) {
            // If there were GPUs before, they must be reported as lost.
            if history.seen.is_empty() {
                return Err(error.into());
            }
            told.unread.push(Unread {
                gpu: None,
                reason: error.to_string(),
            });
        }
        let drained = self.events.drain(&mut history.xids, &mut told);
        self.or_closed("waiting for events", drained)?;
        let spec = self.graph(node, &gpus, &mut told)?;
        let lost = history.lost(&gpus, &mut told.warnings);
        let counters = |(_, one): &(Device<'_>, Answered)| one.counters.clone();
        Ok(Reading {
            health: history.health(&gpus),
            lost,
            counters: gpus.answered.iter().flat_map(counters).collect(),
            warnings: told.warnings,
            unread: told.unread,
            ..Reading::of(NodeTopology::new(node, spec))
        })
    }

    /// Builds the document from all GPUs.
    fn graph(
        &mut self,
        node: &str,
        gpus: &Gpus<'_>,
        told: &mut Told,
    ) -> Result<NodeTopologySpec, SourceError> {
        let paths = self.ancestors.paths(&gpus.answered, told);
        let paths = self.or_closed("nvmlDeviceGetTopologyCommonAncestor", paths)?;
        let facts = gpus.answered.iter().map(|(_, one)| one.facts.clone());
        let facts: Vec<GpuFacts> = facts.collect();
        let peers = peer_status(gpus, &facts, told);
        let peers = self.or_closed("nvmlDeviceGetP2PStatus", peers)?;
        let from = self.library.from.clone();
        let spec = graph::spec(node, from, &facts, &peers, paths);
        let (mut spec, odd) = spec.map_err(|error| SourceError::Invalid {
            name: self.library.name.clone(),
            error,
        })?;
        told.warnings.extend(odd);
        match sysfs::nics(Path::new("/"), &spec.gpus) {
            Ok((nics, odd)) => {
                spec.nics = nics;
                told.warnings.extend(odd);
            }
            Err(error) => {
                let warning = format!("network devices are unknown: {error}");
                told.warnings.push(warning);
            }
        }
        Ok(spec)
    }

    /// Queries all GPUs. If one fails, the others are read nevertheless.
    fn gpus<'nvml>(
        &mut self,
        loaded: &'nvml raw::Loaded,
        choices: &mut Choices,
        now: Duration,
    ) -> Result<Gpus<'nvml>, LibraryError> {
        let count = loaded.device_count();
        let count = count.map_err(|error| self.failure("nvmlDeviceGetCount", error))?;
        let mut gpus = Gpus {
            answered: Vec::new(),
            failed: BTreeMap::new(),
            nameless: BTreeMap::new(),
        };
        for index in 0..count {
            let answered = match loaded.device_by_index(index) {
                Ok(device) => {
                    gpu::read(self, choices, &device, index, now).map(|answered| (device, answered))
                }
                Err(error) if error::is_library(&error) => Err(Trouble::Library(error)),
                Err(error) => Err(Trouble::Gpu(error)),
            };
            match answered {
                Ok(answered) => gpus.answered.push(answered),
                Err(Trouble::Gpu(error)) => {
                    gpus.failed.insert(index, error.to_string());
                }
                Err(Trouble::Nameless { address, error }) => {
                    gpus.nameless.insert(index, Nameless { address, error });
                }
                Err(Trouble::Library(error)) => {
                    return Err(self.failure("reading a GPU", error));
                }
            }
        }
        Ok(gpus)
    }

    fn failure(&self, call: &'static str, error: NvmlError) -> LibraryError {
        LibraryError::of(&self.library.name, call, error)
    }

    fn or_closed<T>(
        &self,
        call: &'static str,
        result: Result<T, Trouble>,
    ) -> Result<T, LibraryError> {
        result.map_err(|trouble| match trouble {
            Trouble::Library(error) | Trouble::Gpu(error) => self.failure(call, error),
            Trouble::Nameless { error, .. } => LibraryError::NoAnswer {
                library: self.library.name.clone(),
                reasons: vec![error],
            },
        })
    }
}

impl Gpus<'_> {
    /// Returns the failures of all GPUs.
    fn told(&self) -> Told {
        let mut told = Told::default();
        for (_, one) in &self.answered {
            told.add(one.facts.gpu.index, &one.failures);
        }
        told.unread
            .extend(self.nameless.iter().map(|(&index, one)| Unread {
                gpu: Some(index),
                reason: format!("GPU {index}: {}", one.error),
            }));
        told
    }

    /// Returns the reason if no GPU answered.
    fn none(&self, library: &str) -> Option<LibraryError> {
        if !self.answered.is_empty() {
            return None;
        }
        let library = library.to_owned();
        let nameless = self.nameless.iter().map(|(index, one)| (index, &one.error));
        let failed = self.failed.iter().chain(nameless);
        let reasons: Vec<_> = failed
            .map(|(index, error)| format!("GPU {index}: {error}"))
            .collect();
        Some(match reasons.is_empty() {
            true => LibraryError::NoGpu { library },
            false => LibraryError::NoAnswer { library, reasons },
        })
    }

    /// Reports whether a GPU without a UUID may be `gpu`: it has the same address,
    /// or the same index if one of the addresses is unknown.
    fn may_have(&self, gpu: &LostGpu) -> bool {
        self.nameless
            .iter()
            .any(|(&index, one)| match (&one.address, &gpu.pci_bus_id) {
                (Some(found), Some(wanted)) => found == wanted,
                _ => index == gpu.index,
            })
    }
}

/// Queries which pairs of GPUs behind switches the driver allows to communicate over NVLink.
fn peer_status(
    gpus: &Gpus<'_>,
    facts: &[GpuFacts],
    told: &mut Told,
) -> Result<PeerStatus, Trouble> {
    let device = |index: u32| {
        let found = gpus
            .answered
            .iter()
            .find(|(_, one)| one.facts.gpu.index == index);
        found.map(|(device, _)| device)
    };
    let mut peers = PeerStatus::new();
    let mut failed: BTreeMap<u32, Failures> = BTreeMap::new();
    let mut odd: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    for (a, b) in graph::switch_pairs(facts) {
        let (Some(from), Some(to)) = (device(a), device(b)) else {
            continue;
        };
        let failures = failed.entry(a).or_default();
        let call = failures::graph("nvmlDeviceGetP2PStatus");
        match failures.ask(call, raw::p2p_status(from, to)) {
            Ok(Answer::Given(0)) => _ = peers.insert((a, b), Ok(())),
            Ok(Answer::Given(status)) => {
                if status > MOST_STATUS {
                    odd.entry(status).or_insert((a, b));
                }
                peers.insert((a, b), Err(words(status)));
            }
            // The next reading of a lost GPU reports it.
            Ok(Answer::Unknown | Answer::Failed) | Err(Trouble::Gpu(_)) => {}
            Err(error) => return Err(error),
        }
    }
    for (gpu, failures) in &failed {
        told.add(*gpu, failures);
    }
    for (status, (a, b)) in odd {
        told.warnings.push(format!(
            "nvmlDeviceGetP2PStatus returned the unknown status {status} for GPU {a} and {b}: \
             these GPUs, and all other pairs with this status, are assumed not to be joined"
        ));
    }
    Ok(peers)
}

/// The last status of `nvmlGpuP2PStatus_t` that this version knows.
const MOST_STATUS: u32 = 6;

/// Describes the status of a pair that may not communicate, as `nvidia-smi topo -p2p` does.
fn words(status: u32) -> String {
    let known = match status {
        1 => "chipset not supported",
        2 => "GPU not supported",
        3 => "topology not supported",
        4 => "disabled by a registry key",
        5 => "not supported",
        6 => "unknown",
        // Only 0 means that they may communicate: any other status is a reason why not.
        other => return format!("status {other}"),
    };
    known.to_owned()
}

impl History {
    /// Returns the GPUs that answered earlier and not now, remembers those that
    /// answered, and adds a warning for each GPU that never answered.
    fn lost(&mut self, gpus: &Gpus<'_>, warnings: &mut Vec<String>) -> Vec<LostGpu> {
        self.forget_replaced(gpus, warnings);
        let mut gone = self.seen.clone();
        for (_, one) in &gpus.answered {
            gone.remove(&one.key);
            let gpu = &one.facts.gpu;
            let seen = LostGpu {
                index: gpu.index,
                uuid: gpu.uuid.clone(),
                pci_bus_id: gpu.pci_bus_id.clone(),
                ..LostGpu::default()
            };
            self.seen.insert(one.key.clone(), seen);
        }
        gone.retain(|_, gpu| !gpus.may_have(gpu));
        let mut failed = gpus.failed.clone();
        let mut known = |(key, gpu): (String, LostGpu)| {
            let reason = failed.remove(&gpu.index);
            let unlisted = || "the driver no longer lists it".to_owned();
            let xids = self.xids.get(&key).into_iter().flatten();
            LostGpu {
                reason: Some(reason.unwrap_or_else(unlisted)),
                xids: xids.map(|(&xid, &count)| (xid, count)).collect(),
                ..gpu
            }
        };
        let mut gone: Vec<_> = gone.into_iter().map(&mut known).collect();
        gone.sort_by_key(|gpu| gpu.index);
        let never = |(index, error)| format!("GPU {index} cannot be read: {error}");
        warnings.extend(failed.into_iter().map(never));
        gone
    }

    /// Forgets GPUs that were replaced. If a GPU that was never seen before answers
    /// at the address of another one, the other one is not lost: it was swapped.
    fn forget_replaced(&mut self, gpus: &Gpus<'_>, warnings: &mut Vec<String>) {
        for (_, new) in &gpus.answered {
            let Some(address) = &new.facts.gpu.pci_bus_id else {
                continue;
            };
            if self.seen.contains_key(&new.key) {
                continue;
            }
            let answers = |key: &String| gpus.answered.iter().any(|(_, one)| one.key == *key);
            let in_its_place = |key: &String, gpu: &LostGpu| {
                gpu.pci_bus_id.as_ref() == Some(address) && !answers(key)
            };
            let old = self.seen.iter().find(|(key, gpu)| in_its_place(key, gpu));
            if let Some(old) = old.map(|(key, _)| key.clone()) {
                let index = new.facts.gpu.index;
                warnings.push(format!(
                    "GPU {index} ({address}) was replaced: {old} is now {}",
                    new.key
                ));
                self.seen.remove(&old);
            }
        }
    }

    /// Returns the fabric, the driver's verdict and the XIDs of the GPUs that answered.
    fn health(&self, gpus: &Gpus<'_>) -> Vec<GpuHealth> {
        let health = |one: &Answered| {
            let counted = self.xids.get(&one.key);
            let xids = (one.watched || counted.is_some()).then(|| {
                let counted = counted.into_iter().flatten();
                counted.map(|(&xid, &count)| (xid, count)).collect()
            });
            GpuHealth {
                gpu: one.facts.gpu.index,
                fabric: one.facts.fabric.and_then(|info| info.condition()),
                recovery: one.verdict.recovery,
                row_remap: one.verdict.row_remap.clone(),
                xids,
            }
        };
        gpus.answered.iter().map(|(_, one)| health(one)).collect()
    }
}
