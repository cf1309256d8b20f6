//! Domains that may span nodes, and the number of GPUs that a class has in each.

use std::collections::{BTreeMap, HashMap};

/// The domains of a class's nodes, indexed by size.
#[derive(Clone, Debug, Default)]
pub(super) struct Domains {
    /// Domains by id; each has at least one node.
    by_id: HashMap<String, Domain>,
    /// The number of domains of each size in GPUs.
    totals: BTreeMap<u64, usize>,
    /// The number of nodes with each number of GPUs in their domain.
    nodes: BTreeMap<u32, usize>,
    /// The number of domains of each size that span several nodes.
    fabrics: BTreeMap<u64, usize>,
    /// The number of nodes that are in no single domain as a whole.
    split: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Domain {
    nodes: usize,
    gpus: u64,
}

/// The room for a gang on a class's nodes when nobody uses them. The largest domains are 0 if no
/// node is in a single domain as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GangRoom {
    /// The most GPUs of one domain on one node.
    pub node: u32,
    /// The most GPUs of one domain on all of its nodes.
    pub domain: u64,
    /// The most GPUs of one domain that spans several nodes.
    pub fabric: u64,
    /// Whether some domain spans several nodes.
    pub shared: bool,
    /// The number of pods that all nodes can hold; `None` if some node is in no single domain as a
    /// whole, since it does not say how many GPUs it has.
    pub pods: Option<u64>,
}

impl GangRoom {
    /// Returns the room of nodes for pods of so many GPUs: of each node the domain that all of it is
    /// in and the number of its GPUs, `None` where it is in several.
    pub fn of<'a>(nodes: impl Iterator<Item = Option<(&'a str, u32)>>, gpus: u32) -> Self {
        let mut domains = Domains::default();
        nodes.for_each(|node| domains.add(node));
        domains.room(gpus)
    }
}

impl Domains {
    pub(super) fn add(&mut self, part: Option<(&str, u32)>) {
        let Some((id, gpus)) = part else {
            self.split += 1;
            return;
        };
        let domain = self.by_id.entry(id.to_owned()).or_default();
        if domain.nodes > 0 {
            take(&mut self.totals, domain.gpus);
        }
        if domain.nodes > 1 {
            take(&mut self.fabrics, domain.gpus);
        }
        domain.nodes += 1;
        domain.gpus += u64::from(gpus);
        if domain.nodes > 1 {
            *self.fabrics.entry(domain.gpus).or_default() += 1;
        }
        *self.totals.entry(domain.gpus).or_default() += 1;
        *self.nodes.entry(gpus).or_default() += 1;
    }

    /// Undoes [`Self::add`].
    pub(super) fn remove(&mut self, part: Option<(&str, u32)>) {
        let Some((id, gpus)) = part else {
            self.split -= 1;
            return;
        };
        let Some(domain) = self.by_id.get_mut(id) else {
            return;
        };
        take(&mut self.nodes, gpus);
        take(&mut self.totals, domain.gpus);
        if domain.nodes > 1 {
            take(&mut self.fabrics, domain.gpus);
        }
        domain.nodes -= 1;
        domain.gpus -= u64::from(gpus);
        if domain.nodes > 1 {
            *self.fabrics.entry(domain.gpus).or_default() += 1;
        }
        if domain.nodes == 0 {
            self.by_id.remove(id);
        } else {
            *self.totals.entry(domain.gpus).or_default() += 1;
        }
    }

    /// Returns the room for pods of so many GPUs.
    pub(super) fn room(&self, gpus: u32) -> GangRoom {
        let each = |(&of, &nodes): (&u32, &usize)| u64::from(of / gpus.max(1)) * nodes as u64;
        let node = self.nodes.last_key_value().map_or(0, |(&gpus, _)| gpus);
        let domain = self.totals.last_key_value().map_or(0, |(&gpus, _)| gpus);
        let fabric = self.fabrics.last_key_value().map_or(0, |(&gpus, _)| gpus);
        GangRoom {
            node,
            domain,
            fabric,
            shared: fabric > 0,
            pods: (self.split == 0).then(|| self.nodes.iter().map(each).sum()),
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
