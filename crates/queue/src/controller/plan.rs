//! What the queue does next: what the present state demands, then what the planner says.

use std::{collections::BTreeMap, sync::atomic::Ordering};

use k8s_openapi::jiff::Timestamp;
use nvlink_planner::{Action, Millis, Name, Reject, Release, Seat};
use nvlink_topology::Pattern;

use super::{
    effect::Effect,
    state::{Planned, REST, State},
};
use crate::{
    Placement,
    board::LOOK,
    execute::{Id, Move},
    feed::{Leaver, Lost, Place, Unclaimed},
    notice::{self, About},
    placement::{Nics, Other, others},
    tally, words,
    writes::{CLASS_GONE, TIMEOUT, Write},
};

impl State {
    /// Decides what the present state demands. When to look again is [`State::due`].
    pub(super) fn step(&mut self) {
        let now = self.clock.now();
        self.feed.none_later(now);
        let unread = self.feed.wanted();
        self.read(unread);
        let wakes = [
            self.without_plan(now),
            self.with_plan(now),
            self.report(now),
        ];
        self.wake = wakes.into_iter().flatten().min();
    }

    /// Decides what needs no round: which pods cannot wait any longer, or were released by an
    /// earlier plan. Returns when to look again.
    fn without_plan(&mut self, now: Millis) -> Option<Millis> {
        let resume = self.feed.resume(now);
        let calm = self.feed.calm(now);
        let (leavers, due) = self.feed.leavers(now);
        for leaver in leavers {
            self.let_go(leaver, now);
        }
        let (lost, back) = self.feed.lost(now);
        for lost in lost {
            self.give_up(lost);
        }
        self.planner(now); // tells the feed which pods must follow their gangs
        for (pod, placement) in self.feed.committed() {
            tracing::info!(%pod, plan = placement.plan, "releasing a pod whose gang was released");
            self.start(vec![(pod, placement)], "resumed");
        }
        let (unclaimed, check) = self.feed.unclaimed(now);
        for one in unclaimed {
            self.reassign(one, now);
        }
        [resume, calm, due, back, check].into_iter().flatten().min()
    }

    /// Decides what the planner says, if a round may say something new. Returns when the next one is
    /// due although nothing changes.
    fn with_plan(&mut self, now: Millis) -> Option<Millis> {
        // What the queue shows comes back as changes of pods, and changes no plan.
        if now >= self.planned.until || !self.planner(now).is_settled(now) {
            let planner = self.planner(now);
            let began = std::time::Instant::now();
            let round = planner.round(now);
            self.metrics.queue().round(began.elapsed());
            self.follow(round.actions, now);
            self.planned = Planned {
                waiting: round.waiting,
                wake: round.wake,
                until: now.saturating_add(REST),
            };
        }
        self.planned.wake
    }

    /// Decides what pods and metrics show. Returns when to look again.
    fn report(&mut self, now: Millis) -> Option<Millis> {
        self.planner(now); // tells the feed what keeps jobs from starting
        self.show(now);
        self.review(now);
        let (outdated, reread) = self.feed.outdated(now);
        self.read(outdated);
        // What is due and not done yet waits for an answer, and the next look.
        let requests = self.requests.map(|at| at.max(now.saturating_add(LOOK)));
        let wakes = [self.board.next(), self.review.next(), reread, requests];
        wakes.into_iter().flatten().min()
    }

    fn read(&mut self, places: impl IntoIterator<Item = Place>) {
        let reads = places.into_iter().map(|place| Effect::Read(place, 0));
        self.effects.extend(reads);
    }

    fn show(&mut self, now: Millis) {
        if self.board.rests(now).is_none() {
            self.metrics.queue().queues(self.feed.queues());
            self.count_from_zero();
            let depth = tally::depth(&self.planned.waiting, &self.feed, now);
            self.metrics.queue().depth(&depth);
            self.metrics.queue().unsteady(&self.feed.unsteady());
            self.requests = self.request_nodes(now);
        }
        let waiting = &self.planned.waiting;
        let tasks = self.board.look(waiting, &self.feed, self.moving > 0, now);
        self.effects.extend(tasks.into_iter().map(Effect::Show));
    }

    /// Begins to do what a round says.
    fn follow(&mut self, actions: Vec<Action>, now: Millis) {
        for action in actions {
            match action {
                Action::Release(release) => match self.places(&release, now) {
                    Ok(places) => self.start(places, words::kind(&release.why)),
                    Err(why) => self.put_off(&release, why, now),
                },
                Action::Reject(reject) => self.reject(reject),
                Action::GiveBack(back) => {
                    tracing::debug!(job = %back.job, pods = back.vacant.len(), "a gang lost pods");
                }
            }
        }
    }

    /// Returns the placements of a release. Fails if a pod needs a claim, and the UUIDs or the NICs of its
    /// GPUs are not known, or if it cannot get the channels of its gang.
    fn places(
        &self,
        release: &Release,
        now: Millis,
    ) -> Result<Vec<(Name, Placement)>, &'static str> {
        let (plan, at) = (self.plan(), stamp(now));
        let why = words::why(&release.why);
        tracing::info!(job = %release.job, pods = release.seats.len(), plan, why, "releasing a job");
        let known = self.feed.seats(&release.job).iter().chain(&release.seats);
        let known = known.filter_map(|seat| Some((seat.rank, Other::of(seat)?)));
        let all: BTreeMap<u32, Other> = known.collect();
        let domain_of_gang = self.feed.compute_domain(release)?;
        let place = |seat: &Seat| {
            let domain = seat.node.as_ref().zip(seat.domain.as_ref());
            let member = self.feed.member(&seat.pod);
            let gang = member.map(|member| member.gang.as_ref());
            let (uuids, nics) = self.devices(seat)?;
            let placement = Placement {
                uuids,
                nics,
                compute_domain: domain_of_gang.clone(),
                plan: plan.clone(),
                at,
                gang: gang.map(|gang| gang.map_or_else(String::new, |gang| gang.name.clone())),
                node: seat.node.as_deref().map(str::to_owned),
                gpus: seat.gpus.clone(),
                domain: domain.and_then(|(node, domain)| self.feed.domain(node, domain)),
                rank: seat.rank,
                cost: release.cost,
                quality: release.quality,
                scope: release.scope.to_string(),
                why: why.clone(),
                others: others(&all, seat.rank),
            };
            Ok((seat.pod.clone(), placement))
        };
        release.seats.iter().map(place).collect()
    }

    /// Returns the UUIDs of the GPUs of a pod, and their NICs, which its claim asks for; nothing if it has none.
    fn devices(&self, seat: &Seat) -> Result<(Vec<String>, Option<Box<Nics>>), &'static str> {
        const UNKNOWN: &str =
            "the UUIDs of the GPUs that its ResourceClaim must name are not known";
        if self.feed.named(&seat.pod).is_none() {
            return Ok((Vec::new(), None));
        }
        let node = seat.node.as_ref().ok_or(UNKNOWN)?;
        let uuids = self.feed.uuids(node, &seat.gpus);
        let uuids = uuids.filter(|uuids| !uuids.is_empty()).ok_or(UNKNOWN)?;
        let nics = self.feed.nics(&seat.pod, node, &uuids)?;
        Ok((uuids, nics))
    }

    /// Puts off a release.
    fn put_off(&mut self, release: &Release, why: &str, now: Millis) {
        tracing::warn!(job = %release.job, reason = why, "cannot release a job; retrying");
        for seat in &release.seats {
            self.feed.settle(&seat.pod, Some((now, why)));
        }
    }

    fn plan(&self) -> String {
        let number = self.plans.fetch_add(1, Ordering::Relaxed) + 1;
        format!("{}-{number}", self.term)
    }

    /// Lets a pod go whose class does not queue.
    fn let_go(&mut self, leaver: Leaver, now: Millis) {
        if leaver.stuck {
            let message = format!(
                "the pod cannot start: it gets its GPUs by a claim that the queue makes, and {}",
                leaver.why
            );
            return self.fail_one(leaver.pod, CLASS_GONE, message);
        }
        tracing::info!(pod = %leaver.pod, why = leaver.why, "letting a pod go");
        let placement = Placement {
            uuids: Vec::new(),
            nics: None,
            compute_domain: None,
            plan: self.plan(),
            at: stamp(now),
            gang: None,
            node: None,
            gpus: Vec::new(),
            domain: None,
            rank: 0,
            cost: 0.0,
            quality: 0.0,
            scope: String::new(),
            why: leaver.why,
            others: Vec::new(),
        };
        self.start(vec![(leaver.pod, placement)], "unqueued");
    }

    /// Begins to release pods together.
    fn start(&mut self, places: Vec<(Name, Placement)>, kind: &'static str) {
        let mut moves = Vec::with_capacity(places.len());
        for (pod, placement) in places {
            let Some(document) = self.feed.document(&pod) else {
                continue;
            };
            let id = self.leaves(&pod, Some(kind));
            self.feed.expect(&pod, placement.clone());
            moves.push(Move {
                pod: id,
                document,
                asks: self.feed.asks(&pod, &placement),
                placement,
                channel: None,
            });
        }
        self.write(Effect::Release(moves));
    }

    /// Makes the claim of a released pod anew, if need be for other GPUs of its node.
    fn reassign(&mut self, one: Unclaimed, now: Millis) {
        let Unclaimed { pod, without } = one;
        let Some((document, mut placement)) = self.feed.released(&pod) else {
            return;
        };
        let node = placement.node.as_deref().map(Name::from);
        let again = || {
            self.feed
                .nics(&pod, node.as_ref()?, &placement.uuids)
                .ok()?
        };
        let unexplained = without == placement.gpus;
        let other = again().filter(|nics| unexplained && Some(nics) != placement.nics.as_ref());
        if other.is_some() {
            // The GPUs may be right, and the NICs wrong.
            placement.nics = other;
        } else if !without.is_empty() {
            let pattern = self.feed.member(&pod).map(|member| member.pattern);
            let pattern = pattern.unwrap_or(Pattern::AllReduce);
            let gpus = self.planner(now).other_gpus(&pod, pattern, &without, now);
            let found = gpus.zip(node);
            let named = found.and_then(|(gpus, node)| {
                let uuids = self.feed.uuids(&node, &gpus)?;
                let nics = self.feed.nics(&pod, &node, &uuids).ok()?;
                Some((uuids, nics, gpus))
            });
            // If there are none, the pod waits for these, and fails in the end.
            let Some((uuids, nics, gpus)) = named else {
                return;
            };
            (placement.uuids, placement.nics, placement.gpus) = (uuids, nics, gpus);
            placement.domain = None;
        }
        placement.at = stamp(now);
        tracing::info!(%pod, gpus = ?placement.gpus, ?without, "making the claim of a released pod anew");
        let uid = self.feed.uid(&pod).unwrap_or_default().to_owned();
        let one = Move {
            asks: self.feed.asks(&pod, &placement),
            pod: (pod.clone(), uid),
            document,
            placement,
            channel: None,
        };
        self.feed.expect(&pod, one.placement.clone());
        self.write(Effect::ClaimAgain(Box::new(one)));
    }

    fn reject(&mut self, reject: Reject) {
        let mut members = reject.pods.iter().filter_map(|pod| self.feed.member(pod));
        let Some(member) = members.next() else {
            return;
        };
        let obstacle = self.feed.obstacle_to(&reject.job, &reject.reason);
        let about = About::from(member).joining(self.feed.runs(&reject.job));
        let why = notice::why(&reject.reason, obstacle.as_ref(), about);
        let never = reject.reason.is_never() && !member.grows;
        let message = words::timed_out(member, &why, never);
        let mut documents = Vec::with_capacity(reject.pods.len());
        for pod in reject.pods {
            let Some(document) = self.feed.document(&pod) else {
                continue;
            };
            tracing::info!(%pod, why, "failing a pod that waited too long");
            let id = self.leaves(&pod, None);
            self.feed.expect_leaving(&pod);
            documents.push((id, document));
        }
        let reason = TIMEOUT;
        self.fail(documents, Write::Reject { reason, message });
    }

    /// Fails a pod whose node is lost or does not take it, so that whoever created it can create another one.
    fn give_up(&mut self, lost: Lost) {
        let Lost { pod, reason, why } = lost;
        let message = format!("the queue released the pod to a node where it cannot start: {why}");
        self.fail_one(pod, reason, message);
    }

    /// Fails a pod that cannot start.
    fn fail_one(&mut self, pod: Name, reason: &'static str, message: String) {
        let Some(document) = self.feed.document(&pod) else {
            return;
        };
        tracing::info!(%pod, reason, message, "failing a pod that cannot start");
        self.feed.expect_leaving(&pod);
        let uid = self.feed.uid(&pod).unwrap_or_default().to_owned();
        self.fail(
            vec![((pod, uid), document)],
            Write::Reject { reason, message },
        );
    }

    fn fail(&mut self, pods: Vec<(Id, serde_json::Value)>, write: Write) {
        self.write(Effect::Fail(pods, write));
    }

    fn write(&mut self, effect: Effect) {
        self.moving += 1;
        self.effects.push(effect);
    }
}

fn stamp(now: Millis) -> Timestamp {
    Timestamp::from_millisecond(now).unwrap_or_default()
}
