//! The loop of the queue: while this process leads, changes of the cluster lead to rounds of the
//! planner, and what a round says is carried out.
//!
//! All state is in the API. A later leader reads the same objects and goes on.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use nvlink_planner::{Action, Millis, Name, Planner, Reason, Release, Settings as Rules, Waiting};
use nvlink_runtime::{
    complaints::Complaints,
    lease::{Leadership, Term},
};
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until},
};

use super::{
    Life, Placement,
    board::Board,
    clock::{self, Clock, Heard},
    events::{self, Event, Synced},
    execute::{Id, Move, Outcome, Outcomes, Writer},
    feed::{Feed, Leaver, Lost, Place},
    life,
    notice::About,
    owners::Owners,
    post::{Posted, Poster},
    tally, words,
    writes::{NODE_LOST, TIMEOUT, Write},
};
use crate::{
    decide::{Settings, pod},
    metrics::Metrics,
};

/// The longest time between two rounds.
const REST: Duration = Duration::from_secs(30);
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
}

impl Queue {
    /// Returns the queue of a cluster. `settings` names the labels of racks and zones.
    #[must_use]
    pub fn new(client: &Client, settings: &Settings, metrics: &Arc<Metrics>) -> Self {
        Self {
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
                () = self.serve(&term, &leads) => {}
                () = leadership.lost() => {}
            }
            self.metrics.queue().forget();
        }
    }

    /// Serves the queue in one term. What is dropped with it stops at once.
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
            poster: Poster::new(&self.client, &self.metrics),
            metrics: Arc::clone(&self.metrics),
            leaving: HashMap::new(),
            complaints: Complaints::default(),
            moving: 0,
            tasks: JoinSet::new(),
            term: term.number,
            plans: Arc::clone(&self.plans),
        };
        serving.ask(&self.client, Instant::now());
        let mut wake = None;
        loop {
            if serving
                .wait(&mut events, wake, &self.client)
                .await
                .is_none()
            {
                return;
            }
            if serving.synced.all() && serving.clock.is_set() {
                wake = serving.step();
            }
        }
    }
}

/// Something that ended.
enum Done {
    Written(Outcomes),
    Object(Place, Option<serde_json::Value>),
    Posted(Name, Posted),
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
}

impl Serving {
    /// Waits until something changes or it is time, and applies all that has changed; `None` if
    /// the watches have ended.
    async fn wait(
        &mut self,
        events: &mut mpsc::UnboundedReceiver<Event>,
        wake: Option<Millis>,
        client: &Client,
    ) -> Option<()> {
        let at = wake.map_or_else(|| Instant::now() + REST, |wake| self.clock.instant(wake));
        tokio::select! {
            event = events.recv() => event?.apply(&mut self.feed, &mut self.synced),
            Some(done) = self.tasks.join_next() => self.done(done, client),
            () = sleep_until(at) => {}
        }
        for _ in 0..MOST {
            let Ok(event) = events.try_recv() else { break };
            event.apply(&mut self.feed, &mut self.synced);
        }
        while let Some(done) = self.tasks.try_join_next() {
            self.done(done, client);
        }
        Some(())
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
    }

    fn done(&mut self, done: Result<Done, JoinError>, client: &Client) {
        match done {
            Ok(Done::Posted(pod, posted)) => self.posted(&pod, posted),
            Ok(Done::Written(outcomes)) => {
                self.moving = self.moving.saturating_sub(1);
                for (pod, outcome) in outcomes {
                    self.settle(&pod, outcome);
                }
            }
            Ok(Done::Object(place, object)) => {
                let missing = object.is_none();
                if missing && self.feed.needs(&place) {
                    self.fetch(place.clone(), true);
                }
                self.feed.object(place, object);
            }
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
        let failed_at = match &outcome {
            Outcome::Refused(reason) => {
                tracing::warn!(%pod, reason, "cannot write a pod of the queue; retrying");
                Some(self.clock.now())
            }
            _ => None,
        };
        self.feed.settle(pod, failed_at);
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
            self.fetch(place, false);
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
        let began = std::time::Instant::now();
        let round = self.planner.round(now);
        self.metrics.queue().round(began.elapsed());
        self.carry_out(round.actions, now);
        self.feed.flush(&mut self.planner, now);
        self.show(&round.waiting, now);
        let wakes = [resume, due, back, round.wake, self.board.next()];
        wakes.into_iter().flatten().min()
    }

    /// Begins to show what has changed.
    fn show(&mut self, waiting: &[Waiting], now: Millis) {
        if self.board.rests(now).is_none() {
            self.metrics.queue().queues(self.feed.queues());
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

    fn carry_out(&mut self, actions: Vec<Action>, now: Millis) {
        for action in actions {
            match action {
                Action::Release(release) => {
                    let places = self.places(&release, now);
                    self.start(places, words::kind(&release.why));
                }
                Action::Reject(reject) => self.reject(reject.pods, &reject.reason),
                Action::GiveBack(back) => {
                    tracing::debug!(job = %back.job, pods = back.vacant.len(), "a gang lost pods");
                }
            }
        }
    }

    /// Returns the placements of a release.
    fn places(&self, release: &Release, now: Millis) -> Vec<(Name, Placement)> {
        let (plan, at) = (self.plan(), stamp(now));
        let why = words::why(&release.why);
        tracing::info!(job = %release.job, pods = release.seats.len(), plan, why, "releasing a job");
        let seats = release.seats.iter().map(|seat| {
            let domain = seat.node.as_ref().zip(seat.domain.as_ref());
            let placement = Placement {
                plan: plan.clone(),
                at,
                node: seat.node.as_deref().map(str::to_owned),
                gpus: seat.gpus.clone(),
                domain: domain.and_then(|(node, domain)| self.feed.domain(node, domain)),
                rank: seat.rank,
                cost: release.cost,
                quality: release.quality,
                scope: release.scope.to_string(),
                why: why.clone(),
            };
            (seat.pod.clone(), placement)
        });
        seats.collect()
    }

    fn plan(&self) -> String {
        let number = self.plans.fetch_add(1, Ordering::Relaxed) + 1;
        format!("{}-{number}", self.term)
    }

    /// Lets a pod go whose class does not queue.
    fn let_go(&mut self, leaver: Leaver, now: Millis) {
        tracing::info!(pod = %leaver.pod, why = leaver.why, "letting a pod go");
        let placement = Placement {
            plan: self.plan(),
            at: stamp(now),
            node: None,
            gpus: Vec::new(),
            domain: None,
            rank: 0,
            cost: 0.0,
            quality: 0.0,
            scope: String::new(),
            why: leaver.why,
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
                placement,
            });
        }
        self.moving += 1;
        let writer = self.writer.clone();
        self.tasks
            .spawn(async move { Done::Written(writer.start(moves).await) });
    }

    fn reject(&mut self, pods: Vec<Name>, reason: &Reason) {
        let Some(member) = pods.iter().find_map(|pod| self.feed.member(pod)) else {
            return;
        };
        let About {
            class,
            project,
            scope,
        } = About::from(member);
        let why = words::sentence(reason, scope, project);
        let message =
            format!("the pod waited in the queue of class {class:?} as long as it may: {why}");
        let mut documents = Vec::with_capacity(pods.len());
        for pod in pods {
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

    /// Fails a pod whose node is lost, so that whoever created it can create another one.
    fn give_up(&mut self, lost: Lost) {
        let Lost { pod, why } = lost;
        let Some(document) = self.feed.document(&pod) else {
            return;
        };
        tracing::info!(%pod, why, "failing a pod that was released to a node that is lost");
        self.feed.expect_leaving(&pod);
        let uid = self.feed.uid(&pod).unwrap_or_default().to_owned();
        let reason = NODE_LOST;
        let message = format!("the queue released the pod to a node that is lost: {why}");
        self.fail(
            vec![((pod, uid), document)],
            Write::Reject { reason, message },
        );
    }

    fn fail(&mut self, pods: Vec<(Id, serde_json::Value)>, write: Write) {
        self.moving += 1;
        let writer = self.writer.clone();
        self.tasks
            .spawn(async move { Done::Written(writer.reject(pods, write).await) });
    }

    fn fetch(&mut self, place: Place, again: bool) {
        let owners = self.owners.clone();
        self.tasks.spawn(async move {
            let (place, object) = owners.get(place, again).await;
            Done::Object(place, object)
        });
    }
}

fn stamp(now: Millis) -> Timestamp {
    Timestamp::from_millisecond(now).unwrap_or_default()
}
