//! The GPUs of a node that DRA lists.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    Holder, Holding, Name, Node,
    dra::{Claim, User},
};

/// The GPUs of a node, by UUID.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OnNode {
    /// Those that the scheduler may allocate, or has.
    pub usable: BTreeSet<String>,
    /// Those that claims hold, by the pod that uses the claim, if there is one.
    pub(super) held: BTreeMap<Option<User>, BTreeSet<String>>,
    /// Those that pods look at through claims with admin access.
    pub(super) looked_at: BTreeMap<User, BTreeSet<String>>,
    /// The sets of which a claim must have exactly one; `None` if it may have any GPUs.
    pub(super) partitions: Option<Vec<BTreeSet<String>>>,
    /// PCIe root and PCI address of each GPU whose root is known, by UUID.
    pub(super) roots: BTreeMap<String, (String, Option<String>)>,
}

impl OnNode {
    /// Adds what a claim holds and looks at, with the UUIDs of the devices of the node.
    pub(super) fn add(&mut self, claim: &Claim, uuids: &HashMap<(&str, &str), &str>) {
        let gpus = |names: &[(String, String)]| -> BTreeSet<String> {
            let uuid = |(pool, device): &(String, String)| {
                let uuid = uuids.get(&(pool.as_str(), device.as_str()))?;
                Some((*uuid).to_owned())
            };
            names.iter().filter_map(uuid).collect()
        };
        let (held, looked_at) = (gpus(&claim.holds), gpus(&claim.looks));
        let users: Vec<Option<User>> = match claim.users.is_empty() {
            true => vec![None],
            false => claim.users.iter().cloned().map(Some).collect(),
        };
        for user in users {
            if let (Some(user), false) = (&user, looked_at.is_empty()) {
                let known = self.looked_at.entry(user.clone()).or_default();
                known.extend(looked_at.iter().cloned());
            }
            let known = self.held.entry(user).or_default();
            known.extend(held.iter().cloned());
        }
    }

    /// Returns the GPUs that a pod looks at and that it holds by no claim.
    pub(super) fn only_looked_at(&self, pod: &Name, uid: Option<&str>) -> BTreeSet<&str> {
        let mut all = BTreeSet::new();
        for (user, looked_at) in &self.looked_at {
            if user.pod == *pod && uid.is_none_or(|uid| user.uid == uid) {
                let held = self.held.get(&Some(user.clone()));
                let held = |uuid: &&String| held.is_some_and(|held| held.contains(*uuid));
                all.extend(looked_at.iter().filter(|uuid| !held(uuid)).map(|it| &**it));
            }
        }
        all
    }

    /// Reports whether the scheduler can allocate a GPU that no pod holds for which `counts` says
    /// so. One that is held for no pod is about to be free.
    #[must_use]
    pub fn is_free(&self, uuid: &str, counts: &impl Fn(&User) -> bool) -> bool {
        let users = self.held.iter().filter(|(_, held)| held.contains(uuid));
        let held = users.filter_map(|(user, _)| user.as_ref()).any(counts);
        self.usable.contains(uuid) && !held
    }

    /// Returns who holds the GPUs of a node: the users of claims.
    pub(super) fn holders(&self, known: &Node) -> impl Iterator<Item = Holder> {
        self.held.iter().map(|(user, uuids)| Holder {
            pod: user.as_ref().map(|user| Holding {
                id: user.pod.clone(),
                uid: Some(user.uid.clone()),
            }),
            gpus: indices(known, uuids),
        })
    }

    /// Returns the GPUs of a node that the scheduler does not allocate and that no claim holds.
    pub(super) fn out(&self, known: &Node) -> Vec<u32> {
        let usable = |uuid: &String| {
            let mut held = self.held.values();
            self.usable.contains(uuid) || held.any(|held| held.contains(uuid))
        };
        let gpus = known.gpus.iter();
        let out = gpus.filter(|gpu| !gpu.uuid.as_ref().is_some_and(usable));
        out.map(|gpu| gpu.index).collect()
    }
}

impl OnNode {
    /// Reports whether a claim gets its GPUs only if they are exactly one partition.
    #[must_use]
    pub fn is_divided(&self) -> bool {
        self.partitions.is_some()
    }

    /// Returns the partitions of a node with this topology, by the indices of their GPUs.
    #[must_use]
    pub fn partitions(&self, known: &Node) -> Option<Vec<Vec<u32>>> {
        let sets = self.partitions.as_ref()?.iter();
        let known = sets.map(|uuids| (uuids.len(), indices(known, uuids)));
        let whole = known.filter(|(size, gpus)| gpus.len() == *size);
        Some(whole.map(|(_, gpus)| gpus).collect())
    }
}

/// Returns the indices of the GPUs with these UUIDs.
fn indices(known: &Node, uuids: &BTreeSet<String>) -> Vec<u32> {
    let gpus = known.gpus.iter();
    let named = gpus.filter(|gpu| gpu.uuid.as_ref().is_some_and(|it| uuids.contains(it)));
    named.map(|gpu| gpu.index).collect()
}
