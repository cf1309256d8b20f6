//! Other GPUs for a pod that was released and cannot get those that were planned for it.

use nvlink_topology::Pattern;

use crate::{Millis, Name, Planner, search::Ask};

impl Planner {
    /// Returns the best GPUs for `pod`, in rank order, on the node to which it was released: out of
    /// those that nobody else holds, and that are not `without`. GPUs that are planned for other
    /// released pods are held by these. `None` if there are not enough.
    ///
    /// The pod cannot go to another node any more, so its scope counts no more either.
    pub fn other_gpus(
        &mut self,
        pod: &Name,
        pattern: Pattern,
        without: &[u32],
        now: Millis,
    ) -> Option<Vec<u32>> {
        let state = self.cluster.pod(pod)?;
        let (name, gpus) = (state.node.clone(), state.gpus);
        let class = state.class.as_ref().and_then(|name| self.classes.get(name));
        let ask = Ask {
            gpus,
            pattern: if gpus == 1 { Pattern::None } else { pattern },
            scope: nvlink_topology::Scope::Node,
            broken: class.map(|class| class.broken).unwrap_or_default(),
        };
        let changed = self.cluster.refresh(now, &mut self.search);
        self.kinds.update(&self.cluster, &mut self.search, &changed);
        self.gangs.update(&self.cluster, &mut self.search, &changed);
        let node = self.cluster.node(self.cluster.number_of(&name)?)?;
        let free = self.cluster.view(node).free_but_for(pod);
        let free = free.difference(node.positions(without));
        let found = self.search.find(&node.case(free), ask)?;
        let seat = node.seat(pod, 0, &found.order);
        (seat.gpus.len() == gpus as usize).then_some(seat.gpus)
    }
}
