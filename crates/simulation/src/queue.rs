//! The planner on the virtual clock.

use std::collections::HashMap;

use nvlink_planner::{
    Action, Availability, Class, Deadline, Job, Member, Millis, Name, NodeState, Planner, PodState,
    Release, Settings, UsualRun,
};
use nvlink_topology::GpuSet;

use crate::{
    cluster::{Cluster, ZONE},
    estimates::Estimates,
    rules::Rules,
    scheduler::{Entry, Scheduler, Seat, Start},
};

/// The one class of the simulation.
const CLASS: &str = "simulation";

/// The planner, fed with what happens.
pub(crate) struct Queue<'a> {
    planner: Planner,
    cluster: &'a Cluster,
    entries: &'a [Entry<'a>],
    rules: &'a Rules,
    class: Name,
    /// The jobs' ids, which sort as the entries do.
    ids: Vec<Name>,
    numbers: HashMap<Name, usize>,
    nodes: HashMap<Name, usize>,
    /// Pods of the jobs that run.
    pods: HashMap<usize, Vec<Name>>,
    estimates: Estimates,
    usual_run: UsualRun,
    wake: Option<Millis>,
    /// The jobs that will never start, and that the clock has not yet got.
    rejected: Vec<usize>,
    timed_out: usize,
}

impl<'a> Queue<'a> {
    pub(crate) fn new(cluster: &'a Cluster, entries: &'a [Entry<'a>], rules: &'a Rules) -> Self {
        let class = Name::from(CLASS);
        let mut planner = Planner::new(Settings {
            // Nobody reads when a job is expected to start.
            depth: 0,
            fair_share: rules.fair_share,
            ..Settings::default()
        });
        planner.class(&class, Some(rules.class.clone()));
        let mut nodes = HashMap::new();
        for (number, node) in cluster.nodes.iter().enumerate() {
            planner.node(&node.name, Some(state(cluster, number, &class)));
            nodes.insert(node.name.clone(), number);
        }
        let width = entries.len().to_string().len();
        let ids = 0..entries.len();
        let ids: Vec<Name> = ids.map(|id| format!("{id:0width$}").into()).collect();
        let numbers = ids.iter().cloned().zip(0..).collect();
        Self {
            planner,
            cluster,
            entries,
            rules,
            class,
            ids,
            numbers,
            nodes,
            pods: HashMap::new(),
            estimates: Estimates::default(),
            usual_run: UsualRun::default(),
            wake: None,
            rejected: Vec::new(),
            timed_out: 0,
        }
    }

    fn reject(&mut self, job: &Name) {
        self.planner.job(job, None);
        self.rejected.extend(self.numbers.get(job));
    }

    /// Carries out a release.
    fn release(&mut self, release: &Release, now: Millis) -> Option<Start> {
        let entry = *self.numbers.get(&release.job)?;
        let job = self.entries[entry].job;
        self.planner.released(release, now);
        let mut seats = Vec::new();
        let mut pods = Vec::new();
        for seat in &release.seats {
            let name = seat.node.clone()?;
            let node = *self.nodes.get(&name)?;
            let gpus = self.cluster.graph(node).set(&seat.gpus).ok()?;
            seats.push(Seat { node, gpus });
            let end = self.estimates.of(job).map(|mut estimate| {
                estimate.mean += now;
                estimate
            });
            let state = PodState {
                node: name,
                gpus: gpus_of(gpus),
                planned: seat.gpus.clone(),
                bound: true,
                since: now,
                end,
                job: Some(release.job.clone()),
                class: Some(self.class.clone()),
                project: job.project.clone(),
                priority: job.priority,
                resources: Vec::new(),
            };
            self.planner.pod(&seat.pod, Some(state));
            pods.push(seat.pod.clone());
        }
        self.pods.insert(entry, pods);
        Some(Start { entry, seats })
    }
}

fn gpus_of(gpus: GpuSet) -> u32 {
    u32::try_from(gpus.len()).unwrap_or(u32::MAX)
}

/// Returns what the planner knows of a node.
fn state(cluster: &Cluster, number: usize, class: &Name) -> NodeState {
    let node = &cluster.nodes[number];
    let kind = &cluster.kinds[node.kind];
    NodeState {
        graph: Some(kind.graph.clone()),
        capacity: gpus_of(kind.graph.all()),
        held: Vec::new(),
        broken: Vec::new(),
        partitions: None,
        availability: Availability::Ready,
        interconnect: kind.interconnect,
        fabric: node.fabric.clone(),
        rack: None,
        network: Vec::new(),
        zone: Some(ZONE.into()),
        network_bytes_per_second: kind.network,
        slow: 0,
        sets: vec![class.clone()],
        resources: Vec::new(),
    }
}

impl Scheduler for Queue<'_> {
    fn arrive(&mut self, number: usize) {
        let entry = &self.entries[number];
        let Entry { job, demand } = entry;
        // Admission refuses what no quota holds.
        if self
            .rules
            .class
            .max_gpus_per_project
            .is_some_and(|most| job.gpus > most)
        {
            return self.rejected.push(number);
        }
        let member = |rank| Member {
            pod: format!("{}.{rank}", self.ids[number]).into(),
            gpus: demand.gpus,
            rank: Some(rank),
            role: None,
            resources: Vec::new(),
        };
        let waiting = Job {
            class: self.class.clone(),
            project: job.project.clone(),
            priority: job.priority,
            created: job.time,
            members: (0..demand.pods).map(member).collect(),
            complete: true,
            pattern: job.pattern,
            scope: self.rules.scope,
            gang_scope: self.rules.gang_scope,
            within: Vec::new(),
            duration: self.estimates.of(job),
            deadline: self.rules.timeout.map(|(timeout, then)| Deadline {
                at: job.time.saturating_add(timeout),
                then,
            }),
            seats: Vec::new(),
            released: 0,
        };
        self.planner.job(&self.ids[number], Some(waiting));
    }

    fn end(&mut self, number: usize, ran: Millis) {
        for pod in self.pods.remove(&number).into_iter().flatten() {
            self.planner.pod(&pod, None);
        }
        self.planner.job(&self.ids[number], None);
        let job = self.entries[number].job;
        self.estimates.ended(job, ran);
        let before = self.usual_run.get();
        self.usual_run.add(ran, job.gpus);
        let usual_run = self.usual_run.get();
        if usual_run != before {
            let class = Class {
                usual_run,
                ..self.rules.class.clone()
            };
            self.planner.class(&self.class, Some(class));
        }
    }

    fn round(&mut self, now: Millis) -> Vec<Start> {
        let round = self.planner.round(now);
        self.wake = round.wake;
        let mut starts = Vec::new();
        for action in &round.actions {
            match action {
                Action::Release(release) => starts.extend(self.release(release, now)),
                // The planner rejects nothing before its deadline.
                Action::Reject(reject) => {
                    self.timed_out += 1;
                    self.reject(&reject.job);
                }
                Action::GiveBack(_) => {}
            }
        }
        for waiting in &round.waiting {
            // Its users would give up.
            if waiting.reason.is_never() {
                self.reject(&waiting.job);
            }
        }
        starts
    }

    fn rejected(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.rejected)
    }

    fn timed_out(&self) -> usize {
        self.timed_out
    }

    fn wake(&self) -> Option<Millis> {
        self.wake
    }
}
