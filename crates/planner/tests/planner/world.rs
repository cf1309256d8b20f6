//! A cluster on a virtual clock: jobs arrive, start as the planner says, and end.

use std::collections::{BTreeMap, BTreeSet};

use nvlink_planner::{Action, Job, Millis, Name, Release, Round, Seat, Settings, Why};
use nvlink_topology::Scope;

use crate::fed::Fed;

/// A cluster on a virtual clock. It checks each release.
pub(crate) struct World {
    pub(crate) fed: Fed,
    pub(crate) now: Millis,
    /// Who holds a GPU.
    pub(crate) held: BTreeMap<(Name, u32), Name>,
    ends: BTreeSet<(Millis, Name)>,
    pub(crate) started: BTreeMap<Name, Millis>,
}

impl World {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            fed: Fed::new(settings),
            now: 0,
            held: BTreeMap::new(),
            ends: BTreeSet::new(),
            started: BTreeMap::new(),
        }
    }

    /// Lets jobs arrive at their times of creation, and runs until nothing happens any more.
    pub(crate) fn replay(&mut self, jobs: &[(Name, Job)]) {
        let mut arrivals: Vec<&(Name, Job)> = jobs.iter().collect();
        arrivals.sort_by_key(|(id, job)| (job.created, id));
        let mut arrivals = arrivals.into_iter().peekable();
        loop {
            let arrival = arrivals.peek().map(|(_, job)| job.created);
            let end = self.ends.first().map(|&(at, _)| at);
            let Some(next) = arrival.into_iter().chain(end).min() else {
                break;
            };
            self.now = next;
            while let Some((at, pod)) = self.ends.first().cloned() {
                if at > self.now {
                    break;
                }
                self.ends.pop_first();
                self.end(&pod);
            }
            while let Some((id, job)) = arrivals.next_if(|(_, job)| job.created <= self.now) {
                self.fed.job(id, job.clone());
            }
            self.step();
        }
    }

    /// Asks for a round and carries it out.
    pub(crate) fn step(&mut self) -> Round {
        let round = self.fed.round(self.now);
        for action in &round.actions {
            match action {
                Action::Release(release) => self.release(release),
                Action::Reject(reject) => self.fed.set_job(&reject.job, None),
                Action::GiveBack(_) => {}
            }
        }
        round
    }

    /// A pod ends or is deleted.
    pub(crate) fn end(&mut self, pod: &Name) {
        self.held.retain(|_, holder| holder != pod);
        self.fed.pod(pod, None);
    }

    fn release(&mut self, release: &Release) {
        let job = &self.fed.jobs[&release.job];
        let members: BTreeMap<&Name, u32> =
            job.members.iter().map(|one| (&one.pod, one.gpus)).collect();
        let seated: BTreeSet<&Name> = release.seats.iter().map(|seat| &seat.pod).collect();
        assert_eq!(
            seated.into_iter().collect::<Vec<_>>(),
            members.keys().copied().collect::<Vec<_>>(),
            "a job starts whole"
        );
        // A gang that was spread once has members elsewhere, also when they rejoin.
        if job.deadline.is_none() {
            self.assert_scope(job, release);
        }
        for seat in &release.seats {
            let node = seat.node.clone().unwrap();
            assert_eq!(seat.gpus.len(), members[&seat.pod] as usize);
            for &gpu in &seat.gpus {
                let before = self.held.insert((node.clone(), gpu), seat.pod.clone());
                assert_eq!(before, None, "{node} GPU {gpu} twice: {release:?}");
            }
            if let Some(duration) = job.duration {
                self.ends
                    .insert((self.now + duration.mean, seat.pod.clone()));
            }
        }
        self.started.insert(release.job.clone(), self.now);
        self.fed.released(release, self.now);
    }

    fn assert_scope(&self, job: &Job, release: &Release) {
        let there = |seat: &&Seat| self.fed.pods.contains_key(&seat.pod);
        let others = job.seats.iter().filter(there);
        let seats = release.seats.iter().chain(others);
        let nodes: BTreeSet<&Name> = seats.filter_map(|seat| seat.node.as_ref()).collect();
        let same = |of: &dyn Fn(&Name) -> Option<String>| {
            let all: BTreeSet<Option<String>> = nodes.iter().map(|node| of(node)).collect();
            all.len() == 1 && !all.contains(&None)
        };
        let state = |node: &Name| self.fed.nodes.get(node);
        let fabric = same(&|node| Some(state(node)?.fabric.as_ref()?.id()));
        let rack = same(&|node| state(node)?.rack.as_ref().map(ToString::to_string));
        let zone = same(&|node| state(node)?.zone.as_ref().map(ToString::to_string));
        let domains: BTreeSet<_> = release.seats.iter().map(|seat| &seat.domain).collect();
        let gpus: usize = release.seats.iter().map(|seat| seat.gpus.len()).sum();
        let one_domain = gpus == 1 || (domains.len() == 1 && !domains.contains(&None));
        let one_pod = job.members.len() == 1 && release.why != Why::Rejoin;
        let class = self.fed.classes.get(&job.class);
        let one_host = one_pod || class.is_some_and(|class| class.one_host);
        let one_node = nodes.len() == 1;
        let reach = if one_pod { job.scope } else { job.gang_scope };
        let within = match reach {
            Scope::Gpu => gpus == 1,
            Scope::NvlinkDomain => fabric || (one_node && one_domain && one_host),
            Scope::Node => one_node,
            Scope::Rack => one_node || fabric || rack,
            Scope::Zone => one_node || fabric || rack || zone,
            Scope::Cluster => true,
        };
        assert!(within, "{reach:?} but {release:?}");
        let apart = |seat: &Seat| seat.gpus.len() > 1 && seat.domain.is_none();
        let pods = job.scope > Scope::NvlinkDomain || !release.seats.iter().any(apart);
        assert!(pods, "a pod over several domains: {release:?}");
    }
}
