//! IMEX channels: which gangs get them, and which nodes have one to give.

use std::collections::BTreeSet;

use nvlink_planner::{Name, Release};
use nvlink_topology::Fabric;

use super::{Feed, amounts::Amounts, entry::Entry, node::Node};
use crate::{Placement, channel};

/// Why a pod does not join its gang.
const APART: &str = "its gang has IMEX channels in one NVLink fabric, and no node of that fabric has room for the pod: free one, or start the gang anew";

impl Feed {
    /// Returns the name of the ComputeDomain for the pods of a release; `None` if they get no channels:
    /// they name no claims for them, or their gang is on one node, or in several fabrics. A pod that
    /// takes the place of another one gets that of its gang.
    ///
    /// # Errors
    /// When the gang has channels, and a pod that joins it goes where it has none: it must not start.
    pub fn compute_domain(&self, release: &Release) -> Result<Option<String>, &'static str> {
        let pods = release.seats.iter().map(|seat| self.pods.get(&seat.pod));
        let Some(pods) = pods.collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        if !pods.iter().all(|pod| pod.channel) {
            return Ok(None);
        }
        let mates = self
            .pods_of(&release.job)
            .filter_map(|pod| self.pods.get(pod));
        let mates = mates.filter(|pod| pod.is_released());
        let mates: Vec<&Placement> = mates.filter_map(|pod| pod.placement.as_ref()).collect();
        let new = release.seats.iter().map(|seat| seat.node.as_deref());
        let new: Option<BTreeSet<&str>> = new.collect();
        if !mates.is_empty() {
            return self.join_domain(new, &mates);
        }
        let together = new.is_some_and(|nodes| nodes.len() > 1 && self.share_fabric(&nodes));
        let uids = pods.iter().map(|pod| &*pod.uid);
        let name = || Some(channel::domain_name(&self.gang_of(release)?, uids));
        Ok(together.then(name).flatten())
    }

    /// Returns the ComputeDomain of a gang, of which these `mates` run, for pods that join it on `new`
    /// nodes.
    fn join_domain(
        &self,
        new: Option<BTreeSet<&str>>,
        mates: &[&Placement],
    ) -> Result<Option<String>, &'static str> {
        let Some(domain) = mates.iter().find_map(|mate| mate.compute_domain.clone()) else {
            return Ok(None);
        };
        let mut nodes = new.ok_or(APART)?;
        let mates = mates.iter().filter_map(|mate| mate.node.as_deref());
        // Of a mate whose node is silent, another one knows the fabric.
        let known = |node: &&str| self.fabric_of(node).is_some();
        nodes.extend(mates.filter(known).take(1));
        match self.share_fabric(&nodes) {
            true => Ok(Some(domain)),
            false => Err(APART),
        }
    }

    /// Returns the name of the gang of a release.
    fn gang_of(&self, release: &Release) -> Option<String> {
        let pod = &release.seats.first()?.pod;
        Some(self.member(pod)?.gang.as_ref()?.name.clone())
    }

    fn share_fabric(&self, nodes: &BTreeSet<&str>) -> bool {
        let fabrics = nodes.iter().map(|node| self.fabric_of(node));
        let fabrics: Option<BTreeSet<&Fabric>> = fabrics.collect();
        fabrics.is_some_and(|fabrics| fabrics.len() == 1)
    }

    fn fabric_of(&self, node: &str) -> Option<&Fabric> {
        let known = self.gpus.known(node)?;
        known.domains.iter().find_map(|one| one.fabric.as_ref())
    }

    /// Returns what a node has: each node of a fabric has one channel. Elsewhere, a pod needs none.
    pub(super) fn amounts(&self, name: &Name, node: &Node) -> Amounts {
        let known = self.gpus.known(name);
        let mut domains = known.into_iter().flat_map(|known| &known.domains);
        let amounts = node.amounts.clone();
        match domains.any(|domain| domain.fabric.is_some()) {
            false => amounts,
            true => amounts.with_channels(1),
        }
    }

    /// Returns the channel of a node that a pod has whose ComputeDomain others made: the driver labels the
    /// node from when it prepares the claim until it takes it back, or until the ComputeDomain is deleted.
    pub(super) fn taken_channel(&self, name: &Name) -> Option<Amounts> {
        let node = self.nodes.get(name)?;
        if !node.labels.contains_key(channel::OF) {
            return None;
        }
        let here = |pod: &Entry| pod.channel && pod.life.node() == Some(&**name);
        let ours = self.pods.values().any(here);
        (!ours).then(|| Amounts::default().with_channels(1))
    }
}
