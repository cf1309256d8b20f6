//! The planner of whoever asks: the same as that of the queue's leader, fed once.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use nvlink_planner::{
    Availability, Class, Deadline, Estimate, Held, Job, Member, Millis, Name, NodeState, OnTimeout,
    Planner, PodState, Round, Seat,
};
use nvlink_topology::{Graph, Interconnect};

use super::{
    node::Node,
    state::{End, Pod, State, id},
};
use crate::{
    crd::domain_class::OnQueueTimeout,
    decide::Settings,
    queue::{self, Life, Past, assemble},
};

/// The planner, and what it says now.
pub(super) struct Queue {
    pub(super) planner: Planner,
    pub(super) round: Round,
}

impl Queue {
    pub(super) fn new(state: &State<'_>, settings: &Settings, past: &Past) -> Self {
        let mut planner = Planner::new(nvlink_planner::Settings::default());
        for (name, class) in &state.classes {
            let Ok(class) = class else { continue };
            let queue = class.queue.as_ref();
            let waiting_factor = queue.and_then(|queue| queue.waiting_cost_percent);
            let settings = Class {
                max_gpus_per_project: queue.and_then(|queue| queue.max_gpus_per_project),
                broken: class.broken_gpus,
                waiting_factor: waiting_factor.map(|percent| f64::from(percent) / 100.0),
            };
            planner.class(&Name::from(name.as_str()), Some(settings));
        }
        for (name, node) in &state.nodes {
            planner.node(&Name::from(name.as_str()), Some(node.state(settings)));
        }
        let mut gangs: BTreeMap<Name, Vec<&Pod<'_>>> = BTreeMap::new();
        for (id, pod) in &state.pods {
            let job = pod.job();
            if let Some(held) = pod.state(job.clone(), state.now) {
                planner.pod(id, Some(held));
            }
            if pod.member.is_some() && pod.life.is_live() {
                gangs.entry(job).or_default().push(pod);
            }
        }
        for (name, pods) in gangs {
            planner.job(&name, waiting(&pods, state, past));
        }
        let round = planner.round(state.now);
        Self { planner, round }
    }
}

impl Node {
    fn state(&self, settings: &Settings) -> NodeState {
        let label = |key: &str| self.labels.get(key).map(|value| Name::from(value.as_str()));
        let known = self.known();
        let graph = known.and_then(|known| known.hardware.graph());
        let broken = known.into_iter().flat_map(|known| &known.gpus);
        let broken = broken.filter(|gpu| !gpu.faults.is_empty());
        let mut domains = known.into_iter().flat_map(|known| &known.domains);
        let held = self.held.iter().filter(|held| !held.indices.is_empty());
        NodeState {
            graph: graph.map(|graph: &Graph| Arc::new(graph.clone())),
            capacity: self.capacity,
            held: held
                .map(|held| Held {
                    pod: (!held.unknown).then(|| held.pod.clone()),
                    gpus: held.indices.clone(),
                })
                .collect(),
            broken: broken.map(|gpu| gpu.index).collect(),
            availability: match (self.out, self.unreadable()) {
                (true, _) => Availability::Out,
                (false, Some(_)) => Availability::Silent,
                (false, None) => Availability::Ready,
            },
            interconnect: known
                .and_then(|known| known.interconnect)
                .unwrap_or(Interconnect::Pcie),
            fabric: domains.find_map(|domain| domain.fabric.clone()),
            rack: label(&settings.rack_label),
            zone: label(&settings.zone_label),
            network_bytes_per_second: None,
            slow: 0,
            sets: self
                .classes
                .iter()
                .map(|class| Name::from(class.as_str()))
                .collect(),
            resources: Vec::new(),
        }
    }
}

impl Pod<'_> {
    /// Returns the id of its job: its gang, or the pod itself.
    pub(super) fn job(&self) -> Name {
        let gang = self.member.as_ref().and_then(|member| member.gang.as_ref());
        // A name of a pod has no space.
        gang.map_or_else(
            || id(&self.namespace, &self.name),
            |gang| id(&self.namespace, &gang.name),
        )
    }

    /// Returns what it holds; `None` if it holds nothing.
    fn state(&self, job: Name, now: Millis) -> Option<PodState> {
        let placement = self.placement();
        let placed = placement.as_ref();
        let planned = placed.and_then(|placed| placed.get("node")?.as_str());
        let bound = self.life.node();
        let node = match self.life {
            Life::Released => planned?,
            _ => bound?,
        };
        let gpus = placed.and_then(|placed| placed.get("gpus")?.as_array());
        let gpus = gpus.into_iter().flatten().filter_map(|gpu| gpu.as_u64());
        let class = self.class().map(Name::from);
        Some(PodState {
            node: Name::from(node),
            gpus: Some(self.gpus).filter(|&gpus| gpus > 0)?,
            planned: gpus.filter_map(|gpu| u32::try_from(gpu).ok()).collect(),
            bound: bound.is_some(),
            since: self.created.unwrap_or(now),
            end: self.end.map(End::estimate),
            job: class.is_some().then_some(job),
            class,
            project: Name::from(self.project.as_str()),
            priority: self.priority,
            resources: Vec::new(),
        })
    }
}

impl End {
    fn estimate(self) -> Estimate {
        Estimate {
            mean: self.likely,
            spread: self.latest.saturating_sub(self.likely),
        }
    }
}

/// Returns the job of these live pods, if some of them wait.
fn waiting(pods: &[&Pod<'_>], state: &State<'_>, past: &Past) -> Option<Job> {
    let live: Vec<(&Pod<'_>, &queue::Member)> = pods
        .iter()
        .filter_map(|pod| Some((*pod, pod.member.as_ref()?)))
        .collect();
    let waits: Vec<(&Pod<'_>, &queue::Member)> = live
        .iter()
        .filter(|(pod, _)| matches!(pod.life, Life::Waiting { .. }))
        .copied()
        .collect();
    let (_, first) = waits.first()?;
    let members: Vec<&queue::Member> = live.iter().map(|(_, member)| *member).collect();
    let gang = first.gang.as_ref();
    let whole = assemble(&members);
    let created = waits.iter().filter_map(|(pod, _)| pod.created).min();
    let created = created.unwrap_or(state.now);
    let queue = state
        .class(&first.class)
        .and_then(|class| class.queue.as_ref());
    let now = Timestamp::from_millisecond(state.now).unwrap_or(Timestamp::UNIX_EPOCH);
    let runs = first.limits.estimate(past.spread(&first.key()), now);
    let millis = |span: Duration| Millis::try_from(span.as_millis()).unwrap_or(Millis::MAX);
    Some(Job {
        class: Name::from(first.class.as_str()),
        project: Name::from(first.project.as_str()),
        priority: first.priority,
        created,
        members: waits
            .iter()
            .map(|(pod, member)| seatless(pod, member))
            .collect(),
        complete: gang.is_none() || whole.missing == Some(0),
        pattern: first.pattern,
        scope: first.scope,
        within: Vec::new(),
        duration: runs.map(|runs| Estimate {
            mean: millis(runs.likely),
            spread: millis(runs.longest.saturating_sub(runs.likely)),
        }),
        deadline: first.timeout.map(|timeout| Deadline {
            at: created.saturating_add(millis(timeout)),
            then: match queue.map(|queue| queue.on_timeout) {
                Some(OnQueueTimeout::Spread) => OnTimeout::Spread,
                _ => OnTimeout::Reject,
            },
        }),
        seats: seats(&live),
        released: created,
    })
}

fn seatless(pod: &Pod<'_>, member: &queue::Member) -> Member {
    let gang = member.gang.as_ref();
    Member {
        pod: id(&pod.namespace, &pod.name),
        gpus: member.gpus,
        rank: gang.and_then(|gang| gang.rank),
        role: gang
            .filter(|gang| !gang.role.is_empty())
            .map(|gang| Name::from(gang.role.as_str())),
        resources: Vec::new(),
    }
}

/// Returns the seats of the members of a gang that were released.
fn seats(live: &[(&Pod<'_>, &queue::Member)]) -> Vec<Seat> {
    let released = live
        .iter()
        .filter(|(pod, _)| !matches!(pod.life, Life::Waiting { .. }));
    let seat = |(pod, _): &(&Pod<'_>, &queue::Member)| {
        let placement = pod.placement()?;
        let text = |key: &str| placement.get(key)?.as_str().map(Name::from);
        let gpus = placement.get("gpus").and_then(|gpus| gpus.as_array());
        let gpus = gpus.into_iter().flatten().filter_map(|gpu| gpu.as_u64());
        let rank = placement.get("rank").and_then(|rank| rank.as_u64());
        Some(Seat {
            pod: id(&pod.namespace, &pod.name),
            rank: u32::try_from(rank.unwrap_or(0)).unwrap_or(0),
            node: text("node"),
            gpus: gpus.filter_map(|gpu| u32::try_from(gpu).ok()).collect(),
            domain: text("domain"),
        })
    };
    released.filter_map(seat).collect()
}
