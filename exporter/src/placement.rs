//! Which containers hold which GPUs, and how good the placements are.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use nvlink_history::Key;
use nvlink_source::{LostGpu, Reading};
use nvlink_topology::{Allocation, Gpu, NodeTopologyStatus, PathClass, Pattern};

use crate::imex::Imex;

/// Which GPUs the indices mean at one point in time: when a GPU goes away, the
/// indices of the GPUs behind it change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys(BTreeMap<u32, Key>);

impl Keys {
    /// Returns the keys of a node with these GPUs.
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

    /// Returns the indices of those of `keys` that exist.
    pub(crate) fn indices(&self, keys: &BTreeSet<Key>) -> Vec<u32> {
        let there = self.0.iter().filter(|(_, key)| keys.contains(key));
        there.map(|(&index, _)| index).collect()
    }
}

/// The judged allocations of a node at one point in time. They are replaced as a whole.
#[derive(Clone, Debug, Default)]
pub struct Placements {
    /// Which GPUs its indices mean.
    pub on: Keys,
    /// The `status` of the document; absent if it is not known.
    pub status: Option<NodeTopologyStatus>,
    /// GPUs that may or may not be held: the kubelet reports devices that cannot
    /// be mapped to GPUs.
    pub uncertain: BTreeSet<u32>,
    /// One entry for each container that holds GPUs, sorted by namespace, pod and
    /// container; also if none of its GPUs answers.
    pub judged: Vec<Judged>,
    /// The IMEX channels and daemons on the node; empty if the kubelet does not say it.
    pub imex: Imex,
    /// Outcome of the query; absent if there is none (a recording holds the
    /// allocations, or nothing does).
    pub health: Option<Health>,
}

impl Placements {
    /// Returns the GPUs of containers whose jobs communicate, with a number for each container; `None` if it
    /// is not known which hold GPUs.
    pub(crate) fn communicating(&self) -> Option<BTreeMap<u32, usize>> {
        self.status.as_ref()?;
        let communicate =
            |one: &&Judged| one.pattern != Pattern::None && one.allocation.gpus.len() > 1;
        let jobs = self.judged.iter().filter(communicate).enumerate();
        let gpus =
            jobs.flat_map(|(job, one)| one.allocation.gpus.iter().map(move |&gpu| (gpu, job)));
        Some(gpus.collect())
    }

    /// Returns the same placements in the indices of `reading`. They are judged
    /// less often than the node is read: when a GPU is lost in between, a job must
    /// not be shown with the GPU that took over the index. Returns `None` if the
    /// allocations came from the source itself: they belong to an older reading.
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
            imex: self.imex.clone(),
            health: self.health.clone(),
            on: now,
        }))
    }
}

/// Outcome of the query for the allocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Why it failed.
    pub error: Option<String>,
    /// How long it took.
    pub duration: Duration,
}

/// One container's GPUs, judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    pub allocation: Allocation,
    /// Further GPUs that it holds and that do not answer now.
    pub lost: Vec<LostGpu>,
    /// Model of the GPUs that answer; absent if they differ or do not report one.
    pub model: Option<String>,
    /// Class of the slowest path between two of the GPUs that answer; absent if a path is unknown,
    /// and for one GPU.
    pub path: Option<PathClass>,
    /// The class that the pod got from the webhook; absent if it got none, and if the Kubernetes
    /// API is not known.
    pub class: Option<String>,
    /// The project that the webhook found for the pod; absent as for `class`.
    pub project: Option<String>,
    /// The gang of the pod, as the queue or the annotation names it; absent as for `class`.
    pub gang: Option<String>,
    /// Assumed communication pattern of the job.
    pub pattern: Pattern,
    /// Where the pattern comes from.
    pub pattern_from: PatternFrom,
    /// Number of NVLink domains that the GPUs belong to; a GPU outside all domains
    /// counts as one. Absent if NVLink is unknown, and if no GPU answers.
    pub domains: Option<usize>,
    /// Capacity of the busiest resource when the pattern runs, bytes per second in
    /// one direction; absent if there is no traffic, and if NVLink is unknown.
    pub bottleneck_bytes_per_second: Option<u64>,
    /// Best possible cost on the empty node divided by the cost; absent if it is not known.
    pub quality_node: Option<f64>,
    /// Best possible cost among the GPUs that were free when the pod started,
    /// divided by the cost; absent if those GPUs are not known.
    pub quality_free: Option<f64>,
}

impl Judged {
    /// Returns the same GPUs by their indices `now`; those without an index are lost.
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

/// Where the communication pattern of a job comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum PatternFrom {
    /// The webhook's annotation `decision`.
    Decision,
    /// Nothing specifies it: the most common pattern is assumed.
    Default,
}

impl PatternFrom {
    /// Returns the word used in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
