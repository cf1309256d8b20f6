//! Keeps GPUs unhealthy that a device plugin has forgotten about.
//!
//! NVIDIA's plugin marks a device as unhealthy after an XID, and never takes that back. But it calls
//! all devices healthy each time it registers, so a restart of this program would give broken GPUs to
//! containers. The file keeps those that are broken by the same verdict as the marks
//! ([`broken::is_broken`]), until the driver asks for nothing any more, or, where it does not say what it
//! asks for, until the counters of their links start from zero: the GPU was reset. A GPU whose reset
//! would go unnoticed is not kept, nor is one that the driver does not call broken: the plugin also
//! marks all devices when it cannot read the driver's events.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nvlink_source::{
    Reading,
    broken::{self, Traffic},
};
use prost::{Message, bytes::Bytes};
use serde::{Deserialize, Serialize};

use super::{
    messages::{Device, ListAndWatchResponse, extend_each},
    node::{Node, NodeView},
};

/// The file in the vendor's directory.
const FILE: &str = "nvlink-domains.unhealthy.json";
/// The largest file that is read, in bytes. A node of 16 GPUs needs 10 KB.
const MOST_BYTES: u64 = 1 << 20;
const UNHEALTHY: &str = "Unhealthy";
/// The unhealthy GPUs of a node, by UUID, with the counters of their links when they became so.
type Known = BTreeMap<String, Traffic>;

/// What is kept in the file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// The id of the boot in which they became unhealthy.
    boot: String,
    gpus: Known,
}

/// What is known of the GPUs of a node, across restarts.
#[derive(Debug)]
pub(super) struct Memory {
    file: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    known: Known,
    /// The file lacks the last change; that was logged.
    unwritten: bool,
}

impl Memory {
    /// Reads what an earlier process of the same boot kept in `directory`.
    pub(super) fn new(directory: &Path) -> Self {
        let file = directory.join(FILE);
        let kept = match read(&file) {
            Ok(kept) => kept,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Kept::default(),
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "forgot which GPUs were unhealthy");
                Kept::default()
            }
        };
        let known = match kept.boot == *broken::BOOT {
            true => kept.gpus,
            false => Known::default(),
        };
        let state = State {
            known,
            unwritten: false,
        };
        Self {
            file,
            state: Mutex::new(state),
        }
    }

    /// Changes what is known, and writes the file where it lacks something.
    fn change(&self, change: impl FnOnce(&mut Known)) {
        let mut state = self.lock();
        let before = state.known.clone();
        change(&mut state.known);
        if before == state.known && !state.unwritten {
            return;
        }
        let kept = Kept {
            boot: broken::BOOT.clone(),
            gpus: state.known.clone(),
        };
        let written = write(&self.file, &kept);
        if let (Err(error), false) = (&written, state.unwritten) {
            let file = self.file.display();
            tracing::warn!(%file, %error, "cannot keep which GPUs are unhealthy: trying again");
        }
        state.unwritten = written.is_err();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports whether a reset would show in these counters.
fn shows_resets(traffic: &Traffic) -> bool {
    traffic.values().any(|bytes| *bytes > 0)
}

fn read(file: &Path) -> io::Result<Kept> {
    if !fs::symlink_metadata(file)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut text = String::new();
    File::open(file)?
        .take(MOST_BYTES)
        .read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

/// Replaces the file as a whole. It need not survive a power failure, after which it does not count.
fn write(file: &Path, kept: &Kept) -> io::Result<()> {
    let new = file.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut opened = OpenOptions::new().write(true).create_new(true).open(&new)?;
    opened.write_all(&serde_json::to_vec(kept)?)?;
    fs::rename(&new, file)
}

/// What a reading says of the GPUs, by UUID.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// What the links of each GPU sent and received.
    traffic: BTreeMap<String, Traffic>,
    /// Whether the GPUs that answer are broken, where the driver itself gives a verdict.
    verdicts: BTreeMap<String, bool>,
    /// GPUs without a verdict that have an XID after which they need a reset.
    events: BTreeSet<String>,
    /// GPUs that answer.
    read: BTreeSet<String>,
}

impl Evidence {
    /// Returns what the latest reading says; `None` without a recent one.
    fn now(node: &dyn Node) -> Option<Self> {
        let mut now = None;
        node.show(&mut |reading| now = Some(Self::of(reading)));
        now
    }

    pub(super) fn of(reading: &Reading) -> Self {
        let mut traffic = broken::traffic_by_gpu(&reading.counters);
        let mut this = Self::default();
        for gpu in &reading.topology.spec.gpus {
            let Some(uuid) = &gpu.uuid else { continue };
            this.read.insert(uuid.clone());
            if let Some(traffic) = traffic.remove(&gpu.index) {
                this.traffic.insert(uuid.clone(), traffic);
            }
            let Some(health) = reading.health_of(gpu.index) else {
                continue;
            };
            let broken = broken::is_broken(health);
            match health.recovery {
                Some(_) => _ = this.verdicts.insert(uuid.clone(), broken),
                None if broken => _ = this.events.insert(uuid.clone()),
                None => {}
            }
        }
        let lost = reading.lost.iter();
        let lost = lost.filter(|gpu| broken::has_broken(&gpu.xids));
        this.events.extend(lost.filter_map(|gpu| gpu.uuid.clone()));
        this
    }

    fn is_broken(&self, gpu: &String) -> bool {
        let verdict = self.verdicts.get(gpu).copied();
        verdict.unwrap_or_else(|| self.events.contains(gpu))
    }

    /// Reports whether a GPU that was broken `then` works again, or would do so unnoticed.
    fn is_over(&self, gpu: &String, then: &Traffic) -> bool {
        match self.verdicts.get(gpu) {
            Some(broken) => !broken,
            // A GPU that does not answer now keeps its state.
            None if !self.read.contains(gpu) => false,
            None => {
                let now = self.traffic.get(gpu);
                // Where the driver judges other GPUs, it could not be asked about this one.
                let unseen = !shows_resets(then) && self.verdicts.is_empty();
                unseen || now.is_some_and(|now| broken::was_reset(then, now))
            }
        }
    }
}

/// The health of the devices of one registration.
#[derive(Debug)]
pub(super) struct Health {
    resource: String,
    memory: Arc<Memory>,
    view: Arc<NodeView>,
    /// The plugin's latest list, and which devices were unhealthy in it.
    list: Bytes,
    unhealthy: BTreeSet<String>,
    /// GPUs that the plugin called unhealthy, while the driver does not call them broken.
    pending: BTreeSet<String>,
    /// The latest counters of each GPU, and the UUIDs of devices that are named otherwise.
    traffic: BTreeMap<String, Traffic>,
    uuids: BTreeMap<String, String>,
}

impl Health {
    /// Begins with the first list of a plugin, which does not know what it said before.
    pub(super) fn new(
        resource: &str,
        memory: Arc<Memory>,
        view: Arc<NodeView>,
        first: Bytes,
    ) -> Self {
        let mut this = Self {
            resource: resource.to_owned(),
            memory,
            view,
            list: Bytes::new(),
            unhealthy: BTreeSet::new(),
            pending: BTreeSet::new(),
            traffic: BTreeMap::new(),
            uuids: BTreeMap::new(),
        };
        this.hear(first);
        let kept: Vec<String> = this.memory.lock().known.keys().cloned().collect();
        if !kept.is_empty() {
            let gpus = kept.join(", ");
            tracing::warn!(resource, gpus, "unhealthy until the GPU is reset");
        }
        this
    }

    /// Takes the plugin's next list. A device that it calls healthy again after the list before is.
    pub(super) fn hear(&mut self, list: Bytes) {
        self.list = list;
        let Ok(list) = ListAndWatchResponse::decode(self.list.clone()) else {
            return;
        };
        let is_unhealthy = |device: &Device| device.health == UNHEALTHY;
        let (unhealthy, healthy): (Vec<_>, Vec<_>) =
            list.devices.into_iter().partition(is_unhealthy);
        let unhealthy: BTreeSet<String> = unhealthy.into_iter().map(|one| one.id).collect();
        let gpus = |ids: Vec<&String>| -> BTreeSet<String> {
            ids.into_iter().filter_map(|id| self.uuid(id)).collect()
        };
        let new = gpus(unhealthy.difference(&self.unhealthy).collect());
        let healthy = healthy.iter().map(|one| &one.id);
        let recovered = gpus(healthy.filter(|&id| self.unhealthy.contains(id)).collect());
        self.pending.retain(|gpu| !recovered.contains(gpu));
        self.pending.extend(new);
        self.memory
            .change(|known| known.retain(|gpu, _| !recovered.contains(gpu)));
        self.unhealthy = unhealthy;
        self.look();
    }

    /// Remembers GPUs that are broken, and forgets those that work again.
    pub(super) fn look(&mut self) {
        self.name_devices();
        let Some(now) = Evidence::now(self.view.node()) else {
            return;
        };
        self.traffic.extend(now.traffic.clone());
        let broken = self.pending.iter().filter(|gpu| now.is_broken(gpu));
        let proven: Vec<String> = broken.cloned().collect();
        let mut new = Known::new();
        for gpu in proven {
            self.pending.remove(&gpu);
            let traffic = self.traffic.get(&gpu).cloned().unwrap_or_default();
            // Without traffic, only the driver's verdict shows that it works again.
            if now.verdicts.contains_key(&gpu) || shows_resets(&traffic) {
                new.insert(gpu, traffic);
            }
        }
        self.memory.change(|known| {
            known.retain(|gpu, then| !now.is_over(gpu, then));
            known.extend(new);
        });
    }

    /// Learns the UUIDs of devices that are not named by them.
    fn name_devices(&mut self) {
        let Some(chooser) = self.view.chooser() else {
            return;
        };
        let list = ListAndWatchResponse::decode(self.list.clone()).unwrap_or_default();
        for device in list.devices {
            if let Some(uuid) = chooser.uuid(&self.resource, &device.id) {
                self.uuids.insert(device.id, uuid);
            }
        }
    }

    /// Returns the UUID of the GPU that a device is, or is a share of; `None` for a MIG slice, of which
    /// the plugin knows more.
    fn uuid(&self, id: &str) -> Option<String> {
        let known = self.uuids.get(id).cloned();
        known.or_else(|| self.view.chooser()?.uuid(&self.resource, id))
    }

    /// Returns the plugin's list, in which all devices of unhealthy GPUs are.
    pub(super) fn list(&self) -> Bytes {
        let known = self.memory.lock().known.clone();
        if known.is_empty() {
            return self.list.clone();
        }
        let marked = |device: Bytes| {
            let device = Device::decode(device).ok()?;
            let gpu = self.uuid(&device.id);
            // Of a field that occurs twice, the last one counts.
            let health = Device {
                health: UNHEALTHY.to_owned(),
                ..Device::default()
            };
            Some(match gpu.is_some_and(|gpu| known.contains_key(&gpu)) {
                true => health.encode_to_vec(),
                false => Vec::new(),
            })
        };
        let marked = extend_each(&self.list, marked);
        marked.unwrap_or_else(|| self.list.clone())
    }
}
