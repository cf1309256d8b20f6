//! Domains that may span nodes, and the number of GPUs that a class has in each.

use std::collections::{BTreeMap, HashMap};

/// The domains of a class's nodes, indexed by size.
#[derive(Debug, Default)]
pub(super) struct Domains {
    /// Domains by id; each has at least one node.
    by_id: HashMap<String, Domain>,
    /// The number of domains of each size in GPUs.
    totals: BTreeMap<u64, usize>,
    /// The number of nodes with each number of GPUs in their domain.
    nodes: BTreeMap<u32, usize>,
    /// The number of domains that span several nodes.
    shared: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Domain {
    nodes: usize,
    gpus: u64,
}

/// The largest domains of a class's nodes; 0 if no node is in a single domain as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GangRoom {
    /// The most GPUs of one domain on one node.
    pub node: u32,
    /// The most GPUs of one domain on all of its nodes.
    pub domain: u64,
    /// Whether some domain spans several nodes.
    pub shared: bool,
}

impl Domains {
    pub(super) fn add(&mut self, part: Option<(&str, u32)>) {
        let Some((id, gpus)) = part else { return };
        let domain = self.by_id.entry(id.to_owned()).or_default();
        if domain.nodes > 0 {
            take(&mut self.totals, domain.gpus);
        }
        domain.nodes += 1;
        self.shared += usize::from(domain.nodes == 2);
        domain.gpus += u64::from(gpus);
        *self.totals.entry(domain.gpus).or_default() += 1;
        *self.nodes.entry(gpus).or_default() += 1;
    }

    /// Undoes [`Self::add`].
    pub(super) fn remove(&mut self, part: Option<(&str, u32)>) {
        let Some((id, gpus)) = part else { return };
        let Some(domain) = self.by_id.get_mut(id) else {
            return;
        };
        take(&mut self.nodes, gpus);
        take(&mut self.totals, domain.gpus);
        self.shared -= usize::from(domain.nodes == 2);
        domain.nodes -= 1;
        domain.gpus -= u64::from(gpus);
        if domain.nodes == 0 {
            self.by_id.remove(id);
        } else {
            *self.totals.entry(domain.gpus).or_default() += 1;
        }
    }

    pub(super) fn room(&self) -> GangRoom {
        let node = self.nodes.last_key_value().map_or(0, |(&gpus, _)| gpus);
        let domain = self.totals.last_key_value().map_or(0, |(&gpus, _)| gpus);
        let shared = self.shared > 0;
        GangRoom {
            node,
            domain,
            shared,
        }
    }
}

/// Removes one `key` from a sorted multiset.
fn take<K: Ord>(set: &mut BTreeMap<K, usize>, key: K) {
    if let Some(count) = set.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            set.remove(&key);
        }
    }
}
