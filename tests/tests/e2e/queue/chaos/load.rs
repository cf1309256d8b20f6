//! Many small jobs and gangs in random order, which start, run and end as if there were kubelets.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use nvlink_tests::ControlPlane;
use serde_json::Value;

use super::{
    ledger::{Ledger, Seen},
    stage::{BRIEF, pod},
    team::Team,
};

/// So many pods wait at any time.
const WAITING: usize = 12;
const TICK: Duration = Duration::from_millis(100);

/// What happens besides jobs that come and go.
#[derive(Clone, Debug, Default)]
pub(super) struct Orders {
    /// No more jobs come.
    pub(super) closed: bool,
    /// How often a pod is deleted, in so many of a thousand ticks.
    pub(super) deletions: u64,
    /// Somebody changes all waiting pods all the time.
    pub(super) noise: bool,
    /// Nodes that are gone, and the pods on them with them.
    pub(super) lost: BTreeSet<String>,
}

/// The orders, which a test changes while the load runs.
#[derive(Debug, Default)]
pub(super) struct Desk(Mutex<(Orders, bool)>);

impl Desk {
    fn lock(&self) -> MutexGuard<'_, (Orders, bool)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.lock().0);
    }

    /// Ends the load and the noise.
    pub(super) fn end(&self) {
        self.lock().1 = true;
    }

    fn orders(&self) -> Option<Orders> {
        let state = self.lock();
        (!state.1).then(|| state.0.clone())
    }
}

/// Random numbers that are the same in each run.
struct Random(u64);

impl Random {
    /// Returns a number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// What came of the load.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) pods: usize,
    pub(super) gangs: usize,
    pub(super) deleted: usize,
    /// The longest time in which some pods of a gang were released and others waited.
    pub(super) partial: Duration,
}

/// The load. It knows only what the ledger shows.
pub(super) struct Load<'a> {
    team: Team,
    ledger: &'a Ledger,
    random: Random,
    /// The pods that it created, by their names.
    made: BTreeMap<String, Value>,
    /// The names of those that are not seen yet, and the UIDs of those that
    /// were deleted or ended, and of those that were started.
    unseen: BTreeSet<String>,
    over: BTreeSet<String>,
    started: BTreeSet<String>,
    /// The gangs that ran as a whole.
    whole: BTreeSet<String>,
    /// When pods end, by their UIDs.
    ends: BTreeMap<String, Instant>,
    sizes: BTreeMap<String, usize>,
    partial: BTreeMap<String, Instant>,
    outcome: Outcome,
}

impl<'a> Load<'a> {
    pub(super) fn new(plane: &ControlPlane, ledger: &'a Ledger, seed: u64) -> Self {
        Self {
            team: Team::new(plane),
            ledger,
            random: Random(seed),
            made: BTreeMap::new(),
            unseen: BTreeSet::new(),
            over: BTreeSet::new(),
            started: BTreeSet::new(),
            whole: BTreeSet::new(),
            ends: BTreeMap::new(),
            sizes: BTreeMap::new(),
            partial: BTreeMap::new(),
            outcome: Outcome::default(),
        }
    }

    /// Runs until the desk ends it.
    pub(super) fn run(mut self, desk: &Desk) -> Outcome {
        while let Some(orders) = desk.orders() {
            let pods = self.ledger.pods();
            for pod in pods.iter().filter(|pod| !self.over.contains(&pod.uid)) {
                self.unseen.remove(&pod.name);
            }
            let mut live: Vec<&Seen> = pods
                .iter()
                .filter(|pod| !pod.has_ended() && !self.over.contains(&pod.uid))
                .collect();
            self.note_partial(&live);
            self.bury(&live, &orders.lost);
            // Another pod may have the name of one that was deleted just now.
            live.retain(|pod| !self.over.contains(&pod.uid));
            self.go_on(&live);
            if !orders.closed {
                self.fill(&live);
            }
            if self.random.below(1_000) < orders.deletions {
                self.delete_any(&live);
            }
            thread::sleep(TICK);
        }
        self.outcome
    }

    /// Starts pods that are bound, and ends those whose time has come: a gang when all its pods
    /// run.
    fn go_on(&mut self, live: &[&Seen]) {
        let now = Instant::now();
        for pod in live.iter().filter(|pod| pod.node.is_some()) {
            // The ledger may lag behind: a pod that has ended must not run again.
            if self.started.insert(pod.uid.clone()) {
                self.team.set_phase(&pod.name, "Running");
            }
            if let Some(gang) = &pod.gang {
                let bound = |one: &&&Seen| one.gang.as_ref() == Some(gang) && one.node.is_some();
                if live.iter().filter(bound).count() == self.sizes[gang] {
                    self.whole.insert(gang.clone());
                }
                if !self.whole.contains(gang) {
                    continue;
                }
            }
            let length = Duration::from_millis(300 + self.random.below(2_000));
            let end = *self.ends.entry(pod.uid.clone()).or_insert(now + length);
            if end <= now {
                self.team.set_phase(&pod.name, "Succeeded");
                self.over.insert(pod.uid.clone());
            }
        }
    }

    /// Creates jobs until enough pods wait.
    fn fill(&mut self, live: &[&Seen]) {
        let waiting = live.iter().filter(|pod| pod.waits()).count();
        let mut waiting = waiting + self.unseen.len();
        while waiting < WAITING {
            let number = self.made.len();
            let gpus = [1, 2, 2, 4, 8][self.random.below(5) as usize];
            match self.random.below(10) {
                0..3 => {
                    let (gang, size) =
                        (format!("gang-{number}"), 2 + self.random.below(3) as usize);
                    self.outcome.gangs += 1;
                    self.sizes.insert(gang.clone(), size);
                    // Two of the three nodes can hold it.
                    let gpus = gpus.min(if size == 2 { 8 } else { 4 });
                    for member in 0..size {
                        let name = format!("{gang}-{member}");
                        self.create(pod(&name, gpus, Some((&gang, size)), None));
                    }
                    waiting += size;
                }
                kind => {
                    let class = (kind == 9).then_some(BRIEF);
                    self.create(pod(&format!("job-{number}"), gpus, None, class));
                    waiting += 1;
                }
            }
        }
    }

    fn create(&mut self, pod: Value) {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        self.team.create(&pod);
        self.unseen.insert(name.clone());
        self.made.insert(name, pod);
        self.outcome.pods += 1;
    }

    /// Deletes a pod. Its controller creates it again, if it is one of a gang.
    fn delete_any(&mut self, live: &[&Seen]) {
        let may = |pod: &&&Seen| {
            let gang = pod.gang.as_ref();
            self.made.contains_key(&pod.name)
                && !self.ends.contains_key(&pod.uid)
                && gang.is_none_or(|gang| !self.whole.contains(gang))
        };
        let candidates: Vec<&Seen> = live.iter().filter(may).copied().collect();
        if candidates.is_empty() {
            return;
        }
        let chosen = self.random.below(candidates.len() as u64) as usize;
        self.delete(candidates[chosen]);
    }

    fn delete(&mut self, pod: &Seen) {
        self.team.delete(&pod.name);
        self.over.insert(pod.uid.clone());
        self.outcome.deleted += 1;
        // A job of one pod may be created again under its name, too. Some pods of a gang that was
        // whole may have ended.
        let again = match &pod.gang {
            Some(gang) => !self.whole.contains(gang),
            None => self.random.below(2) == 0,
        };
        if let Some(object) = self.made.get(&pod.name).cloned().filter(|_| again) {
            self.create(object);
        }
    }

    /// Deletes the pods of nodes that are gone, as the garbage collector of pods does.
    fn bury(&mut self, live: &[&Seen], lost: &BTreeSet<String>) {
        for pod in live {
            if pod.node.as_ref().is_some_and(|node| lost.contains(node)) {
                self.delete(pod);
            }
        }
    }

    fn note_partial(&mut self, live: &[&Seen]) {
        let mut gangs: BTreeMap<&String, (bool, bool)> = BTreeMap::new();
        for pod in live {
            if let Some(gang) = &pod.gang {
                let (waits, released) = gangs.entry(gang).or_default();
                *waits |= pod.waits();
                *released |= !pod.waits();
            }
        }
        self.partial
            .retain(|gang, _| gangs.get(gang) == Some(&(true, true)));
        for (gang, _) in gangs.into_iter().filter(|(_, it)| *it == (true, true)) {
            let since = self.partial.entry(gang.clone());
            let since = *since.or_insert_with(Instant::now);
            self.outcome.partial = self.outcome.partial.max(since.elapsed());
        }
    }
}

/// Changes all waiting pods again and again, while it is ordered to.
pub(super) fn disturb(team: &Team, ledger: &Ledger, desk: &Desk) {
    let mut count = 0;
    while let Some(orders) = desk.orders() {
        if !orders.noise {
            thread::sleep(TICK);
            continue;
        }
        for pod in ledger.pods().iter().filter(|pod| pod.waits()) {
            count += 1;
            team.disturb(&pod.name, count);
        }
    }
}
