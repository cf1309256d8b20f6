//! IMEX channels: which gangs get them, and which nodes have one to give.

use std::collections::BTreeSet;

use nvlink_planner::{Name, Release};
use nvlink_topology::Fabric;

use super::{Feed, amounts::Amounts, entry::Entry, node::Node};
use crate::channel;

impl Feed {
    /// Returns the name of the ComputeDomain for the pods of a release; `None` if they get no channels:
    /// they name no claims for them, or their gang is on one node, or in several fabrics. A pod that
    /// takes the place of another one gets that of its gang.
    #[must_use]
    pub fn compute_domain(&self, release: &Release) -> Option<String> {
        let pods = release.seats.iter().map(|seat| self.pods.get(&seat.pod));
        let pods: Vec<_> = pods.collect::<Option<_>>()?;
        if !pods.iter().all(|pod| pod.channel) {
            return None;
        }
        let mates = self
            .pods_of(&release.job)
            .filter_map(|pod| self.pods.get(pod));
        let mates = mates.filter(|pod| pod.is_released());
        let mates: Vec<_> = mates.filter_map(|pod| pod.placement.as_ref()).collect();
        let new = release.seats.iter().map(|seat| seat.node.as_deref());
        let old = mates.iter().map(|place| place.node.as_deref());
        let nodes: BTreeSet<&str> = new.chain(old).collect::<Option<_>>()?;
        if nodes.len() < 2 || !self.share_fabric(&nodes) {
            return None;
        }
        match mates.first() {
            Some(mate) => mate.compute_domain.clone(),
            None => {
                let uids = pods.iter().map(|pod| &*pod.uid);
                Some(channel::domain_name(&self.gang_of(release)?, uids))
            }
        }
    }

    /// Returns the name of the gang of a release.
    fn gang_of(&self, release: &Release) -> Option<String> {
        let pod = &release.seats.first()?.pod;
        Some(self.member(pod)?.gang.as_ref()?.name.clone())
    }

    fn share_fabric(&self, nodes: &BTreeSet<&str>) -> bool {
        let of = |node: &&str| {
            let known = self.gpus.known(node)?;
            known.domains.iter().find_map(|one| one.fabric.as_ref())
        };
        let fabrics: Option<BTreeSet<&Fabric>> = nodes.iter().map(of).collect();
        fabrics.is_some_and(|fabrics| fabrics.len() == 1)
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
    /// node as long as that is so.
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
