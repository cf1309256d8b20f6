//! Room in memory that peers share.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use nvlink_runtime::connections::Peer;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Room is handed out in units of so many bytes.
pub(super) const UNIT: usize = 1 << 10;

pub(super) fn units(bytes: usize) -> Option<u32> {
    u32::try_from(bytes.div_ceil(UNIT)).ok()
}

/// Room of which one peer gets half at most, so that it never keeps out another.
#[derive(Debug)]
pub(super) struct Shared {
    all: Semaphore,
    /// What is left of a peer's half.
    halves: Mutex<BTreeMap<Option<Peer>, Weak<Semaphore>>>,
    half: usize,
}

/// A part of the room, until it is dropped.
#[derive(Debug)]
pub(super) struct Part<'a> {
    _of_half: OwnedSemaphorePermit,
    _of_all: SemaphorePermit<'a>,
}

impl Shared {
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            all: Semaphore::new(bytes / UNIT),
            halves: Mutex::default(),
            half: bytes / UNIT / 2,
        }
    }

    /// Waits until there is room for so many units of `peer`'s.
    pub(super) async fn take(
        &self,
        peer: Option<Peer>,
        units: u32,
    ) -> Result<Part<'_>, AcquireError> {
        Ok(Part {
            _of_half: self.half(peer).acquire_many_owned(units).await?,
            _of_all: self.all.acquire_many(units).await?,
        })
    }

    fn half(&self, peer: Option<Peer>) -> Arc<Semaphore> {
        let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(half) = halves.get(&peer).and_then(Weak::upgrade) {
            return half;
        }
        // Of peers that have nothing here nothing is kept.
        halves.retain(|_, half| half.strong_count() > 0);
        let half = Arc::new(Semaphore::new(self.half));
        halves.insert(peer, Arc::downgrade(&half));
        half
    }
}
