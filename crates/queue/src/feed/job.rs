//! A job of the planner, put together from its pods. Pure.

use std::collections::{BTreeMap, BTreeSet};

use nvlink_api::{class::Class, crd::domain_class::OnQueueTimeout};
use nvlink_planner::{Deadline, Estimate, Job, Member, Millis, Name, OnTimeout, PodState, Seat};

use super::{
    dra::{CLAIMABLE, serving},
    entry::{Entry, Expected, Pause},
    neighbours::Neighbours,
    nics::claimable,
    spares::open_to,
};
use crate::{Assembly, Doubt, Life, Placement, assemble, notice::Obstacle, on_timeout, past::Past};

/// The most characters of a gate's name that are shown.
const MOST_SHOWN: usize = 63;

/// The pods of a job, in the order of their names.
pub(super) struct Pods<'a>(pub(super) Vec<(&'a Name, &'a Entry)>);

/// What follows from the pods of a job.
pub(super) struct Assembled {
    /// Each pod that holds GPUs or is about to.
    pub(super) pods: Vec<(Name, Option<PodState>)>,
    /// The job, if some of its pods wait or its seats must be kept.
    pub(super) job: Option<Job>,
    /// It is a gang of which some pods wait and others are missing.
    pub(super) incomplete: bool,
    /// What keeps it from starting, besides GPUs.
    pub(super) obstacle: Option<Obstacle>,
    /// The seats of its pods, also of those that are gone.
    pub(super) seats: Vec<Seat>,
    /// Pods that wait although others of their plan were released: they must follow.
    pub(super) committed: Vec<(Name, Placement)>,
}

/// What is the same for all jobs.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) neighbours: &'a Neighbours,
    pub(super) past: &'a Past,
    /// The names of the last resources in the planner's vectors.
    pub(super) others: &'a [Name],
    pub(super) now: Millis,
}

/// What a class says about waiting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits<'a> {
    pub(super) then: OnQueueTimeout,
    pub(super) class: &'a Class,
}

impl Pods<'_> {
    /// Returns where each pod is or will be, in the order of the pods.
    fn places(&self) -> Vec<Option<&Placement>> {
        let released = self.0.iter().filter(|(_, pod)| pod.is_released());
        let plans: BTreeSet<&str> = released
            .filter_map(|(_, pod)| Some(pod.placement.as_ref()?.plan.as_str()))
            .collect();
        let pods = self.0.iter();
        pods.map(|(_, pod)| place(pod, &plans)).collect()
    }

    /// Returns the seats of `before` whose pods are gone, and did not succeed.
    fn lost(&self, before: &[Seat], live: &[Seat]) -> Vec<Seat> {
        let succeeded = |seat: &Seat| {
            let pod = self.0.iter().find(|(name, _)| **name == seat.pod);
            pod.is_some_and(|(_, pod)| {
                matches!(
                    pod.life,
                    Life::Ended {
                        succeeded: true,
                        ..
                    }
                )
            })
        };
        let taken = |seat: &Seat| live.iter().any(|one| one.rank == seat.rank);
        let lost = before
            .iter()
            .filter(|seat| !taken(seat) && !succeeded(seat));
        lost.cloned().collect()
    }

    /// Returns the seats of a gang that its pods record: what an earlier leader knew.
    fn recorded(&self, places: &[Option<&Placement>]) -> Vec<Seat> {
        let pairs = self.0.iter().zip(places);
        let mut placed: Vec<_> = pairs
            .filter_map(|((_, pod), place)| Some((*pod, (*place)?)))
            .collect();
        // The latest is the last word on a seat.
        placed.sort_by_key(|(_, place)| place.at);
        let seats = placed.iter().flat_map(|(pod, place)| {
            let others = place.others.iter();
            others.map(|other| (other.rank, other.seat(&pod.namespace)))
        });
        let by_rank: BTreeMap<u32, Seat> = seats.collect();
        by_rank.into_values().collect()
    }

    /// Puts the job together. `before` are the seats that its pods had, if it is not new.
    pub(super) fn assemble(
        &self,
        id: &Name,
        waits: Option<Waits<'_>>,
        before: Option<&[Seat]>,
        context: &Context<'_>,
    ) -> Assembled {
        let places = self.places();
        let pairs = || self.0.iter().zip(&places);
        let mut this = Assembled {
            pods: pairs()
                .map(|(&(name, pod), place)| ((*name).clone(), context.held(id, pod, *place)))
                .collect(),
            job: None,
            incomplete: false,
            obstacle: None,
            seats: Vec::new(),
            committed: Vec::new(),
        };
        for (&(name, pod), place) in pairs() {
            let Some(place) = place else { continue };
            if pod.waits() && !pod.is_paused() {
                this.committed.push((name.clone(), (*place).clone()));
            }
            this.seats.push(seat(name, place));
        }
        let lost = match before {
            Some(before) => self.lost(before, &this.seats),
            None => self.lost(&self.recorded(&places), &this.seats),
        };
        this.seats.extend(lost);
        this.seats.sort_by_key(|seat| seat.rank);
        let job = self.job(&places, waits, &this.seats, context);
        if let Some((job, whole)) = job {
            this.incomplete = whole.missing != Some(0) && !job.members.is_empty();
            let stuck = self.stuck(&places, context);
            this.obstacle = self.obstacle(&places, &whole).or_else(|| stuck.clone());
            this.job = Some(Job {
                complete: job.complete && stuck.is_none(),
                ..job
            });
        }
        this
    }

    /// Returns the pods that wait for a place.
    fn waiting(&self, places: &[Option<&Placement>]) -> Vec<(&Name, &Entry)> {
        let pairs = self.0.iter().zip(places);
        let waiting = pairs
            .filter(|((_, pod), place)| pod.waits() && place.is_none() && pod.member.is_some())
            .map(|(pair, _)| *pair);
        waiting.collect()
    }

    /// Returns the set of nodes without spares, if the pods that wait must leave these free: they take the
    /// place of no pod that their gang has lost.
    fn open(&self, gang: bool, waits: Option<Waits<'_>>, whole: &Assembly) -> Option<Name> {
        let mut doubts = whole.doubts.iter();
        let surplus = doubts.any(|doubt| matches!(doubt, Doubt::TooMany { .. }));
        let joins = gang && !surplus && self.0.iter().any(|(_, pod)| pod.is_released());
        waits
            .filter(|_| !joins)
            .and_then(|waits| open_to(waits.class, gang))
    }

    fn obstacle(&self, places: &[Option<&Placement>], whole: &Assembly) -> Option<Obstacle> {
        let refused = pause(&self.waiting(places)).map(|it| Obstacle::Refused(it.why.clone()));
        let doubt = || whole.undecided().cloned().map(Obstacle::Doubt);
        let gated = || {
            whole
                .missing
                .filter(|missing| *missing == 0)
                .and(self.gated())
        };
        refused.or_else(doubt).or_else(gated)
    }

    /// Returns the first pod that has a gate of somebody else beside the queue's.
    fn gated(&self) -> Option<Obstacle> {
        self.0.iter().find_map(|(name, pod)| match &pod.life {
            Life::Waiting { others } => {
                let gate: String = others.first()?.chars().take(MOST_SHOWN).collect();
                Some(Obstacle::Gated((&***name).into(), gate.into()))
            }
            _ => None,
        })
    }

    /// Returns the first pod that no node can take yet: it must be near others of which none is on a
    /// node, or has a claim that somebody must bind to a volume.
    fn stuck(&self, places: &[Option<&Placement>], context: &Context<'_>) -> Option<Obstacle> {
        let waiting = self.waiting(places);
        waiting.iter().find_map(|(name, pod)| {
            if let Some(claim) = &pod.unbound {
                return Some(Obstacle::Unbound((&***name).into(), (&**claim).into()));
            }
            let others = context.neighbours.lacks(pod.ties.as_deref()?)?;
            Some(Obstacle::Alone((&***name).into(), others.into()))
        })
    }

    /// Returns when its last pod got a place, or 0.
    fn released(&self, places: &[Option<&Placement>]) -> Millis {
        let pairs = self.0.iter().zip(places);
        let placed = pairs.filter_map(|((_, pod), place)| Some(pod.placed((*place)?)));
        placed.max().unwrap_or(0)
    }

    fn job(
        &self,
        places: &[Option<&Placement>],
        waits: Option<Waits<'_>>,
        seats: &[Seat],
        context: &Context<'_>,
    ) -> Option<(Job, Assembly)> {
        let members = self.0.iter().filter_map(|(_, pod)| pod.member.as_ref());
        let members: Vec<_> = members.collect();
        let gang = members.iter().any(|member| member.gang.is_some());
        let waiting = waits.map_or_else(Vec::new, |_| self.waiting(places));
        let first = match waiting.first() {
            Some((_, pod)) => pod.member.as_ref()?,
            None => members.iter().find(|member| member.life.is_live())?,
        };
        let seats = if gang { seats.to_vec() } else { Vec::new() };
        if waiting.is_empty() && seats.is_empty() {
            return None;
        }
        let alone = || Assembly {
            missing: Some(0),
            ..Assembly::default()
        };
        let whole = if gang { assemble(&members) } else { alone() };
        let there = whole.missing == Some(0);
        // A pod with gates of others could not start.
        let free = |pod: &Entry| matches!(&pod.life, Life::Waiting { others } if others.is_empty());
        let created = || waiting.iter().filter_map(|(_, pod)| pod.created());
        let turns = waiting.iter().filter_map(|(_, pod)| pod.turn());
        let priorities = waiting.iter().map(|(_, pod)| pod.priority);
        let pause = pause(&waiting);
        let deadline = deadline(first, created().min(), waits);
        let job = Job {
            class: first.class.as_str().into(),
            project: first.project.as_str().into(),
            // One pod of high priority, or an old one, brings no others to the front.
            priority: priorities.min().unwrap_or(first.priority),
            created: turns.max().unwrap_or(context.now),
            complete: there && pause.is_none() && waiting.iter().all(|(_, pod)| free(pod)),
            pattern: first.pattern,
            scope: first.scope,
            gang_scope: first.gang_scope,
            within: within(&waiting, waits, self.open(gang, waits, &whole)),
            duration: context.duration(&waiting),
            // Who may spread waits on, and who could not be failed is failed after the pause.
            deadline: deadline.filter(|end| {
                let later = |it: &Pause| it.leaves || end.then == OnTimeout::Spread;
                !pause.is_some_and(later)
            }),
            members: waiting
                .iter()
                .filter_map(|(name, pod)| context.member(name, pod))
                .collect(),
            seats,
            released: self.released(places),
        };
        Some((job, whole))
    }
}

/// Returns where a pod is or will be, if pods of these plans were released.
fn place<'a>(pod: &'a Entry, released: &BTreeSet<&str>) -> Option<&'a Placement> {
    let prepared = pod.placement.as_ref();
    match (&pod.life, &pod.expected) {
        (Life::Waiting { .. }, Some(Expected::Placed(placement))) => Some(placement),
        (Life::Waiting { .. }, Some(Expected::Leaves)) => None,
        (Life::Waiting { .. }, None) => {
            prepared.filter(|placement| released.contains(placement.plan.as_str()))
        }
        (Life::Released, Some(Expected::Placed(placement))) => Some(placement),
        (Life::Gated { .. } | Life::Ended { .. } | Life::Deleting { node: None, .. }, _) => None,
        _ => prepared,
    }
}

/// Returns why the queue must not write one of the pods yet.
fn pause<'a>(waiting: &[(&Name, &'a Entry)]) -> Option<&'a Pause> {
    waiting.iter().find_map(|(_, pod)| pod.pause())
}

/// Returns the sets of nodes to which pods can go together, of those without spares, `open`, if they are
/// not to use these.
fn within(waiting: &[(&Name, &Entry)], waits: Option<Waits<'_>>, open: Option<Name>) -> Vec<Name> {
    let of_pod = |(_, pod): &(&Name, &Entry)| {
        let devices = match &pod.claim {
            Some(claim) => Some(waits.map_or_else(
                || CLAIMABLE.into(),
                |waits| claimable(waits.class, claim.nics),
            )),
            None => waits.map(|waits| serving(&waits.class.resource)),
        };
        devices.into_iter().chain(pod.demand.clone())
    };
    let sets: BTreeSet<Name> = waiting.iter().flat_map(of_pod).chain(open).collect();
    sets.into_iter().collect()
}

fn seat(name: &Name, place: &Placement) -> Seat {
    Seat {
        pod: name.clone(),
        rank: place.rank,
        node: place.node.as_deref().map(Name::from),
        gpus: place.gpus.clone(),
        domain: place.domain.as_deref().map(Name::from),
    }
}

fn deadline(
    first: &crate::Member,
    oldest: Option<Millis>,
    waits: Option<Waits<'_>>,
) -> Option<Deadline> {
    let timeout = i64::try_from(first.timeout?.as_millis()).ok()?;
    Some(Deadline {
        at: oldest?.saturating_add(timeout),
        then: on_timeout(waits?.then),
    })
}

impl Context<'_> {
    fn member(&self, name: &Name, pod: &Entry) -> Option<Member> {
        let read = pod.member.as_ref()?;
        let gang = read.gang.as_ref();
        Some(Member {
            pod: name.clone(),
            gpus: read.gpus,
            rank: gang.and_then(|gang| gang.rank),
            role: gang
                .map(|gang| gang.role.as_str())
                .filter(|role| !role.is_empty())
                .map(Name::from),
            resources: pod.amounts.vector(self.others),
        })
    }

    /// Returns how long the job runs if it starts now: as long as the pod that runs longest.
    fn duration(&self, waiting: &[(&Name, &Entry)]) -> Option<Estimate> {
        let estimates = waiting.iter().map(|(_, pod)| self.run(pod, self.now));
        let estimates: Option<Vec<Estimate>> = estimates.collect();
        estimates?.into_iter().max_by_key(|one| one.upper())
    }

    /// Returns how long a pod runs that starts at `start`.
    fn run(&self, pod: &Entry, start: Millis) -> Option<Estimate> {
        let member = pod.member.as_ref()?;
        let start = k8s_openapi::jiff::Timestamp::from_millisecond(start).ok()?;
        let estimate = member.limits.estimate(
            self.past.spread(&member.key()),
            self.past.worth(&member.project),
            start,
        )?;
        let millis = |duration: std::time::Duration| {
            Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
        };
        Some(Estimate {
            mean: millis(estimate.likely),
            spread: millis(estimate.allowance()),
        })
    }

    /// Returns what a pod holds; `None` if it holds nothing.
    pub(super) fn held(
        &self,
        job: &Name,
        pod: &Entry,
        place: Option<&Placement>,
    ) -> Option<PodState> {
        let bound = pod.life.node();
        let node = bound.or_else(|| place?.node.as_deref())?;
        let planned = place.filter(|place| place.node.as_deref() == Some(node));
        let since = planned
            .map(|place| pod.placed(place))
            .or_else(|| pod.since())
            .unwrap_or_default();
        let end = match pod.life {
            Life::Deleting { gone, .. } => Some(Estimate::exact(gone.as_millisecond())),
            _ => self.run(pod, since).map(|run| Estimate {
                mean: since.saturating_add(run.mean),
                ..run
            }),
        };
        let member = pod.member.as_ref();
        Some(PodState {
            node: node.into(),
            gpus: member.map_or(pod.gpus, |member| member.gpus),
            planned: planned.map(|place| place.gpus.clone()).unwrap_or_default(),
            bound: bound.is_some(),
            since,
            end,
            job: place.map(|_| job.clone()),
            class: pod.class.as_deref().map(Name::from),
            project: member
                .map_or(&*pod.namespace, |member| &member.project)
                .into(),
            priority: pod.priority,
            resources: pod.amounts.vector(self.others),
        })
    }
}
