//! A planner, and a copy of the state that it was fed with.

use std::collections::BTreeMap;

use nvlink_planner::{
    Class, Explanation, Job, Millis, Name, NodeState, Planner, PodState, Release, Round, Settings,
};

/// A planner, and a copy of the state that it was fed with.
#[derive(Default)]
pub(crate) struct Fed {
    planner: Planner,
    pub(crate) settings: Settings,
    pub(crate) classes: BTreeMap<Name, Class>,
    pub(crate) nodes: BTreeMap<Name, NodeState>,
    pub(crate) pods: BTreeMap<Name, PodState>,
    pub(crate) jobs: BTreeMap<Name, Job>,
}

impl Fed {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            planner: Planner::new(settings.clone()),
            settings,
            ..Self::default()
        }
    }

    pub(crate) fn class(&mut self, name: &str, class: Class) {
        self.classes.insert(name.into(), class.clone());
        self.planner.class(&name.into(), Some(class));
    }

    pub(crate) fn node(&mut self, name: &str, node: impl Into<Option<NodeState>>) {
        let node = node.into();
        set(&mut self.nodes, name, node.clone());
        self.planner.node(&name.into(), node);
    }

    pub(crate) fn pod(&mut self, id: &str, pod: impl Into<Option<PodState>>) {
        let pod = pod.into();
        set(&mut self.pods, id, pod.clone());
        self.planner.pod(&id.into(), pod);
    }

    /// Adds a job. Its members get ids that begin with its own.
    pub(crate) fn job(&mut self, id: &str, mut job: Job) {
        for member in &mut job.members {
            member.pod = format!("{id}-{}", member.pod).into();
        }
        self.set_job(id, Some(job));
    }

    pub(crate) fn set_job(&mut self, id: &str, job: Option<Job>) {
        set(&mut self.jobs, id, job.clone());
        self.planner.job(&id.into(), job);
    }

    pub(crate) fn round(&mut self, now: Millis) -> Round {
        self.planner.round(now)
    }

    pub(crate) fn is_settled(&self, now: Millis) -> bool {
        self.planner.is_settled(now)
    }

    pub(crate) fn explain(&mut self, job: &str, now: Millis) -> Option<Explanation> {
        self.planner.explain(&job.into(), now)
    }

    /// Returns a planner that was fed with the same state at once.
    pub(crate) fn fresh(&self) -> Planner {
        let mut planner = Planner::new(self.settings.clone());
        let (jobs, pods) = (self.jobs.iter().rev(), self.pods.iter().rev());
        jobs.for_each(|(id, job)| planner.job(id, Some(job.clone())));
        pods.for_each(|(id, pod)| planner.pod(id, Some(pod.clone())));
        let nodes = self.nodes.iter().rev();
        nodes.for_each(|(name, node)| planner.node(name, Some(node.clone())));
        let classes = self.classes.iter();
        classes.for_each(|(name, class)| planner.class(name, Some(class.clone())));
        planner
    }

    /// Carries out a release: records its pods, and keeps the seats of a gang.
    pub(crate) fn released(&mut self, release: &Release, now: Millis) {
        self.planner.released(release, now);
        let mut job = self.jobs.remove(&release.job).unwrap();
        let own = |pod: &PodState| pod.job.as_ref() == Some(&release.job);
        if !self.pods.values().any(own) {
            job.seats.clear();
        }
        for seat in &release.seats {
            let member = job.members.iter().find(|one| one.pod == seat.pod).unwrap();
            let Some(node) = &seat.node else { continue };
            let end = job.duration.map(|mut duration| {
                duration.mean += now;
                duration
            });
            let pod = PodState {
                node: node.clone(),
                gpus: member.gpus,
                planned: seat.gpus.clone(),
                bound: false,
                since: now,
                end,
                job: Some(release.job.clone()),
                class: Some(job.class.clone()),
                project: job.project.clone(),
                priority: job.priority,
                resources: member.resources.clone(),
            };
            self.pods.insert(seat.pod.clone(), pod);
        }
        let ranks: Vec<u32> = release.seats.iter().map(|seat| seat.rank).collect();
        job.seats.retain(|seat| !ranks.contains(&seat.rank));
        job.seats.extend(release.seats.iter().cloned());
        job.seats.sort_by_key(|seat| seat.rank);
        job.members
            .retain(|one| release.seats.iter().all(|seat| seat.pod != one.pod));
        job.released = now;
        if job.seats.len() > 1 || !job.members.is_empty() {
            self.jobs.insert(release.job.clone(), job);
        }
    }
}

fn set<T>(map: &mut BTreeMap<Name, T>, name: &str, value: Option<T>) {
    match value {
        Some(value) => map.insert(name.into(), value),
        None => map.remove(name),
    };
}
