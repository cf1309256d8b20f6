//! Plans one job.

use std::sync::Arc;

use nvlink_topology::{Scope, multi_node::Gang};

use crate::{
    Millis, Reason, Release, Seat, Why,
    assumed_end::FAR,
    cluster::Cluster,
    job::total,
    queue::Entry,
    round::{
        plan::{Plan, length, scope_of},
        target::{Chosen, Part, Target},
    },
    search::Found,
    seats::{Ranked, consecutive, ranked},
};

/// Costs that differ by less than this part are equal.
const SAME: f64 = 1e-9;
/// The part of its run time that a job is assumed to communicate at the best placement. An
/// assumption, because nobody measures it: one fifth. The factor of the class scales it.
const COMMUNICATION: f64 = 0.2;
/// The assumed run time of a job of unknown duration where run times are compared: one hour.
const ASSUMED_RUN: f64 = 3_600_000.0;

/// What becomes of a job.
pub(crate) enum Outcome {
    /// It starts now.
    Start { release: Release, target: Target },
    /// It waits, for the target if it has one.
    Wait {
        reason: Reason,
        target: Option<Target>,
        /// Which other targets it could wait for.
        free: Free,
    },
}

/// Which targets a job that waits could have instead of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Free {
    /// Any.
    Any,
    /// Only those of the least cost.
    Best,
    /// Any, without the constraint to a domain.
    Spread,
    /// None: members of a gang that rejoin it, on seats that are kept for them.
    None,
    /// Only those near the rest of its gang, whose seats are kept no more.
    Near,
}

impl Plan<'_> {
    /// Plans a job. `ahead` jobs ahead of it wait.
    pub(crate) fn plan(&mut self, entry: &Entry, ahead: u32) -> Outcome {
        if !entry.job.complete || entry.job.members.is_empty() {
            return Outcome::Wait {
                reason: Reason::Incomplete,
                target: None,
                free: Free::Any,
            };
        }
        if let Some(outcome) = self.rejoin(entry) {
            return outcome;
        }
        match self.within_quota(entry, self.now) {
            Ok(Some(target)) if target.start <= self.now => self.start(entry, target, ahead),
            Ok(target) => Outcome::Wait {
                reason: self.classify(entry).reason(entry, ahead),
                target,
                free: Free::Any,
            },
            Err((reason, target)) => Outcome::Wait {
                reason,
                target,
                free: Free::Any,
            },
        }
    }

    /// Returns when and where a job could start within the quota of its project. An error
    /// says that the quota is what it waits for.
    pub(crate) fn within_quota(
        &mut self,
        entry: &Entry,
        after: Millis,
    ) -> Result<Option<Target>, (Reason, Option<Target>)> {
        let most = self.class(&entry.job.class);
        let Some(most) = most.and_then(|class| class.max_gpus_per_project) else {
            return Ok(self.first(entry, after));
        };
        let mut start = after;
        let mut waits = false;
        for _ in 0..8 {
            let free = self
                .overlay
                .quotas
                .earliest(self.cluster, entry, most, start, self.now);
            // A job that waits only for its own project, nobody knows how long, reserves
            // nothing.
            let Some(free) = free.filter(|&free| free < FAR || free <= start) else {
                return Err((self.quota(entry, most), None));
            };
            waits |= free > start && start == after;
            let Some(target) = self.first(entry, free) else {
                return Ok(None);
            };
            let again =
                self.overlay
                    .quotas
                    .earliest(self.cluster, entry, most, target.start, self.now);
            if again == Some(target.start) {
                return if waits {
                    Err((self.quota(entry, most), Some(target)))
                } else {
                    Ok(Some(target))
                };
            }
            start = target.start;
        }
        Err((self.quota(entry, most), None))
    }

    /// Returns why a job may not start now, if that is the quota of its project.
    pub(crate) fn over_quota(&mut self, entry: &Entry) -> Option<Reason> {
        let most = self.class(&entry.job.class)?.max_gpus_per_project?;
        let quotas = &mut self.overlay.quotas;
        let free = quotas.earliest(self.cluster, entry, most, self.now, self.now);
        (free != Some(self.now)).then(|| self.quota(entry, most))
    }

    fn quota(&self, entry: &Entry, most: u32) -> Reason {
        let quota = (entry.job.class.clone(), entry.job.project.clone());
        Reason::Quota {
            held: total(self.cluster.pods_in(&quota).map(|pod| pod.gpus)),
            most,
        }
    }

    /// Returns when and where a job could start first, from `after` on: on one node, or, if it is
    /// a gang, over several if its scope allows that and it is earlier, or closer.
    pub(crate) fn first(&mut self, entry: &Entry, after: Millis) -> Option<Target> {
        let length = length(&entry.job);
        let spec = self.gang_spec(entry);
        let whole = match self.may_share_a_node(entry) {
            true => self.choose(entry.kind, false, after, length),
            false => None,
        };
        let whole = whole.map(|chosen| self.chosen(entry, chosen));
        let mut spec = match (&whole, spec) {
            (_, Some(spec)) => spec,
            (_, None) => return whole,
        };
        if let Some(whole) = whole.as_ref().filter(|whole| whole.start <= after) {
            if whole.within <= Scope::NvlinkDomain || spec.scope <= Scope::Node {
                return Some(whole.clone());
            }
            // Only a fabric is closer than a node.
            spec.scope = Scope::NvlinkDomain;
        }
        let several = self.choose_gang(entry, &spec, after, length);
        match (whole, several) {
            (Some(whole), Some(several)) => {
                let rank = |target: &Target| (target.start, target.within);
                Some(if rank(&several) < rank(&whole) {
                    several
                } else {
                    whole
                })
            }
            (whole, several) => whole.or(several),
        }
    }

    /// Returns the gang that a job is; `None` for a job of one pod.
    pub(crate) fn gang(&self, entry: &Entry) -> Option<Gang> {
        let job = &entry.job;
        let gpus = job.members.iter().map(|member| member.gpus).max()?;
        let class = self.class(&job.class);
        (job.members.len() > 1).then(|| Gang {
            pods: job.members.len(),
            gpus: gpus as usize,
            pattern: job.pattern,
            pod: job.scope,
            scope: job.gang_scope,
            one_host: class.is_some_and(|class| class.one_host),
            without_fabrics: class.is_some_and(|class| class.without_fabrics),
        })
    }

    /// Reports whether a job may be on one node that is in no fabric.
    pub(crate) fn may_share_a_node(&self, entry: &Entry) -> bool {
        let gang = self.gang(entry);
        gang.is_none_or(|gang| gang.one_host || gang.scope != Scope::NvlinkDomain)
    }

    pub(crate) fn chosen(&self, entry: &Entry, chosen: Chosen) -> Target {
        self.target(entry, chosen.node, chosen.found, chosen.key.start)
    }

    /// Returns the target of a whole job on one node.
    pub(crate) fn target(
        &self,
        entry: &Entry,
        number: u32,
        found: Arc<Found>,
        start: Millis,
    ) -> Target {
        let (mut within, mut cost) = (scope_of(self.cluster, number, &found), found.cost);
        let hosts = self.gang(entry).filter(|gang| !gang.one_host);
        if let Some((gang, node)) = hosts.zip(self.cluster.node(number)) {
            within = match node.state.fabric {
                Some(_) if !gang.without_fabrics => Scope::NvlinkDomain,
                _ => Scope::Node,
            };
            cost = cost.max(node.between(&gang, within));
        }
        Target {
            start,
            within,
            cost,
            parts: vec![Part {
                node: number,
                members: entry.job.members.len(),
                found,
            }],
        }
    }

    /// Returns the least cost of a job on empty nodes; `None` if they cannot hold it.
    pub(crate) fn least(&mut self, entry: &Entry) -> Option<f64> {
        let gang = self.gang(entry);
        if gang.is_some_and(|gang| !gang.one_host) {
            return self.least_over_nodes(entry, &gang?);
        }
        let least = self.kinds.least(entry.kind, self.cluster, self.search);
        least.or_else(|| self.least_over_nodes(entry, &gang?))
    }

    /// Starts a job, unless a better placement is worth the wait.
    fn start(&mut self, entry: &Entry, mut target: Target, ahead: u32) -> Outcome {
        let least = self.least(entry);
        let why = match self.better(entry, &target, least) {
            Better::Wait { longer, target } => {
                return Outcome::Wait {
                    reason: Reason::Better { longer },
                    target: Some(target),
                    free: Free::Best,
                };
            }
            Better::Now(best) => {
                target = best;
                turn(ahead)
            }
            Better::Worse(why) => why,
            Better::None => turn(ahead),
        };
        Outcome::Start {
            release: self.release(entry, &target, least, why),
            target,
        }
    }

    /// Returns the first target that a job that waits would have now.
    pub(crate) fn target_of(&mut self, entry: &Entry, free: Free) -> Option<Target> {
        if free == Free::Spread {
            let anywhere = self.anywhere(entry)?;
            return self.first(&anywhere, self.now);
        }
        match self.within_quota(entry, self.now) {
            Ok(target) | Err((_, target)) => target,
        }
    }

    /// Returns the release of a job to a target.
    fn release(&self, entry: &Entry, target: &Target, least: Option<f64>, why: Why) -> Release {
        let ranked = ranked(&entry.job.members);
        let quality = match least {
            Some(least) if target.cost > 0.0 => (least / target.cost).min(1.0),
            _ => 1.0,
        };
        Release {
            job: entry.id.clone(),
            seats: seats(self.cluster, &ranked, target),
            cost: target.cost,
            quality,
            scope: target.within,
            why,
            ranks_in_doubt: ranked.in_doubt,
        }
    }

    /// Compares a start now with a better placement later.
    fn better(&mut self, entry: &Entry, target: &Target, least: Option<f64>) -> Better {
        let class = self.class(&entry.job.class);
        let factor = class.and_then(|class| class.waiting_factor);
        // Where its pods are separate hosts, a gang on one node is no better than over several.
        let hosts = self.gang(entry).is_some_and(|gang| !gang.one_host);
        let (Some(factor), Some(least), false) = (factor, least, hosts) else {
            return Better::None;
        };
        if least <= 0.0 || target.cost <= least * (1.0 + SAME) {
            return Better::None;
        }
        #[allow(clippy::cast_precision_loss)] // far below 2^53
        let runs = entry
            .job
            .duration
            .map_or(ASSUMED_RUN, |one| one.mean as f64);
        let longer = runs * COMMUNICATION * (target.cost / least - 1.0);
        let best = self.choose(entry.kind, true, self.now, length(&entry.job));
        let best = best.filter(|best| best.key.start < FAR);
        if let Some(best) = best.clone().filter(|best| best.key.start <= self.now) {
            return Better::Now(self.chosen(entry, best));
        }
        let wait = best.as_ref().map(|best| best.key.start - self.now);
        #[allow(clippy::cast_precision_loss)] // far below 2^53
        let costs = wait.map_or(f64::INFINITY, |wait| wait as f64 * factor.max(0.0));
        #[allow(clippy::cast_possible_truncation)] // milliseconds of a run time
        let longer_millis = longer as Millis;
        match best {
            Some(best) if costs <= longer => Better::Wait {
                longer: longer_millis,
                target: self.chosen(entry, best),
            },
            _ => Better::Worse(Why::Worse {
                best_cost: least,
                wait: wait.unwrap_or(Millis::MAX),
                longer: longer_millis,
            }),
        }
    }

    /// Returns the closest scope that contains all these seats, which are on several nodes.
    pub(crate) fn scope_over(&self, nodes: &[u32]) -> Scope {
        use crate::gang_kind::{LEVELS, group_of};
        let same = |level: &Scope| {
            let mut groups = nodes.iter().map(|&node| {
                self.cluster
                    .node(node)
                    .and_then(|node| group_of(node, *level))
            });
            let first = groups.next().flatten();
            first.is_some() && groups.all(|group| group == first)
        };
        LEVELS.into_iter().find(same).unwrap_or(Scope::Cluster)
    }
}

/// Returns why a job starts that `ahead` jobs ahead of it do not.
fn turn(ahead: u32) -> Why {
    match ahead {
        0 => Why::Turn,
        ahead => Why::Backfill { ahead },
    }
}

/// A start now compared with a better placement.
enum Better {
    /// Nothing is better.
    None,
    /// The better one can start now: the other does less harm to other jobs.
    Now(Target),
    /// The better one is worth the wait.
    Wait { longer: Millis, target: Target },
    /// It is not.
    Worse(Why),
}

/// Returns the seats of a target, in the order of the ranks.
pub(crate) fn seats(cluster: &Cluster, ranked: &Ranked<'_>, target: &Target) -> Vec<Seat> {
    let mut seats = Vec::with_capacity(ranked.members.len());
    let (mut first, mut rank) = (0, 0);
    for part in &target.parts {
        let members = &ranked.members[first..][..part.members];
        first += part.members;
        if let Some(node) = cluster.node(part.node) {
            seats.extend(consecutive(node, members, rank, &part.found.order));
        }
        rank += u32::try_from(part.members).unwrap_or(0);
    }
    seats
}
