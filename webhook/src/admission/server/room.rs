//! Room in memory that peers share.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use nvlink_runtime::connections::Peer;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// The unit in which room is allocated, in bytes.
pub(super) const UNIT: usize = 1 << 10;

pub(crate) fn units(bytes: usize) -> Option<u32> {
    u32::try_from(bytes.div_ceil(UNIT)).ok()
}

/// Room of which one peer gets at most half, so that it never keeps others out.
#[derive(Debug)]
pub(crate) struct Shared {
    all: Semaphore,
    /// The free part of each peer's half.
    halves: Mutex<BTreeMap<Option<Peer>, Weak<Semaphore>>>,
    half: usize,
}

/// A part of the room, held until it is dropped.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    _of_half: OwnedSemaphorePermit,
    _of_all: SemaphorePermit<'a>,
}

impl Shared {
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            all: Semaphore::new(bytes / UNIT),
            halves: Mutex::default(),
            half: bytes / UNIT / 2,
        }
    }

    /// Waits until there is room for `units` of `peer`.
    pub(crate) async fn take(
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
        // Forget peers that hold nothing.
        halves.retain(|_, half| half.strong_count() > 0);
        let half = Arc::new(Semaphore::new(self.half));
        halves.insert(peer, Arc::downgrade(&half));
        half
    }
}
