//! The faults of a simulated node, which can be set while it is read.

use std::{
    collections::BTreeMap,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    Profile, errors,
    fault::{self, BadFaults, Fault},
};

/// The faults, shared by the source and its control endpoint.
#[derive(Debug)]
pub struct Control {
    profile: &'static Profile,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    current: Current,
    events: Events,
}

/// The counts of what happened so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Events {
    /// Count of XIDs, by GPU and XID.
    pub(super) xids: BTreeMap<(u32, u64), u64>,
    /// Count of resets, by GPU.
    pub(super) resets: BTreeMap<u32, u64>,
}

/// The current faults.
#[derive(Clone, Debug, Default)]
pub(super) struct Current {
    pub(super) faults: Vec<Fault>,
    /// Incremented with each change of the faults.
    pub(super) version: u64,
    /// The GPUs whose NVLinks jobs use, and which job; `None`: one job uses all.
    pub(super) used: Option<BTreeMap<u32, usize>>,
}

impl Control {
    pub(crate) fn new(profile: &'static Profile) -> Self {
        let xids = errors::xids(profile).iter();
        let xids = xids.map(|&(gpu, xid, count)| ((gpu, xid), count));
        Self {
            profile,
            state: Mutex::new(State {
                current: Current::default(),
                events: Events {
                    xids: xids.collect(),
                    resets: BTreeMap::new(),
                },
            }),
            changed: Condvar::new(),
        }
    }

    /// Returns the current faults, in the order in which they were given.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        self.lock().current.faults.clone()
    }

    /// Replaces all faults by the JSON list `text`. Faults that are not in it are cleared.
    ///
    /// # Errors
    /// When `text` is not a list of faults of this board. Nothing changes then.
    pub fn replace(&self, text: &[u8]) -> Result<Vec<Fault>, BadFaults> {
        let faults = fault::parse(self.profile, text)?;
        self.set(faults.clone());
        Ok(faults)
    }

    /// Lets only the links of these GPUs carry traffic, of the job with this number; `None`: one job uses all.
    pub fn use_links(&self, of: Option<BTreeMap<u32, usize>>) {
        self.lock().current.used = of;
    }

    pub fn clear(&self) {
        self.set(Vec::new());
    }

    fn set(&self, faults: Vec<Fault>) {
        let mut state = self.lock();
        let mut known = std::mem::take(&mut state.current.faults);
        for fault in &faults {
            match known.iter().position(|one| one == fault) {
                // The fault was set before: an event is not counted again.
                Some(n) => drop(known.swap_remove(n)),
                None => match *fault {
                    Fault::Xid { gpu, xid } => {
                        *state.events.xids.entry((gpu, xid)).or_default() += 1;
                    }
                    Fault::GpuReset { gpu } => {
                        *state.events.resets.entry(gpu).or_default() += 1;
                    }
                    _ => {}
                },
            }
        }
        state.current.faults = faults;
        state.current.version += 1;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits while the node hangs. Returns the faults and events after that, and how long it hung.
    pub(super) fn wait(&self) -> (Current, Events, Duration) {
        let mut state = self.lock();
        let mut hung = Duration::ZERO;
        let start = Instant::now();
        while state.current.faults.contains(&Fault::Hang) {
            let woken = self.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
            hung = start.elapsed();
        }
        (state.current.clone(), state.events.clone(), hung)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
