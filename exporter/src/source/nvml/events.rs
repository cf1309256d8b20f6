//! XIDs, which the driver tells as events.

use std::{collections::BTreeMap, sync::Arc};

use nvml_wrapper::{Device, error::NvmlError};

use super::{
    error::{Trouble, known},
    raw::{self, EventSet, Loaded},
};

/// More events than this are left for the next reading.
const MOST: usize = 4096;

/// XIDs by UUID of the GPU, each with how often it came.
pub(super) type Xids = BTreeMap<String, BTreeMap<u64, u64>>;

/// The events that are waited for.
#[derive(Debug)]
pub(super) struct Events {
    /// `None` where the driver has no events.
    set: Option<EventSet>,
    watched: BTreeMap<usize, Watched>,
}

#[derive(Debug)]
struct Watched {
    uuid: String,
    registered: bool,
}

impl Events {
    /// Of no GPU yet.
    pub(super) fn new(library: &Arc<Loaded>) -> Self {
        Self {
            set: EventSet::new(library).ok(),
            watched: BTreeMap::new(),
        }
    }

    /// Watches the GPU `uuid`, once. Tells whether its XIDs can be known.
    ///
    /// # Errors
    /// When the GPU or the library is lost.
    pub(super) fn watch(
        &mut self,
        library: &Arc<Loaded>,
        device: &Device<'_>,
        uuid: &str,
    ) -> Result<bool, Trouble> {
        if let Some(watched) = self.watched.get(&raw::address(device)) {
            return Ok(watched.registered);
        }
        let Some(set) = &self.set else {
            return Ok(false);
        };
        let result = set.watch_xids(device);
        if matches!(result, Err(NvmlError::Unknown)) {
            // By its documentation the set is of no use after this: a new one,
            // to which the other GPUs are added when they come by again.
            self.set = EventSet::new(library).ok();
            self.watched.retain(|_, one| !one.registered);
        }
        let registered = known(result)?.is_some();
        let watched = Watched {
            uuid: uuid.to_owned(),
            registered,
        };
        self.watched.insert(raw::address(device), watched);
        Ok(registered)
    }

    /// Counts what has come since the last time. Does not wait.
    ///
    /// # Errors
    /// When the library is lost.
    pub(super) fn drain(&self, xids: &mut Xids) -> Result<(), Trouble> {
        let Some(set) = &self.set else { return Ok(()) };
        if !self.watched.values().any(|one| one.registered) {
            return Ok(());
        }
        for _ in 0..MOST {
            let (device, xid) = match known(set.next()) {
                Ok(Some(Some(event))) => event,
                // That a GPU is lost is found when it is read.
                Ok(_) | Err(Trouble::Gpu(_)) => break,
                Err(error) => return Err(error),
            };
            if let (Some(xid), Some(gpu)) = (xid, self.watched.get(&device)) {
                let counts = xids.entry(gpu.uuid.clone()).or_default();
                let count = counts.entry(xid).or_default();
                *count = count.saturating_add(1);
            }
        }
        Ok(())
    }
}
