//! What the queue does besides computing, as values, and the one place that does it.

use std::sync::Arc;

use kube::Client;
use nvlink_planner::Name;
use nvlink_runtime::lease::{Leadership, Term};
use serde_json::Value;
use tokio::{
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until},
};

use crate::{
    board::Task,
    clock::{self, Heard},
    execute::{Id, Move, Outcomes, Writer},
    feed::Place,
    metrics::Metrics,
    owners::{self, Owners},
    placeholders::{Answer, Request},
    post::{Posted, Poster},
    review::Telling,
    writes::Write,
};

/// What is to be done.
pub(super) enum Effect {
    /// Release pods that start together.
    Release(Vec<Move>),
    /// Make the claim of a released pod anew.
    ClaimAgain(Box<Move>),
    /// Fail pods for one reason.
    Fail(Vec<(Id, Value)>, Write),
    /// Show why a pod waits.
    Show(Task),
    /// Tell a pod what became of its placement.
    Tell(Telling),
    /// Create a placeholder pod, or delete it.
    Placeholder(Request),
    /// Read an object of which so many requests have failed.
    Read(Place, u32),
    /// Say when the pause after so many failed requests for an object is over.
    Pause(Place, u32),
    /// Ask for the API server's time at this moment.
    AskTime(Instant),
}

/// What was done.
pub(super) enum Done {
    Written(Outcomes),
    /// An object, and how many requests failed before.
    Object(Place, u32, Option<Value>),
    /// It is time to request an object again.
    Again(Place, u32),
    Shown(Name, Posted),
    /// A pod and its UID.
    Told(Name, String, Posted),
    Time(Option<Heard>),
    /// The UID of a waiting pod, and what became of its placeholder.
    Placeholder(String, Answer),
}

/// Does things side by side. What is not done when it is dropped stops at once.
pub(super) struct Executor {
    client: Client,
    writer: Writer,
    owners: Owners,
    poster: Poster,
    tasks: JoinSet<Done>,
}

impl Executor {
    pub(super) fn new(
        client: &Client,
        leadership: &Leadership,
        term: &Term,
        metrics: &Arc<Metrics>,
    ) -> Self {
        Self {
            client: client.clone(),
            writer: Writer::new(client, leadership, term.number, metrics),
            owners: Owners::new(client),
            poster: Poster::new(client, metrics),
            tasks: JoinSet::new(),
        }
    }

    /// Begins to do something. [`Executor::next`] returns how it ended. What may wait for the API
    /// server is boxed: there may be thousands of tasks, most of which only pause.
    pub(super) fn begin(&mut self, effect: Effect) {
        let (client, writer) = (self.client.clone(), self.writer.clone());
        let (owners, poster) = (self.owners.clone(), self.poster.clone());
        self.tasks.spawn(async move {
            match effect {
                Effect::Release(moves) => Done::Written(Box::pin(writer.start(moves)).await),
                Effect::ClaimAgain(one) => Done::Written(Box::pin(writer.claim_again(*one)).await),
                Effect::Fail(pods, write) => {
                    Done::Written(Box::pin(writer.reject(pods, write)).await)
                }
                Effect::Show(task) => {
                    let (pod, posted) = Box::pin(poster.post(task)).await;
                    Done::Shown(pod, posted)
                }
                Effect::Tell(telling) => {
                    let posted = Box::pin(poster.tell(&telling)).await;
                    Done::Told(telling.pod, telling.uid, posted)
                }
                Effect::Placeholder(request) => {
                    let uid = request.uid.clone();
                    Done::Placeholder(uid, Box::pin(writer.placeholder(request)).await)
                }
                Effect::Read(place, failures) => {
                    let (place, object) = Box::pin(owners.get(place)).await;
                    Done::Object(place, failures, object)
                }
                Effect::Pause(place, failures) => {
                    tokio::time::sleep(owners::pause(failures)).await;
                    Done::Again(place, failures.saturating_add(1))
                }
                Effect::AskTime(at) => {
                    sleep_until(at).await;
                    Done::Time(clock::ask(client).await)
                }
            }
        });
    }

    /// Returns what ends next. Cancelling it loses nothing.
    pub(super) async fn next(&mut self) -> Done {
        match self.tasks.join_next().await {
            Some(ended) => done(ended),
            None => std::future::pending().await,
        }
    }

    /// Returns what has ended already.
    pub(super) fn try_next(&mut self) -> Option<Done> {
        self.tasks.try_join_next().map(done)
    }
}

/// After a panic, which the supervisor's hook has logged, what the task was to write is expected
/// forever. So the state of the term ends with it.
fn done(ended: Result<Done, JoinError>) -> Done {
    ended.unwrap_or_else(|error| std::panic::resume_unwind(Box::new(error.to_string())))
}
