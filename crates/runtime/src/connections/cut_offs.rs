//! Clients that a server has cut off: counted, and logged in one line a minute.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::places::Peer;

/// At most one line is logged in this time.
const TELL: Duration = Duration::from_secs(60);

/// Why a client lost its connection or did not get its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutOff {
    /// It was idle, and another client needed its place.
    Idle,
    /// There was no place for it.
    Full,
    /// There was no room in memory for its response.
    Memory,
    /// It did not read its response in time.
    Slow,
}

impl CutOff {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::Idle, Self::Full, Self::Memory, Self::Slow];

    /// Returns the word used in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Full => "full",
            Self::Memory => "memory",
            Self::Slow => "slow",
        }
    }
}

/// The number of clients cut off since the start.
#[derive(Clone, Debug, Default)]
pub struct CutOffs(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    counts: [AtomicU64; CutOff::ALL.len()],
    told: Mutex<Option<(Instant, u64)>>,
}

impl CutOffs {
    /// Returns the number of clients for each reason.
    #[must_use]
    pub fn counts(&self) -> [(CutOff, u64); 4] {
        CutOff::ALL.map(|why| (why, self.0.counts[why as usize].load(Ordering::Relaxed)))
    }

    pub(super) fn add(&self, why: CutOff, peer: Peer) {
        self.0.counts[why as usize].fetch_add(1, Ordering::Relaxed);
        let all: u64 = self.counts().iter().map(|(_, count)| count).sum();
        let mut told = self.0.told.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let before = match *told {
            Some((at, _)) if now.duration_since(at) < TELL => return,
            Some((_, before)) => before,
            None => 0,
        };
        *told = Some((now, all));
        tracing::warn!(
            %peer,
            reason = why.as_str(),
            times = all - before,
            "clients were cut off: they held connections or responses without using them, or there were too many clients"
        );
    }
}
