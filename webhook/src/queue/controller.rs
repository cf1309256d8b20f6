//! The loop of the queue: while this process leads, changes of the cluster lead to rounds of the
//! planner, and what a round says is carried out.
//!
//! All state is in the API. A later leader reads the same objects and goes on.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use nvlink_planner::{Action, Millis, Name, Planner, Release, Round, Settings as Rules};
use nvlink_runtime::lease::{Leadership, Term};
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until},
};

use super::{
    Placement,
    clock::{self, Clock},
    events::{self, Event, Synced},
    execute::{Move, Outcome, Outcomes, Writer},
    feed::{Feed, Leaver, Place},
    owners::Owners,
    words,
};
use crate::decide::Settings;

/// The time between two questions for the API server's time.
const ASK: Duration = Duration::from_secs(30);
/// The most events that are applied before a round.
const MOST: usize = 10_000;

/// The queue.
#[derive(Clone)]
pub struct Queue {
    client: Client,
    settings: Settings,
}

impl Queue {
    /// Returns the queue of a cluster. `settings` names the labels of racks and zones.
    #[must_use]
    pub fn new(client: &Client, settings: &Settings) -> Self {
        Self {
            client: client.clone(),
            settings: settings.clone(),
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
            writer: Writer::new(&self.client, leadership, term.number),
            owners: Owners::new(&self.client),
            tasks: JoinSet::new(),
            term: term.number,
            plans: 0,
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
            if serving.synced.all() {
                wake = serving.step();
            }
        }
    }
}

/// Something that ended.
enum Done {
    Written(Outcomes),
    Object(Place, Option<serde_json::Value>),
    Time(Option<Millis>),
}

/// The queue in one term.
struct Serving {
    feed: Feed,
    planner: Planner,
    synced: Synced,
    clock: Clock,
    writer: Writer,
    owners: Owners,
    tasks: JoinSet<Done>,
    term: i32,
    /// The number of plans so far.
    plans: u64,
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
        let at = wake.map_or_else(|| Instant::now() + ASK, |wake| self.clock.instant(wake));
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

    fn done(&mut self, done: Result<Done, JoinError>, client: &Client) {
        match done {
            Ok(Done::Written(outcomes)) => {
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
                if let Some(time) = time {
                    self.clock.hear(time);
                }
                self.ask(client, Instant::now() + ASK);
            }
            // A panic: the supervisor's hook has logged it. What the task was to write is
            // expected forever, so end the term's state by panicking, too.
            Err(error) => std::panic::resume_unwind(Box::new(error.to_string())),
        }
    }

    fn settle(&mut self, pod: &Name, outcome: Outcome) {
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
        self.feed.flush(&mut self.planner, now);
        for (pod, placement) in self.feed.committed() {
            tracing::info!(%pod, plan = placement.plan, "releasing a pod whose gang was released");
            self.start(vec![(pod, placement)]);
        }
        self.feed.flush(&mut self.planner, now);
        let round = self.planner.round(now);
        let wake = round.wake;
        self.carry_out(round, now);
        self.feed.flush(&mut self.planner, now);
        resume.into_iter().chain(due).chain(wake).min()
    }

    fn carry_out(&mut self, round: Round, now: Millis) {
        for action in round.actions {
            match action {
                Action::Release(release) => {
                    let places = self.places(&release, now);
                    self.start(places);
                }
                Action::Reject(reject) => {
                    let why = words::reason(&reject.reason);
                    self.reject(reject.pods, &why);
                }
                Action::GiveBack(back) => {
                    tracing::debug!(job = %back.job, pods = back.vacant.len(), "a gang lost pods");
                }
            }
        }
    }

    /// Returns the placements of a release.
    fn places(&mut self, release: &Release, now: Millis) -> Vec<(Name, Placement)> {
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

    fn plan(&mut self) -> String {
        self.plans += 1;
        format!("{}-{}", self.term, self.plans)
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
        self.start(vec![(leaver.pod, placement)]);
    }

    /// Begins to release pods together.
    fn start(&mut self, places: Vec<(Name, Placement)>) {
        let mut moves = Vec::with_capacity(places.len());
        for (pod, placement) in places {
            let Some(document) = self.feed.document(&pod) else {
                continue;
            };
            self.feed.expect(&pod, placement.clone());
            moves.push(Move {
                pod,
                document,
                placement,
            });
        }
        let writer = self.writer.clone();
        self.tasks
            .spawn(async move { Done::Written(writer.start(moves).await) });
    }

    fn reject(&mut self, pods: Vec<Name>, why: &str) {
        let class = pods
            .iter()
            .find_map(|pod| Some(self.feed.member(pod)?.class.clone()));
        let class = class.unwrap_or_default();
        let message =
            format!("the pod waited in the queue of class {class:?} as long as it may: {why}");
        let mut documents = Vec::with_capacity(pods.len());
        for pod in pods {
            let Some(document) = self.feed.document(&pod) else {
                continue;
            };
            tracing::info!(%pod, why, "failing a pod that waited too long");
            self.feed.expect_leaving(&pod);
            documents.push((pod, document));
        }
        let writer = self.writer.clone();
        self.tasks
            .spawn(async move { Done::Written(writer.reject(documents, message).await) });
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
