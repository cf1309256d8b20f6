//! Who holds which GPUs, and how well they were placed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use nvlink_topology::{Allocation, Gpu, NodeTopologyStatus, Pattern};

use crate::source::{LostGpu, Reading};

/// A GPU, as it is called as long as it lives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Uuid(String),
    /// Where the source knows no UUID.
    Index(u32),
}

impl Key {
    pub(crate) fn new(index: u32, uuid: Option<&str>) -> Self {
        uuid.map_or(Self::Index(index), |uuid| Self::Uuid(uuid.to_owned()))
    }

    fn of(gpu: &LostGpu) -> Self {
        Self::new(gpu.index, gpu.uuid.as_deref())
    }
}

/// What the indices of GPUs mean at one moment: when a GPU goes, those behind
/// it move up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys(BTreeMap<u32, Key>);

impl Keys {
    /// Of a node with these GPUs.
    #[must_use]
    pub fn of(gpus: &[Gpu]) -> Self {
        let key = |gpu: &Gpu| (gpu.index, Key::new(gpu.index, gpu.uuid.as_deref()));
        Self(gpus.iter().map(key).collect())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Key> {
        self.0.values()
    }

    pub(crate) fn of_index(&self, index: u32) -> Option<Key> {
        self.0.get(&index).cloned()
    }

    fn keys<'a>(&self, gpus: impl IntoIterator<Item = &'a u32>) -> BTreeSet<Key> {
        let keys = gpus.into_iter().filter_map(|&gpu| self.of_index(gpu));
        keys.collect()
    }

    /// Indices of those that are there.
    pub(crate) fn indices(&self, keys: &BTreeSet<Key>) -> Vec<u32> {
        let there = self.0.iter().filter(|(_, key)| keys.contains(key));
        there.map(|(&index, _)| index).collect()
    }
}

/// The allocations of a node at one moment, judged. Replaced whole.
#[derive(Clone, Debug, Default)]
pub struct Placements {
    /// What the indices of GPUs in it mean.
    pub on: Keys,
    /// What the document says under `status`; absent where nobody knows.
    pub status: Option<NodeTopologyStatus>,
    /// GPUs of which it is not known whether somebody holds them: the kubelet
    /// names devices of which it is not known which GPUs they are.
    pub uncertain: BTreeSet<u32>,
    /// One for each container that holds GPUs, by namespace, pod, container;
    /// also where none of them answers.
    pub judged: Vec<Judged>,
    /// How asking for them went; absent where nobody is asked (a recording holds them, or nothing does).
    pub health: Option<Health>,
}

impl Placements {
    /// The same in the indices of `reading`. They are judged less often than
    /// the node is read: when a GPU is lost in between, a job must not be shown
    /// with the GPU that took its index. None where nobody was asked: what the
    /// source said then is not what it says now.
    pub(crate) fn in_terms_of(self: Arc<Self>, reading: &Reading) -> Option<Arc<Self>> {
        let now = Keys::of(&reading.topology.spec.gpus);
        let says_nothing = self.judged.is_empty() && self.status.is_none();
        if self.on == now || says_nothing && self.uncertain.is_empty() {
            return Some(self);
        }
        self.health.as_ref()?;
        let judged = self
            .judged
            .iter()
            .map(|one| one.moved(&self.on, &now, reading));
        let judged: Vec<_> = judged.collect();
        let present = judged.iter().filter(|one| !one.allocation.gpus.is_empty());
        let allocations = present.map(|one| one.allocation.clone()).collect();
        Some(Arc::new(Self {
            status: self
                .status
                .as_ref()
                .map(|_| NodeTopologyStatus { allocations }),
            uncertain: now
                .indices(&self.on.keys(&self.uncertain))
                .into_iter()
                .collect(),
            judged,
            health: self.health.clone(),
            on: now,
        }))
    }
}

/// How asking for the allocations went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Why there is no answer.
    pub error: Option<String>,
    /// How long it took.
    pub duration: Duration,
}

/// One container's GPUs, judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    pub allocation: Allocation,
    /// GPUs that it holds as well and that do not answer now.
    pub lost: Vec<LostGpu>,
    /// How the job is taken to communicate.
    pub pattern: Pattern,
    /// Why it is taken so.
    pub pattern_from: PatternFrom,
    /// NVLink domains that the GPUs lie in; a GPU outside any counts as one;
    /// absent where NVLink is unknown, and where no GPU answers.
    pub domains: Option<usize>,
    /// Capacity of the busiest resource when the pattern runs, bytes per second in
    /// one direction; absent where there is no traffic, and where NVLink is unknown.
    pub bottleneck_bytes_per_second: Option<u64>,
    /// Best possible cost on the empty node over the cost; absent where it cannot be told.
    pub quality_node: Option<f64>,
    /// Best possible cost in what was free when the pod came, over the cost;
    /// absent where it is not known what was free.
    pub quality_free: Option<f64>,
}

impl Judged {
    /// The same GPUs by the indices that they have `now`; those that have none are lost.
    fn moved(&self, on: &Keys, now: &Keys, reading: &Reading) -> Self {
        let there: BTreeSet<&Key> = now.all().collect();
        let mut held = on.keys(&self.allocation.gpus);
        let mut lost = Vec::new();
        for gpu in &self.lost {
            match there.contains(&Key::of(gpu)) {
                true => drop(held.insert(Key::of(gpu))),
                false => lost.push(gpu.clone()),
            }
        }
        for &index in &self.allocation.gpus {
            let gone = on.of_index(index).filter(|key| !there.contains(key));
            let Some(key) = gone else { continue };
            let told = reading.lost.iter().find(|gpu| Key::of(gpu) == key);
            lost.push(told.cloned().unwrap_or_else(|| LostGpu {
                index,
                uuid: match key {
                    Key::Uuid(uuid) => Some(uuid),
                    Key::Index(_) => None,
                },
                ..LostGpu::default()
            }));
        }
        let free = self.allocation.free_when_placed.as_ref();
        Self {
            allocation: Allocation {
                gpus: now.indices(&held),
                free_when_placed: free.map(|free| now.indices(&on.keys(free))),
                ..self.allocation.clone()
            },
            lost,
            ..self.clone()
        }
    }
}

/// Why a job is taken to communicate in its pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternFrom {
    /// The webhook's annotation `decision`.
    Decision,
    /// Nobody said: the most common one.
    Default,
}

impl PatternFrom {
    /// The word used in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Decision => "decision",
            Self::Default => "default",
        }
    }
}

impl fmt::Display for PatternFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
