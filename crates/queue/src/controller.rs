//! The loop of the queue: while this process leads, changes of the cluster lead to rounds of the
//! planner, and what a round says is carried out.
//!
//! All state is in the API. A later leader reads the same objects and goes on.

mod act;
mod placed;

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use kube::Client;
use nvlink_admission::decide::Settings;
use nvlink_api::pod;
use nvlink_cluster::exclusive::SharedGpus;
use nvlink_planner::{Millis, Name, Planner, Settings as Rules, Waiting};
use nvlink_runtime::{
    complaints::Complaints,
    lease::{Leadership, Term},
};
use tokio::{
    sync::{mpsc, watch},
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until},
};

use super::{
    Life,
    board::Board,
    clock::{self, Clock, Heard},
    events::{self, Event, Synced},
    execute::{Id, Outcome, Outcomes, Writer},
    feed::{Feed, Place},
    idle, life,
    owners::{self, Owners},
    post::{Posted, Poster},
    review::Review,
    tally,
};
use crate::metrics::Metrics;

/// The longest time between two rounds: expected starts that have passed move on, milliseconds.
const REST: Millis = 10_000;
/// For how long no class queues and no pod waits before the large watches end.
const IDLE: Duration = Duration::from_secs(30);
/// The most events that are applied before a round.
const MOST: usize = 10_000;

/// The queue.
#[derive(Clone)]
pub struct Queue {
    client: Client,
    settings: Settings,
    metrics: Arc<Metrics>,
    /// The number of plans so far. This process may lead several times in a term of one number.
    plans: Arc<AtomicU64>,
    /// Gets the nodes whose GPUs the queue does not use, because claims share them.
    shared: watch::Sender<Option<SharedGpus>>,
}

impl Queue {
    /// Returns the queue of a cluster. `settings` names the labels of racks and zones.
    #[must_use]
    pub fn new(
        client: &Client,
        settings: &Settings,
        metrics: &Arc<Metrics>,
        shared: watch::Sender<Option<SharedGpus>>,
    ) -> Self {
        Self {
            shared,
            client: client.clone(),
            settings: settings.clone(),
            metrics: Arc::clone(metrics),
            plans: Arc::default(),
        }
    }

    /// Serves the queue whenever this replica leads. Never ends.
    pub async fn follow(self, mut leadership: Leadership) {
        loop {
            let term = leadership.gained().await;
            let leads = leadership.clone();
            tokio::select! {
                () = self.lead(&term, &leads) => {}
                () = leadership.lost(&term) => {}
            }
            self.forget();
        }
    }

    /// Removes the metrics that only a leader knows.
    fn forget(&self) {
        self.metrics.queue().forget();
        self.metrics.placements().forget();
    }

    /// Serves the queue in one term whenever there is anything to do.
    async fn lead(&self, term: &Term, leadership: &Leadership) {
        loop {
            idle::needed(&self.client).await;
            tracing::info!("serving the queue: a class queues, or a pod waits");
            self.serve(term, leadership).await;
            tracing::info!("the queue rests: no class queues, and no pod waits");
            self.forget();
        }
    }

    /// Serves the queue in one term until it has nothing to do. What is dropped with it stops at
    /// once.
    async fn serve(&self, term: &Term, leadership: &Leadership) {
        let mut watches = JoinSet::new();
        let mut events = events::follow(&self.client, &mut watches);
        let mut serving = Serving {
            feed: Feed::new(self.settings.clone()),
            planner: Planner::new(Rules::default()),
            synced: Synced::default(),
            clock: Clock::start(),
            writer: Writer::new(&self.client, leadership, term.number, &self.metrics),
            owners: Owners::new(&self.client),
            board: Board::default(),
            review: Review::default(),
            poster: Poster::new(&self.client, &self.metrics),
            metrics: Arc::clone(&self.metrics),
            leaving: HashMap::new(),
            complaints: Complaints::default(),
            moving: 0,
            tasks: JoinSet::new(),
            term: term.number,
            plans: Arc::clone(&self.plans),
            needed: Instant::now(),
            planned: Planned::default(),
        };
        serving.ask(&self.client, Instant::now());
        let mut wake = None;
        while let Some(due) = serving.wait(&mut events, wake, &self.client).await {
            if due && serving.synced.all() && serving.clock.is_set() {
                wake = serving.step();
                let now = Some(serving.feed.shared_gpus());
                self.shared.send_if_modified(|shared| {
                    let changed = *shared != now;
                    *shared = now;
                    changed
                });
            }
            if serving.is_idle() {
                return;
            }
        }
    }
}

/// Something that ended.
enum Done {
    Written(Outcomes),
    /// An object, and how many requests failed before.
    Object(Place, u32, Option<serde_json::Value>),
    /// It is time to request an object again.
    Again(Place, u32),
    Posted(Name, Posted),
    /// A pod and its UID.
    Told(Name, String, Posted),
    Time(Option<Heard>),
}

/// A pod that is being released or failed.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    /// How it starts, as metrics have it; `None` if it fails.
    kind: Option<&'static str>,
    /// The first expected start that it showed.
    first: Option<Millis>,
}

/// The queue in one term.
struct Serving {
    feed: Feed,
    planner: Planner,
    synced: Synced,
    clock: Clock,
    writer: Writer,
    owners: Owners,
    board: Board,
    review: Review,
    poster: Poster,
    metrics: Arc<Metrics>,
    /// The pods that are being released or failed.
    leaving: HashMap<Id, Leaving>,
    complaints: Complaints,
    /// The number of jobs whose pods are being written.
    moving: usize,
    tasks: JoinSet<Done>,
    term: i32,
    plans: Arc<AtomicU64>,
    /// When a class last queued or a pod waited.
    needed: Instant,
    planned: Planned,
}

/// What the latest round said.
#[derive(Debug, Default)]
struct Planned {
    waiting: Vec<Waiting>,
    /// When the next round is due although nothing changes.
    wake: Option<Millis>,
    /// After this time there is another one in any case.
    until: Millis,
}

impl Serving {
    /// Waits until something changes or it is time, and applies all that has changed. Returns
    /// whether a round may say something new; `None` if the watches have ended.
    async fn wait(
        &mut self,
        events: &mut mpsc::UnboundedReceiver<Event>,
        wake: Option<Millis>,
        client: &Client,
    ) -> Option<bool> {
        let at = wake.map_or_else(
            || Instant::now() + Duration::from_millis(REST.unsigned_abs()),
            |wake| self.clock.instant(wake),
        );
        let (synced, mut due) = (self.synced, true);
        tokio::select! {
            event = events.recv() => {
                event?.apply(&mut self.feed, &mut self.synced);
                due = false;
            }
            Some(done) = self.tasks.join_next() => self.done(done, client),
            () = sleep_until(at) => {}
        }
        for _ in 0..MOST {
            let Ok(event) = events.try_recv() else { break };
            event.apply(&mut self.feed, &mut self.synced);
        }
        while let Some(done) = self.tasks.try_join_next() {
            self.done(done, client);
            due = true;
        }
        // Most pods of a cluster have nothing to do with the queue.
        Some(due || self.synced != synced || self.feed.has_changed())
    }

    /// Reports whether the queue has had nothing to do for some time.
    fn is_idle(&mut self) -> bool {
        if !self.synced.all() || self.moving > 0 || !self.feed.is_idle() {
            self.needed = Instant::now();
        }
        self.needed.elapsed() > IDLE
    }

    /// Asks for the API server's time at `at`.
    fn ask(&mut self, client: &Client, at: Instant) {
        let client = client.clone();
        self.tasks.spawn(async move {
            sleep_until(at).await;
            Done::Time(clock::ask(client).await)
        });
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
        self.planned.until = Millis::MIN;
    }

    fn done(&mut self, done: Result<Done, JoinError>, client: &Client) {
        match done {
            Ok(Done::Posted(pod, posted)) => self.posted(&pod, posted),
            Ok(Done::Told(pod, uid, posted)) => self.told(&pod, &uid, posted),
            Ok(Done::Written(outcomes)) => {
                self.moving = self.moving.saturating_sub(1);
                for (pod, outcome) in outcomes {
                    self.settle(&pod, outcome);
                }
            }
            Ok(Done::Object(place, failures, object)) => {
                if object.is_none() && self.feed.needs(&place) {
                    self.fetch_again(place.clone(), failures);
                }
                if self.feed.has(&place) {
                    self.feed.object(place, object);
                }
            }
            Ok(Done::Again(place, failures)) if self.feed.needs(&place) => {
                self.fetch(place, failures);
            }
            Ok(Done::Again(..)) => {}
            Ok(Done::Time(time)) => {
                self.hear(time);
                self.ask(client, Instant::now() + self.clock.pause());
            }
            // A panic: the supervisor's hook has logged it. What the task was to write is
            // expected forever, so end the term's state by panicking, too.
            Err(error) => std::panic::resume_unwind(Box::new(error.to_string())),
        }
    }

    fn posted(&mut self, pod: &Name, posted: Posted) {
        self.board.posted(pod, posted.written, self.clock.now());
        if let Some(reason) = posted.failed
            && self.complaints.is_due(&reason, std::time::Instant::now())
        {
            tracing::warn!(%pod, reason, "cannot show why a pod waits; retrying");
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
                let created = life::time(pod, &["metadata", "creationTimestamp"]);
                let waited = created.map(|at| since(at.as_millisecond()));
                let error = leaving.first.map(since);
                self.metrics.queue().released(class, kind, waited, error);
            }
        }
    }

    /// Records that the queue begins to release or fail a pod, and returns its id.
    fn leaves(&mut self, pod: &Name, kind: Option<&'static str>) -> Id {
        let uid = self.feed.uid(pod).unwrap_or_default().to_owned();
        let first = self.board.first(pod, &uid);
        let id = (pod.clone(), uid);
        self.leaving.insert(id.clone(), Leaving { kind, first });
        id
    }

    /// Does what the present state demands, and returns when to look again.
    fn step(&mut self) -> Option<Millis> {
        for place in self.feed.wanted() {
            self.fetch(place, 0);
        }
        let now = self.clock.now();
        let resume = self.feed.resume(now);
        let (leavers, due) = self.feed.leavers(now);
        for leaver in leavers {
            self.let_go(leaver, now);
        }
        let (lost, back) = self.feed.lost(now);
        for lost in lost {
            self.give_up(lost);
        }
        self.feed.flush(&mut self.planner, now);
        for (pod, placement) in self.feed.committed() {
            tracing::info!(%pod, plan = placement.plan, "releasing a pod whose gang was released");
            self.start(vec![(pod, placement)], "resumed");
        }
        self.feed.flush(&mut self.planner, now);
        let (unclaimed, check) = self.feed.unclaimed(now);
        for one in unclaimed {
            self.reassign(one, now);
        }
        // What the queue shows comes back as changes of pods, and changes no plan.
        if now >= self.planned.until || !self.planner.is_settled(now) {
            self.plan_all(now);
        }
        self.show(now);
        self.review(now);
        let (outdated, reread) = self.feed.outdated(now);
        for place in outdated {
            self.fetch(place, 0);
        }
        let next = self.board.next();
        let told = self.review.next();
        let wakes = [
            resume,
            due,
            back,
            check,
            self.planned.wake,
            next,
            reread,
            told,
        ];
        wakes.into_iter().flatten().min()
    }

    /// Asks the planner, and begins to do what it says.
    fn plan_all(&mut self, now: Millis) {
        let began = std::time::Instant::now();
        let round = self.planner.round(now);
        self.metrics.queue().round(began.elapsed());
        self.carry_out(round.actions, now);
        self.feed.flush(&mut self.planner, now);
        self.planned = Planned {
            waiting: round.waiting,
            wake: round.wake,
            until: now.saturating_add(REST),
        };
    }

    /// Begins to show what has changed.
    fn show(&mut self, now: Millis) {
        let waiting = &self.planned.waiting;
        if self.board.rests(now).is_none() {
            self.metrics.queue().queues(self.feed.queues());
            self.count_from_zero();
            let depth = tally::depth(waiting, &self.feed, now);
            self.metrics.queue().depth(&depth);
        }
        for task in self.board.look(waiting, &self.feed, self.moving > 0, now) {
            let poster = self.poster.clone();
            self.tasks.spawn(async move {
                let (pod, posted) = poster.post(task).await;
                Done::Posted(pod, posted)
            });
        }
    }

    /// Requests an object; as many requests as `failures` have failed.
    fn fetch(&mut self, place: Place, failures: u32) {
        let owners = self.owners.clone();
        self.tasks.spawn(async move {
            let (place, object) = owners.get(place).await;
            Done::Object(place, failures, object)
        });
    }

    fn fetch_again(&mut self, place: Place, failures: u32) {
        self.tasks.spawn(async move {
            tokio::time::sleep(owners::pause(failures)).await;
            Done::Again(place, failures.saturating_add(1))
        });
    }
}
