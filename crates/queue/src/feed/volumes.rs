//! On which nodes the volumes of a waiting pod allow it to run, by the rules of the scheduler's plugin
//! VolumeBinding. Pure.
//!
//! What a node has left for new volumes (CSIStorageCapacity, limits of attachments) is not seen, nor
//! that several claims of a pod share one volume that is left: the scheduler refuses the node then.

use std::collections::{BTreeSet, HashMap, HashSet};

use nvlink_api::pod;
use nvlink_cluster::volumes::{StorageClass, Volume, VolumeClaim};
use nvlink_planner::Name;
use serde_json::{Value, json};

use super::{Feed, demand::Demand, entry::Entry, id, neighbours::matches};

/// The most volumes that are compared with nodes for one claim. Of more, the nodes are not narrowed.
const MOST: usize = 256;

/// The volumes of the cluster, and which waiting pods use them.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    claims: HashMap<Name, VolumeClaim>,
    volumes: HashMap<String, Volume>,
    classes: HashMap<String, StorageClass>,
    /// The claims that name each volume.
    bound: HashMap<String, BTreeSet<Name>>,
    /// The waiting pods of each claim.
    users: HashMap<Name, BTreeSet<Name>>,
    /// The waiting pods for which it is to be found out anew on which nodes they can run.
    stale: BTreeSet<Name>,
}

/// What the volumes of a pod need.
#[derive(Debug, Default)]
pub(super) struct Reach {
    /// For each claim that narrows the nodes, terms of a node selector.
    pub(super) terms: Vec<Vec<Value>>,
    /// The first claim that has no volume, and gets none with its pod.
    pub(super) unbound: Option<Name>,
}

/// Returns the PersistentVolumeClaims of a pod.
pub(super) fn claims(of: &Value) -> Vec<Name> {
    let [namespace, pod] = ["namespace", "name"].map(|key| pod::text(of, &["metadata", key]));
    let volumes = pod::list(of, &["spec", "volumes"]);
    let claims = volumes.filter_map(|volume| {
        if volume.get("ephemeral").is_some() {
            let name = pod::text(volume, &["name"]);
            return Some(id(namespace, &format!("{pod}-{name}")));
        }
        let name = volume.get("persistentVolumeClaim")?.get("claimName")?;
        Some(id(namespace, name.as_str()?))
    });
    claims.collect()
}

impl Volumes {
    /// Returns what these claims need. One that is not known needs nothing: it may not be seen.
    pub(super) fn reach(&self, claims: &[Name]) -> Reach {
        let mut reach = Reach::default();
        for name in claims {
            let Some(claim) = self.claims.get(name) else {
                continue;
            };
            let terms = self.terms(name, claim);
            let none = terms.as_ref().is_some_and(Vec::is_empty);
            if claim.volume.is_none() && (none || !self.waits(claim)) {
                reach.unbound.get_or_insert_with(|| name.clone());
            }
            reach.terms.extend(terms);
        }
        reach
            .terms
            .sort_by_cached_key(|terms| json!(terms).to_string());
        reach.terms.dedup();
        reach
    }

    /// Reports whether a claim without a volume gets one for the node of its pod. One whose StorageClass does
    /// not exist does not: somebody binds it by hand. Where no class is known, they may not be seen.
    fn waits(&self, claim: &VolumeClaim) -> bool {
        match self.classes.get(&claim.class) {
            Some(class) => class.waits,
            None => self.classes.is_empty() && !claim.class.is_empty(),
        }
    }

    /// Returns the terms of a node selector that a claim adds.
    fn terms(&self, name: &Name, claim: &VolumeClaim) -> Option<Vec<Value>> {
        if let Some(volume) = &claim.volume {
            return self.volumes.get(volume)?.terms.clone();
        }
        if let Some(node) = &claim.node {
            let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
            return Some(vec![json!({"matchFields": [field]})]);
        }
        let class = self.classes.get(&claim.class)?;
        let made = match class.makes {
            true => class.terms.clone()?,
            false => Vec::new(),
        };
        let selector = claim.selector.as_ref();
        let suits = |volume: &&Volume| {
            volume.suits(name, claim) && selector.is_none_or(|one| matches(one, &volume.labels))
        };
        let mut terms = BTreeSet::new();
        for volume in self.volumes.values().filter(suits) {
            terms.extend(volume.terms.as_ref()?.iter().map(ToString::to_string));
        }
        if terms.len() > MOST {
            return None;
        }
        let found = terms
            .iter()
            .filter_map(|term| serde_json::from_str(term).ok());
        Some(made.into_iter().chain(found).collect())
    }

    /// Reports whether it is known on which nodes all pods can run.
    pub(super) fn is_settled(&self) -> bool {
        self.stale.is_empty()
    }

    /// Adds the pod that uses these claims.
    pub(super) fn join(&mut self, pod: &Name, claims: &[Name]) {
        for claim in claims {
            self.users
                .entry(claim.clone())
                .or_default()
                .insert(pod.clone());
        }
    }

    /// Removes the pod from these claims.
    pub(super) fn leave(&mut self, pod: &Name, claims: &[Name]) {
        for claim in claims {
            if let Some(users) = self.users.get_mut(claim) {
                users.remove(pod);
                if users.is_empty() {
                    self.users.remove(claim);
                }
            }
        }
    }

    /// Returns the pods that use those of `ids` which `differ`.
    fn users<'a>(
        &'a self,
        ids: impl Iterator<Item = &'a Name>,
        differ: impl Fn(&Name, &VolumeClaim) -> bool,
    ) -> BTreeSet<Name> {
        let differ = |id: &&Name| {
            let claim = self.claims.get(*id);
            claim.is_some_and(|claim| differ(id, claim))
        };
        let used = ids.filter(differ).filter_map(|id| self.users.get(id));
        used.flatten().cloned().collect()
    }

    /// Sets a claim, or removes it, and returns whether that changes something.
    fn set_claim(&mut self, id: &Name, claim: Option<VolumeClaim>) -> bool {
        let named = |claim: &Option<VolumeClaim>| claim.as_ref()?.volume.clone();
        let volume = named(&claim);
        let before = match claim.clone() {
            Some(claim) => self.claims.insert(id.clone(), claim),
            None => self.claims.remove(id),
        };
        if before == claim {
            return false;
        }
        if let Some(volume) = named(&before)
            && let Some(ids) = self.bound.get_mut(&volume)
        {
            ids.remove(id);
            if ids.is_empty() {
                self.bound.remove(&volume);
            }
        }
        if let Some(volume) = volume {
            self.bound.entry(volume).or_default().insert(id.clone());
        }
        true
    }

    /// Sets a volume, or removes it, and returns the pods for which that changes something.
    fn set_volume(&mut self, name: &str, volume: Option<Volume>) -> BTreeSet<Name> {
        let before = match volume.clone() {
            Some(volume) => self.volumes.insert(name.to_owned(), volume),
            None => self.volumes.remove(name),
        };
        if before == volume {
            return BTreeSet::new();
        }
        let changed = [before, volume];
        let changed = || changed.iter().flatten();
        let users = self.users(self.bound.get(name).into_iter().flatten(), |_, _| true);
        let suits = |id: &Name, claim: &VolumeClaim| {
            claim.volume.is_none() && changed().any(|volume| volume.suits(id, claim))
        };
        // Most volumes are made for one claim.
        let others = match changed().all(|volume| volume.claim.is_some()) {
            true => self.users(changed().filter_map(|volume| volume.claim.as_ref()), suits),
            false => self.users(self.users.keys(), suits),
        };
        users.into_iter().chain(others).collect()
    }
}

impl Feed {
    /// Sets a PersistentVolumeClaim, or removes it.
    pub fn volume_claim(&mut self, id: &Name, claim: Option<VolumeClaim>) {
        if self.volumes.set_claim(id, claim) {
            let users = self.volumes.users.get(id).into_iter().flatten();
            self.volumes.stale.extend(users.cloned());
        }
    }

    /// Sets a PersistentVolume, or removes it.
    pub fn volume(&mut self, name: &str, volume: Option<Volume>) {
        let users = self.volumes.set_volume(name, volume);
        self.volumes.stale.extend(users);
    }

    /// Sets a StorageClass, or removes it.
    pub fn storage_class(&mut self, name: &str, class: Option<StorageClass>) {
        let none = self.volumes.classes.is_empty();
        let before = match class.clone() {
            Some(class) => self.volumes.classes.insert(name.to_owned(), class),
            None => self.volumes.classes.remove(name),
        };
        if before != class {
            // With the first class, all that are not known do not exist.
            let all = none != self.volumes.classes.is_empty();
            let used = self.volumes.users.keys();
            let users = self
                .volumes
                .users(used, |_, claim| all || claim.class == name);
            self.volumes.stale.extend(users);
        }
    }

    /// Removes all PersistentVolumeClaims but these.
    pub fn retain_volume_claims(&mut self, wanted: &HashSet<Name>) {
        let gone = self
            .volumes
            .claims
            .keys()
            .filter(|id| !wanted.contains(*id));
        let gone: Vec<Name> = gone.cloned().collect();
        gone.iter().for_each(|id| self.volume_claim(id, None));
    }

    /// Removes all PersistentVolumes but these.
    pub fn retain_volumes(&mut self, wanted: &HashSet<String>) {
        let gone = self
            .volumes
            .volumes
            .keys()
            .filter(|name| !wanted.contains(*name));
        let gone: Vec<String> = gone.cloned().collect();
        gone.iter().for_each(|name| self.volume(name, None));
    }

    /// Removes all StorageClasses but these.
    pub fn retain_storage_classes(&mut self, wanted: &HashSet<String>) {
        let gone = self
            .volumes
            .classes
            .keys()
            .filter(|name| !wanted.contains(*name));
        let gone: Vec<String> = gone.cloned().collect();
        gone.iter().for_each(|name| self.storage_class(name, None));
    }

    /// Finds out anew on which nodes pods can run whose volumes have changed: once, however often they did.
    pub(super) fn redemand(&mut self) {
        for id in std::mem::take(&mut self.volumes.stale) {
            let Some(mut entry) = self.pods.remove(&id) else {
                continue;
            };
            // It may have been released since.
            let waits = entry.demand.is_some();
            if let Some(pod) = entry.document().filter(|_| waits) {
                self.demands.leave(entry.demand.as_ref());
                self.set_demand(&mut entry, Demand::of(&pod));
                self.demands.join(entry.demand.as_ref());
                self.changed.jobs.extend(entry.job.clone());
            }
            self.pods.insert(id, entry);
        }
    }

    /// Records what a waiting pod demands of its node.
    pub(super) fn set_demand(&mut self, entry: &mut Entry, demand: Demand) {
        let reach = self.volumes.reach(&entry.claims);
        let demand = self.bounded(demand.reaching(reach.terms));
        entry.unbound = reach.unbound;
        entry.ties.clone_from(&demand.ties);
        entry.demand = Some(self.demand(demand));
    }
}
