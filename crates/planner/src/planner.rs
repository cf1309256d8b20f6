//! The planner: its state, and the changes that it is fed with.

use std::collections::{BTreeMap, BTreeSet};

use nvlink_topology::{Pattern, Scope, multi_node::local};

use crate::{
    Class, Estimate, Explanation, Job, Member, Millis, Name, NodeState, PodState, Release, Round,
    Settings,
    cluster::{Cluster, Seats},
    gang_kind::GangKinds,
    job::total,
    job_kind::{JobSpec, Kinds},
    node_entry::UNDIVIDED,
    queue::{Entry, Queue},
    round::{
        self, Reserved,
        gang::sets,
        plan::{State, resources},
    },
    search::{Ask, Search},
};

/// The planner of the queue. See the crate's documentation.
#[derive(Debug, Default)]
pub struct Planner {
    settings: Settings,
    pub(crate) classes: BTreeMap<Name, Class>,
    /// The numbers of the classes that jobs have named.
    class_numbers: BTreeMap<Name, u32>,
    pub(crate) cluster: Cluster,
    queue: Queue,
    /// Caches: they change how fast an answer comes, never the answer.
    pub(crate) search: Search,
    pub(crate) kinds: Kinds,
    pub(crate) gangs: GangKinds,
    /// The time of the latest round, and when the next one is due, if nothing has changed since.
    latest: Option<(Millis, Option<Millis>)>,
}

impl Planner {
    /// Returns a planner without nodes, pods and jobs.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Replaces the settings.
    pub fn settings(&mut self, settings: Settings) {
        self.latest = None;
        self.settings = settings;
    }

    /// Sets a class, or removes its settings.
    pub fn class(&mut self, name: &Name, class: Option<Class>) {
        self.latest = None;
        match class {
            Some(class) => self.classes.insert(name.clone(), class),
            None => self.classes.remove(name),
        };
        for entry in self.queue.entries() {
            if entry.job.class == *name {
                let kind = self.kinds.join(spec(&entry.job, &self.classes));
                self.kinds.leave(entry.kind);
                entry.kind = kind;
            }
        }
    }

    /// Sets a node, or removes it. Pods on a node that is not there hold nothing.
    pub fn node(&mut self, name: &Name, node: Option<NodeState>) {
        self.latest = None;
        self.cluster.set_node(name, node);
    }

    /// Sets a pod that was released or runs, or removes it.
    pub fn pod(&mut self, id: &Name, pod: Option<PodState>) {
        if self.cluster.set_pod(id, pod) {
            self.latest = None;
        }
    }

    /// Sets a job that waits, or removes it. A job without waiting members is in no
    /// queue, but a gang's seats are kept for members that come back.
    pub fn job(&mut self, id: &Name, job: Option<Job>) {
        let seats = job.as_ref().map(|job| Seats {
            // Where the scheduler decides, there is no seat to come back to.
            seats: job
                .seats
                .iter()
                .filter(|seat| seat.node.is_some())
                .cloned()
                .collect(),
            released: job.released,
        });
        let seats = seats.filter(|seats| !seats.seats.is_empty());
        if self.cluster.set_seats(id, seats) {
            self.latest = None;
        }
        let job = job.filter(|job| !job.members.is_empty());
        if self.waiting(id) == job.as_ref() {
            return;
        }
        self.latest = None;
        if let Some(old) = self.queue.remove(id) {
            self.kinds.leave(old.kind);
        }
        let Some(job) = job else { return };
        let next = u32::try_from(self.class_numbers.len()).unwrap_or(u32::MAX);
        let class = *self.class_numbers.entry(job.class.clone()).or_insert(next);
        self.queue.insert(Entry {
            id: id.clone(),
            kind: self.kinds.join(spec(&job, &self.classes)),
            gpus: total(job.members.iter().map(|member| member.gpus)),
            class,
            job,
        });
    }

    /// Returns a job that waits, as it was set.
    #[must_use]
    pub fn waiting(&self, id: &Name) -> Option<&Job> {
        self.queue.get(id).map(|entry| &entry.job)
    }

    /// Records that a release of the last round was carried out at `now`, so that the
    /// next round expects it before the API shows it: its pods hold their seats, and the
    /// job no longer waits. A gang keeps its seats, and those of members that are still there.
    pub fn released(&mut self, release: &Release, now: Millis) {
        let Some(entry) = self.queue.get(&release.job) else {
            return;
        };
        let mut job = entry.job.clone();
        if self.cluster.pods_of(&release.job).next().is_none() {
            // Nobody is left of an earlier start.
            job.seats.clear();
        }
        let seated: BTreeSet<&Name> = release.seats.iter().map(|seat| &seat.pod).collect();
        let members = std::mem::take(&mut job.members).into_iter();
        let (starting, rest): (Vec<Member>, Vec<Member>) =
            members.partition(|member| seated.contains(&member.pod));
        // Members of a gang for which it has no seat yet.
        job.members = rest;
        let members: BTreeMap<Name, (u32, Vec<u64>)> = starting
            .into_iter()
            .map(|member| (member.pod, (member.gpus, member.resources)))
            .collect();
        for seat in &release.seats {
            let (Some(node), Some((gpus, resources))) = (&seat.node, members.get(&seat.pod)) else {
                continue;
            };
            let pod = PodState {
                node: node.clone(),
                gpus: *gpus,
                planned: seat.gpus.clone(),
                bound: false,
                since: now,
                end: job.duration.map(|duration| Estimate {
                    mean: now.saturating_add(duration.mean),
                    ..duration
                }),
                job: Some(release.job.clone()),
                class: Some(job.class.clone()),
                project: job.project.clone(),
                priority: job.priority,
                resources: resources.clone(),
            };
            self.pod(&seat.pod, Some(pod));
        }
        let new: BTreeSet<u32> = release.seats.iter().map(|seat| seat.rank).collect();
        job.seats.retain(|seat| !new.contains(&seat.rank));
        job.seats.extend(release.seats.iter().cloned());
        job.seats.sort_by_key(|seat| seat.rank);
        job.released = now;
        let stays = job.seats.len() > 1 || !job.members.is_empty();
        self.job(&release.job, stays.then_some(job));
    }

    /// Says what to do at `now`. A round changes nothing: until the caller feeds what it
    /// did, the next round says the same.
    pub fn round(&mut self, now: Millis) -> Round {
        let round = self.walk(now).0;
        self.latest = Some((now, round.wake));
        round
    }

    /// Reports whether a round at `now` would do the same as the latest one. Expected starts,
    /// and the reasons that follow from them, may move on with the clock.
    #[must_use]
    pub fn is_settled(&self, now: Millis) -> bool {
        self.latest
            .is_some_and(|(at, wake)| at <= now && wake.is_none_or(|wake| now < wake))
    }

    /// Says why a job waits at `now`, in full; `None` if it does not wait.
    pub fn explain(&mut self, job: &Name, now: Millis) -> Option<Explanation> {
        let (round, reserved) = self.walk(now);
        round::explain::explain(&self.cluster, &self.queue, job, round, &reserved)
    }

    /// Brings the nodes, and all that follows from them, up to `now`.
    pub(crate) fn refresh(&mut self, now: Millis) {
        let changed = self.cluster.refresh(now, &mut self.search);
        self.kinds.update(&self.cluster, &mut self.search, &changed);
        self.gangs.update(&self.cluster, &mut self.search, &changed);
    }

    fn walk(&mut self, now: Millis) -> (Round, Vec<Reserved>) {
        self.refresh(now);
        let state = State {
            settings: &self.settings,
            classes: &self.classes,
            cluster: &self.cluster,
            queue: &self.queue,
            search: &mut self.search,
            kinds: &mut self.kinds,
            gangs: &mut self.gangs,
        };
        round::walk(state, now)
    }
}

/// Returns what a whole job asks of one node.
fn spec(job: &Job, classes: &BTreeMap<Name, Class>) -> JobSpec {
    let gpus = total(job.members.iter().map(|member| member.gpus));
    let class = classes.get(&job.class);
    let ask = Ask {
        gpus,
        pattern: job.pattern,
        scope: local(job.scope.min(job.reach())),
        broken: class.map(|class| class.broken).unwrap_or_default(),
    };
    let mut sets = sets(job);
    if job.members.len() > 1 {
        // One placement for all of them would have to be a partition for each.
        sets.push(UNDIVIDED.into());
        sets.sort_unstable();
    }
    JobSpec {
        sets,
        // One GPU has no traffic and is within every scope: all such jobs are alike.
        ask: if gpus == 1 {
            Ask {
                pattern: Pattern::None,
                scope: Scope::Node,
                ..ask
            }
        } else {
            ask
        },
        resources: resources(job.members.iter().map(|member| &*member.resources)),
    }
}
