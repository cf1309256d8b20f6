//! XIDs, which the driver reports as events.

use std::{collections::BTreeMap, sync::Arc};

use nvml_wrapper::Device;

use super::{
    error::{Trouble, is_gpu, is_library, is_unknown},
    failures::{Answer, Failures, Told, detail},
    raw::{self, Event, EventSet, Loaded},
};

/// The maximum number of events of a GPU in one reading. The others are left for the
/// next one.
const MOST: usize = 4096;

/// XIDs with their counts, by UUID of the GPU.
pub(super) type Xids = BTreeMap<String, BTreeMap<u64, u64>>;

/// The event sets, by the address of the GPU.
///
/// Each GPU has its own set: a GPU that is lost or cannot be watched breaks the set
/// that it is in.
#[derive(Debug, Default)]
pub(super) struct Events(BTreeMap<usize, Watched>);

#[derive(Debug)]
struct Watched {
    uuid: String,
    /// `None` if the driver does not support events.
    set: Option<EventSet>,
}

impl Events {
    /// Starts to watch the GPU `uuid`, once. Returns whether its XIDs are available.
    ///
    /// # Errors
    /// When the GPU or the library is lost.
    pub(super) fn watch(
        &mut self,
        library: &Arc<Loaded>,
        device: &Device<'_>,
        uuid: &str,
        failures: &mut Failures,
    ) -> Result<bool, Trouble> {
        if let Some(watched) = self.0.get(&raw::address(device)) {
            return Ok(watched.set.is_some());
        }
        let created = failures.ask(detail("nvmlEventSetCreate"), EventSet::new(library))?;
        let set = match created {
            Answer::Given(set) => {
                let call = detail("nvmlDeviceRegisterEvents");
                match failures.ask(call, set.watch_xids(device))? {
                    Answer::Given(()) => Some(set),
                    Answer::Unknown => None,
                    Answer::Failed => return Ok(false),
                }
            }
            Answer::Unknown => None,
            Answer::Failed => return Ok(false),
        };
        let registered = set.is_some();
        let uuid = uuid.to_owned();
        self.0.insert(raw::address(device), Watched { uuid, set });
        Ok(registered)
    }

    /// Counts the events since the last call. Does not wait.
    ///
    /// # Errors
    /// When the library is lost.
    pub(super) fn drain(&self, xids: &mut Xids, told: &mut Told) -> Result<(), Trouble> {
        for watched in self.0.values() {
            let Some(set) = &watched.set else { continue };
            for _ in 0..MOST {
                match set.next() {
                    Ok(Some(Event::Xid { device, xid })) => match self.owner(device, watched) {
                        Some(uuid) => {
                            let count = xids.entry(uuid.to_owned()).or_default();
                            let count = count.entry(xid).or_default();
                            *count = count.saturating_add(1);
                        }
                        None => told.warnings.push(format!(
                            "XID {xid} of a GPU that is not watched: not counted"
                        )),
                    },
                    Ok(Some(Event::Other)) => {}
                    Ok(None) => break,
                    Err(error) if is_library(&error) => return Err(Trouble::Library(error)),
                    // The next reading of a lost GPU reports it.
                    Err(error) if is_gpu(&error) || is_unknown(&error) => break,
                    Err(error) => {
                        let uuid = &watched.uuid;
                        let warning = format!("{uuid}: waiting for XIDs failed: {error}");
                        told.warnings.push(warning);
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the GPU of an event from the set of `watched`. This is the GPU that
    /// the event names, if any: some libraries deliver all events to any set.
    fn owner<'a>(&'a self, device: Option<usize>, watched: &'a Watched) -> Option<&'a str> {
        let named = match device {
            Some(device) => self.0.get(&device)?,
            None => watched,
        };
        Some(&named.uuid)
    }
}
