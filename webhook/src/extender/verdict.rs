//! Whether a node can hold a pod, and at what cost. Pure.

use std::sync::Arc;

use nvlink_admission::decide::affinity::domain_size;
use nvlink_cluster::{
    gpus::{
        Node, Published,
        hardware::{Hardware, Job},
    },
    mirror::{Pod, occupancy::Occupancy},
};
use nvlink_topology::{
    BrokenGpus, GpuSet, Graph, NoPlacement, Scope, memo::Found, multi_node::Harm,
};

use super::job::of_one_pod;

/// What is known of a node.
#[derive(Debug)]
pub struct Seen {
    pub published: Arc<Published>,
    pub occupancy: Occupancy,
}

/// Whether a node can hold a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Too little is known: the node passes, with the lowest score.
    Unknown,
    Fits(Fit),
    /// It cannot, for this reason. kube-scheduler counts nodes with equal reasons and joins
    /// different ones by commas, so a reason names no node and has no comma.
    Fails(String),
}

/// How well a node holds a pod; less is better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// Number of GPUs that are marked as broken.
    pub broken: usize,
    /// Time of the busiest resource, seconds per byte of payload.
    pub cost: f64,
    /// Time of all transfers one after the other, seconds per byte of payload.
    pub total: f64,
    /// The least cost of the pod on the empty node.
    pub least: f64,
    /// [`nvlink_topology::Placement::is_at_full_speed`].
    pub at_full_speed: bool,
    /// Whether the node measures below its siblings.
    pub slow: bool,
    pub harm: Harm,
}

/// The GPUs of a node, as the search needs them.
struct Gpus<'a> {
    graph: &'a Graph,
    hardware: &'a Hardware,
    free: GpuSet,
    broken: GpuSet,
}

/// Judges a node. It fails only if `nvlink_topology::place` finds no placement for the job
/// on its free GPUs.
///
/// Of pods whose GPUs are not reported yet, it assumes that they get the best ones. Where
/// an answer would need a search that `may_search` does not allow, it counts.
pub fn judge(job: &Job, seen: &Seen, may_search: &mut dyn FnMut() -> bool) -> Verdict {
    let Ok(node) = seen.published.as_ref() else {
        return Verdict::Unknown;
    };
    let Some(graph) = node.hardware.graph() else {
        return Verdict::Unknown;
    };
    let set = |gpus: &[u32]| graph.set(gpus).unwrap_or_default();
    let broken = node.gpus.iter().filter(|gpu| !gpu.faults.is_empty());
    let broken: Vec<u32> = broken.map(|gpu| gpu.index).collect();
    let mut gpus = Gpus {
        graph,
        hardware: &node.hardware,
        free: graph.all(),
        broken: set(&broken),
    };
    let Some(free) = &seen.occupancy.free else {
        // It is only known what even the empty node cannot hold.
        return gpus.lacks(job).map_or(Verdict::Unknown, Verdict::Fails);
    };
    gpus.free = set(free);
    for pod in &seen.occupancy.unreported {
        let Some(taken) = gpus.expected(pod, may_search) else {
            return Verdict::Unknown;
        };
        gpus.free = gpus.free.difference(taken);
    }
    if let Some(reason) = gpus.lacks(job) {
        return Verdict::Fails(reason);
    }
    match gpus.hardware.place(job, gpus.free, gpus.broken, may_search) {
        Some(Ok(found)) => Verdict::Fits(gpus.fit(node, &found)),
        Some(Err(reason)) => gpus.refused(job, &reason),
        None => Verdict::Unknown,
    }
}

impl Gpus<'_> {
    /// Returns the GPUs that a pod will get; `None` if it is not known.
    fn expected(&self, pod: &Pod, may_search: &mut dyn FnMut() -> bool) -> Option<GpuSet> {
        let gpus = usize::try_from(pod.gpus).unwrap_or(usize::MAX);
        if gpus >= self.free.len() {
            return Some(self.free);
        }
        let job = |scope| Job {
            gpus,
            pattern: of_one_pod(pod.pattern.unwrap_or_default(), gpus),
            scope,
            broken_gpus: BrokenGpus::Last,
        };
        let wanted = job(pod.scope.unwrap_or_default());
        // It is bound: if its scope has no room, it gets GPUs elsewhere on the node.
        for job in [wanted, job(Scope::Node)] {
            let placed = self
                .hardware
                .place(&job, self.free, self.broken, &mut *may_search);
            if let Ok(found) = placed? {
                return Some(found.set);
            }
        }
        Some(self.free.iter().take(gpus).collect())
    }

    /// Returns why the job has no room, by counting.
    fn lacks(&self, job: &Job) -> Option<String> {
        let asked = job.gpus;
        let healthy = self.free.difference(self.broken);
        let avoids = job.broken_gpus == BrokenGpus::Avoid;
        if !demands_domain(job) {
            // Whether enough GPUs are free at all is the scheduler's own question.
            let (free, healthy) = (self.free.len(), healthy.len());
            let lacks = avoids && free >= asked && healthy < asked;
            return lacks.then(|| format!("only {healthy} of its free GPUs are healthy"));
        }
        let all = self.most(self.graph.all());
        let free = self.most(self.free);
        let healthy = self.most(healthy);
        if all < asked {
            Some(format!("no NVLink domain has {asked} GPUs (at most {all})"))
        } else if free < asked {
            Some(format!(
                "no NVLink domain has {asked} free GPUs (at most {free})"
            ))
        } else if avoids && healthy < asked {
            Some(format!(
                "no NVLink domain has {asked} free healthy GPUs (at most {healthy})"
            ))
        } else {
            None
        }
    }

    /// Returns the largest number of GPUs of `set` in one domain.
    fn most(&self, set: GpuSet) -> usize {
        let domains = self.graph.domains();
        let sizes = domains.map(|(_, domain)| domain.intersection(set).len());
        sizes.max().unwrap_or(0)
    }

    fn refused(&self, job: &Job, reason: &NoPlacement) -> Verdict {
        match reason {
            NoPlacement::OffNvlink { asked, pattern } => Verdict::Fails(format!(
                "no {asked} free GPUs of one NVLink domain have the links for {pattern}"
            )),
            NoPlacement::NotFound { asked, pattern } => Verdict::Fails(format!(
                "no {asked} free GPUs of one NVLink domain were found that have the links for {pattern}"
            )),
            // The scheduler counted enough free GPUs, and no domain is demanded.
            _ if !demands_domain(job) => Verdict::Unknown,
            reason => Verdict::Fails(reason.to_string().replace(", ", "; ")),
        }
    }

    fn fit(&self, node: &Node, found: &Found) -> Fit {
        let interconnect = node
            .interconnect
            .unwrap_or(nvlink_topology::Interconnect::Pcie);
        Fit {
            broken: found.set.intersection(self.broken).len(),
            cost: found.cost,
            total: found.total_cost,
            least: found.least(),
            at_full_speed: found.full_speed,
            slow: node.slow.is_some(),
            harm: Harm::of(self.graph, interconnect, self.free, found.set),
        }
    }
}

/// Reports whether the job's GPUs must share a domain.
fn demands_domain(job: &Job) -> bool {
    let gpus = u32::try_from(job.gpus).unwrap_or(u32::MAX);
    domain_size(job.scope, gpus).is_some()
}
