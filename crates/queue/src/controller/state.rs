//! The state of the queue in one term, and what changes it.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use nvlink_admission::decide::Settings;
use nvlink_api::pod;
use nvlink_cluster::seen::Seen;
use nvlink_planner::{Millis, Name, Planner, Settings as Rules, Waiting};
use nvlink_runtime::{complaints::Complaints, lease::Term};
use tokio::time::Instant;

use super::{
    Happened,
    effect::{Done, Effect},
};
use crate::{
    Life,
    board::Board,
    clock::{Clock, Heard},
    events::{Event, Synced},
    execute::{Id, Outcome},
    feed::Feed,
    metrics::Metrics,
    placeholders::Placeholders,
    post::{Failed, Posted},
    review::Review,
};

/// The longest time between two rounds: expected starts that have passed move on, milliseconds.
pub(super) const REST: Millis = 10_000;
/// For how long no class queues and no pod waits before the large watches end.
const IDLE: Duration = Duration::from_secs(30);

/// A pod that is being released or failed.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    /// How it starts, as metrics have it; `None` if it fails.
    kind: Option<&'static str>,
    /// When it was created, by the API server's present clock.
    created: Option<Millis>,
    /// The first expected start that it showed.
    first: Option<Millis>,
}

/// The queue in one term. It does nothing: what is to be done are [`State::effects`].
pub(super) struct State {
    pub(super) feed: Feed,
    /// Is fed by [`State::planner`] only.
    planner: Planner,
    synced: Synced,
    pub(super) clock: Clock,
    pub(super) board: Board,
    pub(super) review: Review,
    pub(super) placeholders: Placeholders,
    pub(super) metrics: Arc<Metrics>,
    /// The pods that are being released or failed.
    leaving: HashMap<Id, Leaving>,
    complaints: Complaints,
    /// The number of jobs whose pods are being written.
    pub(super) moving: usize,
    pub(super) term: i32,
    pub(super) plans: Arc<AtomicU64>,
    /// When a class last queued or a pod waited.
    needed: Instant,
    pub(super) planned: Planned,
    /// When to look after the placeholder pods again.
    pub(super) requests: Option<Millis>,
    /// When to look again although nothing changes.
    pub(super) wake: Option<Millis>,
    pub(super) effects: Vec<Effect>,
}

/// What the latest round said.
#[derive(Debug, Default)]
pub(super) struct Planned {
    pub(super) waiting: Vec<Waiting>,
    /// When the next round is due although nothing changes.
    pub(super) wake: Option<Millis>,
    /// After this time there is another one in any case.
    pub(super) until: Millis,
}

impl State {
    /// Returns the state before anything is known.
    pub(super) fn new(
        settings: &Settings,
        placeholders: Option<String>,
        metrics: &Arc<Metrics>,
        term: &Term,
        plans: &Arc<AtomicU64>,
    ) -> Self {
        Self {
            feed: Feed::new(settings.clone()),
            planner: Planner::new(Rules::default()),
            synced: Synced::default(),
            clock: Clock::start(),
            board: Board::default(),
            review: Review::default(),
            placeholders: Placeholders::new(placeholders),
            metrics: Arc::clone(metrics),
            leaving: HashMap::new(),
            complaints: Complaints::default(),
            moving: 0,
            term: term.number,
            plans: Arc::clone(plans),
            needed: Instant::now(),
            planned: Planned::default(),
            requests: None,
            wake: None,
            effects: vec![Effect::AskTime(Instant::now())],
        }
    }

    /// Takes what is to be done.
    pub(super) fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Returns the planner, which knows all that the feed knows.
    pub(super) fn planner(&mut self, now: Millis) -> &mut Planner {
        self.feed.flush(&mut self.planner, now);
        &mut self.planner
    }

    /// Returns when to look again although nothing changes.
    pub(super) fn due(&self) -> Instant {
        match self.wake {
            Some(wake) => self.clock.instant(wake),
            None => Instant::now() + Duration::from_millis(REST.unsigned_abs()),
        }
    }

    /// Returns what the status of classes shows of the queue.
    pub(super) fn seen(&self) -> Seen {
        Seen {
            shared: self.feed.shared_gpus(),
            unsteady: self.feed.unsteady(),
            others: self.feed.others(),
        }
    }

    /// Takes over what happened. Returns whether there may be something to do.
    pub(super) fn apply(&mut self, happened: Happened) -> bool {
        let Happened { events, done, due } = happened;
        let (synced, due) = (self.synced, due || !done.is_empty());
        for event in events {
            match &event {
                // They never run.
                Event::Pod(pod) if self.placeholders.set(pod) => continue,
                Event::PodGone(pod) => self.placeholders.gone(pod),
                Event::AllPods(pods) => self.placeholders.retain(pods),
                _ => {}
            }
            event.apply(&mut self.feed, &mut self.synced);
        }
        for done in done {
            self.done(done);
        }
        // Most pods of a cluster have nothing to do with the queue.
        let due = due || self.synced != synced || self.feed.has_changed();
        due && self.synced.all() && self.clock.is_set()
    }

    /// Reports whether the queue has had nothing to do for some time.
    pub(super) fn is_idle(&mut self) -> bool {
        if !self.synced.all() || self.moving > 0 || !self.feed.is_idle() {
            self.needed = Instant::now();
        }
        self.needed.elapsed() > IDLE
    }

    fn hear(&mut self, heard: Option<Heard>) {
        let Some(jump) = heard.and_then(|heard| self.clock.hear(heard)) else {
            return;
        };
        let seconds = jump.by / 1_000;
        tracing::warn!(
            seconds,
            "the API server's clock was set; pods that wait may wait as long as before"
        );
        self.feed.jumped(jump.by, jump.before);
        self.board.jumped(jump.by);
        self.review.jumped(jump.by);
        self.placeholders.jumped(jump.by);
        self.planned.until = Millis::MIN;
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Shown(pod, posted) => self.shown(&pod, posted),
            Done::Told(pod, uid, posted) => self.told(&pod, &uid, posted),
            Done::Written(outcomes) => {
                self.moving = self.moving.saturating_sub(1);
                for (pod, outcome) in outcomes {
                    self.settle(&pod, outcome);
                }
            }
            Done::Object(place, failures, object) => {
                if object.is_none() && self.feed.needs(&place) {
                    self.effects.push(Effect::Pause(place.clone(), failures));
                }
                if self.feed.has(&place) {
                    self.feed.object(place, object);
                }
            }
            Done::Again(place, failures) => {
                if self.feed.needs(&place) {
                    self.effects.push(Effect::Read(place, failures));
                }
            }
            Done::Placeholder(uid, answer) => {
                let failed = self.placeholders.answered(&uid, answer, self.clock.now());
                if let Some(reason) = failed
                    && self.complaints.is_due(&reason, std::time::Instant::now())
                {
                    tracing::warn!(
                        uid,
                        reason,
                        "cannot request a node with a placeholder pod; retrying"
                    );
                }
            }
            Done::Time(time) => {
                self.hear(time);
                let next = Instant::now() + self.clock.pause();
                self.effects.push(Effect::AskTime(next));
            }
        }
    }

    fn shown(&mut self, pod: &Name, posted: Posted) {
        self.board.posted(pod, posted.written, self.clock.now());
        if let Some(failed) = posted.failed {
            self.complain(pod, failed, "cannot show why a pod waits; retrying");
        }
    }

    /// Logs that a pod does not show something, unless the same was logged a short time ago.
    pub(super) fn complain(&mut self, pod: &Name, failed: Failed, what: &'static str) {
        let Failed {
            write,
            reason,
            after,
        } = failed;
        if self.complaints.is_due(&reason, std::time::Instant::now()) {
            let seconds = after.as_secs();
            tracing::warn!(%pod, write, seconds, reason, "{what}");
        }
    }

    fn settle(&mut self, id: &Id, outcome: Outcome) {
        let leaving = self.leaving.remove(id);
        if let (Some(leaving), Outcome::Written(current)) = (leaving, &outcome) {
            self.count(leaving, current);
        }
        let (pod, uid) = id;
        if matches!(outcome, Outcome::Stopped) {
            // Its GPUs stay taken until the term's state is dropped, which is about to happen.
            return;
        }
        if self.feed.uid(pod) != Some(uid) {
            // The watch has shown its end meanwhile: an earlier state must not bring it back.
            return;
        }
        let failed = match &outcome {
            Outcome::Refused(reason) => {
                tracing::warn!(%pod, reason, "cannot write a pod of the queue; retrying");
                Some((self.clock.now(), reason.as_str()))
            }
            _ => None,
        };
        self.feed.settle(pod, failed);
        match outcome {
            Outcome::Written(current) | Outcome::Changed(current) => self.feed.pod(current),
            Outcome::Gone => self.feed.gone(pod),
            Outcome::Refused(_) | Outcome::Stopped => {}
        }
    }

    /// Counts a pod that has left the queue.
    fn count(&self, leaving: Leaving, pod: &serde_json::Value) {
        let class = pod::metadata(pod, "labels", nvlink_topology::labels::CLASS);
        let class = class
            .and_then(serde_json::Value::as_str)
            .unwrap_or_default();
        let now = self.clock.now();
        let since = |at: Millis| Duration::from_millis(now.abs_diff(at));
        match (leaving.kind, Life::of(pod)) {
            // One of a gang that was only prepared.
            (_, Life::Waiting { .. }) => {}
            (None, _) => self.metrics.queue().rejected(class),
            (Some(kind), _) => {
                let waited = leaving.created.map(since);
                let error = leaving.first.map(since);
                self.metrics.queue().released(class, kind, waited, error);
            }
        }
    }

    /// Records that the queue begins to release or fail a pod, and returns its id.
    pub(super) fn leaves(&mut self, pod: &Name, kind: Option<&'static str>) -> Id {
        let uid = self.feed.uid(pod).unwrap_or_default().to_owned();
        let leaving = Leaving {
            kind,
            created: self.feed.created(pod),
            first: self.board.first(pod, &uid),
        };
        let id = (pod.clone(), uid);
        self.leaving.insert(id.clone(), leaving);
        id
    }
}
