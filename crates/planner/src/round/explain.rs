//! Explains why one job waits.

use nvlink_topology::GpuSet;

use crate::{
    Action, Explanation, Holder, Name, Round,
    cluster::Cluster,
    profile::Owner,
    queue::Queue,
    round::{Reserved, job::seats, rejoin::seated, target::Target},
};

/// Explains why a job waits, from the round that says so; `None` if it does not wait.
pub(crate) fn explain(
    cluster: &Cluster,
    queue: &Queue,
    job: &Name,
    round: Round,
    reserved: &[Reserved],
) -> Option<Explanation> {
    let waiting = round.waiting.into_iter().find(|one| one.job == *job)?;
    let entry = queue.get(job)?;
    let at = reserved.iter().position(|one| one.job == *job);
    let Some((at, target)) = at.map(|at| (at, &reserved[at].target)) else {
        return Some(Explanation {
            waiting,
            seats: Vec::new(),
            holders: Vec::new(),
            before: Vec::new(),
        });
    };
    let started = round.actions.iter().filter_map(|action| match action {
        Action::Release(release) => Some(release),
        Action::Reject(_) | Action::GiveBack(_) => None,
    });
    let started = started.filter(|release| {
        release.seats.iter().any(|seat| {
            let node = seat.node.as_ref().and_then(|node| cluster.number_of(node));
            let node = node.and_then(|number| Some((number, cluster.node(number)?)));
            node.is_some_and(|(number, node)| {
                !planned(target, number)
                    .intersection(node.positions(&seat.gpus))
                    .is_empty()
            })
        })
    });
    let mut before: Vec<Name> = started.map(|release| release.job.clone()).collect();
    let earlier = reserved[..at].iter().filter(|other| {
        let parts = &other.target.parts;
        other.target.start < target.start
            && parts.iter().any(|part| {
                let set = part.found.set;
                !planned(target, part.node).intersection(set).is_empty()
            })
    });
    before.extend(earlier.map(|other| other.job.clone()));
    Some(Explanation {
        waiting,
        seats: seats(cluster, &seated(cluster, entry), target),
        holders: holders(cluster, target, entry.job.priority),
        before,
    })
}

/// Returns the GPUs of a node that a target has.
fn planned(target: &Target, node: u32) -> GpuSet {
    let parts = target.parts.iter().filter(|part| part.node == node);
    parts.fold(GpuSet::EMPTY, |set, part| set.union(part.found.set))
}

fn holders(cluster: &Cluster, target: &Target, priority: i32) -> Vec<Holder> {
    let mut holders = Vec::new();
    for part in &target.parts {
        let Some(node) = cluster.node(part.node) else {
            continue;
        };
        for interval in node.profile.intervals() {
            let Owner::Pod(id) = &interval.owner else {
                continue;
            };
            let shared = interval.set.intersection(part.found.set);
            let Some(pod) = cluster.pod(id).filter(|_| !shared.is_empty()) else {
                continue;
            };
            let holder = Holder {
                pod: id.clone(),
                node: node.name.clone(),
                gpus: node.indices(shared.iter()),
                project: pod.project.clone(),
                end: pod.end,
                lower_priority: pod.priority < priority,
            };
            holders.push((interval.until, holder));
        }
    }
    holders.sort_by(|(a, one), (b, other)| (a, &one.pod).cmp(&(b, &other.pod)));
    holders.into_iter().map(|(_, holder)| holder).collect()
}
