//! Domains that span nodes, and how many GPUs a class has in each.

use std::collections::{BTreeMap, HashMap};

/// The domains of a class's nodes, with the largest always at hand.
#[derive(Debug, Default)]
pub(super) struct Domains {
    /// GPUs by domain; none has 0 nodes.
    by_id: HashMap<String, Domain>,
    /// Sizes of domains, and how many there are of each.
    totals: BTreeMap<u64, usize>,
    /// GPUs that nodes bring, and how many nodes bring as many.
    nodes: BTreeMap<u32, usize>,
    /// Domains of several nodes.
    shared: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Domain {
    nodes: usize,
    gpus: u64,
}

/// The largest domains of a class's nodes; 0 where no node lies in one as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GangRoom {
    /// Most GPUs of one domain on one node.
    pub node: u32,
    /// Most GPUs of one domain, on all of its nodes.
    pub domain: u64,
    /// Some domain has several nodes.
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

    /// Takes back what [`Self::add`] did.
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

/// Takes one `key` out of a sorted multiset.
fn take<K: Ord>(set: &mut BTreeMap<K, usize>, key: K) {
    if let Some(count) = set.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            set.remove(&key);
        }
    }
}
