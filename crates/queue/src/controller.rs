//! The loop of the queue, while this process leads: what happened changes the `State`, the state
//! says what to do next (`State::step`), and the `Executor` does it.
//!
//! All state is in the API. A later leader reads the same objects and goes on.

mod effect;
mod nodes;
mod placed;
mod plan;
mod state;

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use kube::Client;
use nvlink_admission::decide::Settings;
use nvlink_cluster::{
    enforced::{self, Enforced},
    kinds::Informers,
    seen::Seen,
};
use nvlink_runtime::{
    lease::{Leadership, Term},
    supervise::Heartbeat,
};
use tokio::{
    sync::{mpsc::UnboundedReceiver, watch},
    time::{Instant, sleep_until},
};

use self::{
    effect::{Done, Executor},
    state::State,
};
use super::{
    apart,
    events::{Event, Events},
    idle,
    post::Poster,
};
use crate::metrics::Metrics;

/// The most events that are applied before a round.
const MOST: usize = 10_000;
/// How long the leader may compute before it is stuck. A round ends after a number of steps, which
/// is seconds.
pub const STUCK: Duration = Duration::from_secs(60);

/// The queue.
#[derive(Clone)]
pub struct Queue {
    client: Client,
    informers: Informers,
    settings: Settings,
    /// The namespace in which placeholder pods are created; `None`: there are none.
    placeholders: Option<String>,
    metrics: Arc<Metrics>,
    /// The number of plans so far. This process may lead several times in a term of one number.
    plans: Arc<AtomicU64>,
    /// Gets the nodes that the queue cannot use as they are.
    seen: watch::Sender<Option<Seen>>,
    /// What the policies know: they admit what the leader writes once they know its term.
    enforced: watch::Receiver<Option<Enforced>>,
    /// Beats while the leader computes: `/livez` says so if that takes too long.
    heart: Arc<Heartbeat>,
}

impl Queue {
    /// Returns the queue of a cluster. `settings` names the labels of racks and zones.
    #[must_use]
    pub fn new(
        client: &Client,
        informers: &Informers,
        settings: &Settings,
        metrics: &Arc<Metrics>,
        seen: watch::Sender<Option<Seen>>,
        enforced: watch::Receiver<Option<Enforced>>,
        heart: Heartbeat,
    ) -> Self {
        Self {
            seen,
            enforced,
            heart: Arc::new(heart),
            client: client.clone(),
            informers: informers.clone(),
            settings: settings.clone(),
            placeholders: None,
            metrics: Arc::clone(metrics),
            plans: Arc::default(),
        }
    }

    /// Requests nodes with placeholder pods in `namespace`, for the classes that allow it.
    #[must_use]
    pub fn with_placeholders(self, namespace: Option<String>) -> Self {
        Self {
            placeholders: namespace,
            ..self
        }
    }

    /// Serves the queue, and tells people of pods that nothing keeps together, whenever this replica
    /// leads. Never ends.
    pub async fn follow(self, leadership: Leadership) {
        let poster = Poster::new(&self.client, &self.metrics);
        let told = apart::follow(self.client.clone(), poster, leadership.clone());
        tokio::join!(told, self.serve_terms(leadership));
    }

    async fn serve_terms(&self, mut leadership: Leadership) {
        loop {
            let term = leadership.gained().await;
            let leads = leadership.clone();
            tokio::select! {
                () = self.lead_if_admitted(&term, &leads) => {}
                () = leadership.lost(&term) => {}
            }
            self.forget();
        }
    }

    /// Waits until the policies admit what this leader writes, and leads.
    async fn lead_if_admitted(&self, term: &Term, leadership: &Leadership) {
        enforced::admitted(self.enforced.clone(), term.number).await;
        self.lead(term, leadership).await;
    }

    /// Removes the metrics that only a leader knows.
    fn forget(&self) {
        self.metrics.queue().forget();
        self.metrics.placements().forget();
    }

    /// Serves the queue in one term whenever there is anything to do.
    async fn lead(&self, term: &Term, leadership: &Leadership) {
        loop {
            idle::needed(&self.client, &self.informers).await;
            tracing::info!("serving the queue: a class queues, or a pod waits");
            self.serve(term, leadership).await;
            tracing::info!("the queue rests: no class queues, and no pod waits");
            self.forget();
        }
    }

    /// Serves the queue in one term until it has nothing to do. What is dropped with it stops at
    /// once.
    async fn serve(&self, term: &Term, leadership: &Leadership) {
        let mut events = Events::follow(&self.informers);
        let mut executor = Executor::new(&self.client, leadership, term, &self.metrics);
        let mut state = State::new(
            &self.settings,
            self.placeholders.clone(),
            &self.metrics,
            term,
            &self.plans,
        );
        loop {
            for effect in state.effects() {
                executor.begin(effect);
            }
            let happened = wait(&mut events.receiver, &mut executor, state.due()).await;
            let Some(happened) = happened else { return };
            self.heart.beat();
            if state.apply(happened) {
                state.step();
                self.tell(state.seen());
            }
            self.heart.rest();
            if state.is_idle() {
                return;
            }
        }
    }

    /// Says which nodes the queue cannot use as they are, if that has changed.
    fn tell(&self, now: Seen) {
        let now = Some(now);
        self.seen.send_if_modified(|seen| {
            let changed = *seen != now;
            *seen = now;
            changed
        });
    }
}

/// What happened since the last look.
#[derive(Default)]
struct Happened {
    events: Vec<Event>,
    done: Vec<Done>,
    /// It was time to look again.
    due: bool,
}

/// Waits until something happens or it is time, and returns all that has happened; `None` if the
/// watches have ended.
async fn wait(
    events: &mut UnboundedReceiver<Event>,
    executor: &mut Executor,
    due: Instant,
) -> Option<Happened> {
    let mut happened = Happened::default();
    tokio::select! {
        event = events.recv() => happened.events.push(event?),
        done = executor.next() => happened.done.push(done),
        () = sleep_until(due) => happened.due = true,
    }
    while happened.events.len() < MOST
        && let Ok(event) = events.try_recv()
    {
        happened.events.push(event);
    }
    while let Some(done) = executor.try_next() {
        happened.done.push(done);
    }
    Some(happened)
}

#[cfg(test)]
mod tests;
