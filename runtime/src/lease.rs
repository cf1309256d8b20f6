//! What one replica alone may do is done by the one that holds a Lease.
//!
//! A [`Candidate`] takes the Lease when nobody has it, renews it, and gives it
//! back when asked to. A [`Leadership`] says whether this process leads, and
//! until when: a leader that cannot renew the Lease ceases to lead, by its own
//! clock, while the Lease still has a third of its time, before anybody else
//! may take it. Clocks of other machines count for nothing: a Lease is free
//! when nobody has renewed it for its duration since this process first saw it
//! so.
//!
//! Only one of two that reach for the Lease gets it, since each write names the
//! version that was read. What a leader wrote at the very end of its term may
//! still arrive after it: writes that two leaders must not both make are to
//! name the version that they are about, or to carry the [`Term::number`].
//!
//! The shape is kubert's and client-go's. No crate does the same on kube 5:
//! kube-leader-election is made for kube 4, kubert's lease comes with a
//! runtime of its own, and kube-lease-manager goes by the clocks of other
//! machines, takes a Lease over without naming the version it read, and says
//! that it leads for as long as the API server does not answer.

mod record;

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, api::PostParams};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{client, complaints::Complaints};
use record::{Observed, released};

/// How long a Lease lasts that is not renewed: so long nobody leads after a
/// leader was killed.
const DURATION: Duration = Duration::from_secs(15);
/// For so long a leader leads after it asked to renew the Lease.
const TERM: Duration = Duration::from_secs(10);
/// Between two looks at the Lease, each of which renews it where it is ours.
const LOOK: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(4);

/// A time in which this process leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// It leads until then, if the Lease is not renewed; a renewal moves it on.
    pub until: Instant,
    /// Counts changes of the holder: of two leaders the later has the higher number.
    pub number: i32,
}

/// Whether this process leads. Clones say the same.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<Option<Term>>);

impl Leadership {
    /// The term, if this process leads now.
    #[must_use]
    pub fn term(&self) -> Option<Term> {
        let term = self.0.borrow().clone();
        term.filter(|term| Instant::now() < term.until)
    }

    /// Waits until this process leads.
    pub async fn gained(&mut self) -> Term {
        loop {
            self.0.mark_unchanged();
            if let Some(term) = self.term() {
                return term;
            }
            self.changed().await;
        }
    }

    /// Waits until this process does not lead: the Lease was lost or given
    /// back, or it could not be renewed in time.
    pub async fn lost(&mut self) {
        loop {
            self.0.mark_unchanged();
            let Some(term) = self.term() else { return };
            tokio::select! {
                () = sleep_until(term.until) => {}
                () = self.changed() => {}
            }
        }
    }

    async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // The candidate is gone, and with it every hope of another term.
            std::future::pending::<()>().await;
        }
    }
}

/// What [`Candidate::run`] and [`Candidate::resign`] tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Lead,
    Resign,
    Resigned,
}

/// Reaches for a Lease.
#[derive(Clone, Debug)]
pub struct Candidate {
    api: Api<Lease>,
    place: String,
    name: String,
    identity: String,
    term: Arc<watch::Sender<Option<Term>>>,
    wish: Arc<watch::Sender<Wish>>,
}

impl Candidate {
    /// For the Lease `name` of `namespace`, as `identity`, which no other
    /// process ever has ([`identity`] makes one).
    #[must_use]
    pub fn new(client: Client, namespace: &str, name: &str, identity: String) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            place: format!("{namespace}/{name}"),
            name: name.to_owned(),
            identity,
            term: Arc::new(watch::Sender::new(None)),
            wish: Arc::new(watch::Sender::new(Wish::Lead)),
        }
    }

    /// Whether this process leads, which is to be asked again and again.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        Leadership(self.term.subscribe())
    }

    /// Takes the Lease when it is free and renews it. Never ends. It may be
    /// dropped and called again.
    pub async fn run(self) {
        let mut wish = self.wish.subscribe();
        let mut observed = Observed::default();
        let mut complaints = Complaints::default();
        while *wish.borrow_and_update() == Wish::Lead {
            // Never given up halfway: a write that is on its way could take the
            // Lease again after it was given back.
            if let Err(reason) = self.look(&mut observed).await
                && complaints.is_due(&reason, std::time::Instant::now())
            {
                let lease = &self.place;
                tracing::warn!(lease, reason, "cannot get or keep the lease; trying again");
            }
            self.expire();
            tokio::select! {
                () = sleep(LOOK) => {}
                _ = wish.changed() => {}
            }
        }
        // A look that ended last may have renewed the term that was resigned.
        self.term.send_replace(None);
        match self.give_back().await {
            Ok(true) => tracing::info!(lease = self.place, "given back"),
            Ok(false) => {}
            Err(reason) => tracing::warn!(lease = self.place, reason, "not given back"),
        }
        self.wish.send_replace(Wish::Resigned);
        std::future::pending().await
    }

    /// Leads no more, and gives the Lease back, so that another replica has it
    /// at once. Waits `limit` at most. To be called when the process ends, after
    /// whatever only the leader does has ended.
    pub async fn resign(&self, limit: Duration) {
        self.wish.send_replace(Wish::Resign);
        self.term.send_replace(None);
        let mut wish = self.wish.subscribe();
        let resigned = wish.wait_for(|wish| *wish == Wish::Resigned);
        if timeout(limit, resigned).await.is_err() {
            tracing::warn!(
                lease = self.place,
                "not given back in time: it ends by itself"
            );
        }
    }

    /// Looks at the Lease once, and takes or renews it.
    async fn look(&self, observed: &mut Observed) -> Result<(), String> {
        let before = Instant::now();
        let held = timeout(PATIENCE, self.hold(observed)).await;
        let held =
            held.map_err(|_| format!("the API server did not answer within {PATIENCE:?}"))??;
        let leads = self.term.borrow().is_some();
        let lease = &self.place;
        match held {
            Some(number) => {
                if !leads {
                    tracing::info!(lease, number, identity = self.identity, "leading");
                }
                let until = before + TERM;
                self.term.send_replace(Some(Term { until, number }));
            }
            None if leads => {
                tracing::warn!(lease, "somebody else has taken the lease: leading no more");
                self.term.send_replace(None);
            }
            None => {}
        }
        Ok(())
    }

    /// The number of the term, if the Lease is ours now.
    async fn hold(&self, observed: &mut Observed) -> Result<Option<i32>, String> {
        let params = PostParams::default();
        // Who loses a race reads what won it.
        for _ in 0..3 {
            let found = self.get().await?;
            let Some(wanted) = observed.look(found, &self.name, &self.identity) else {
                return Ok(None);
            };
            let (what, written) = match wanted.metadata.resource_version {
                None => ("create", self.api.create(&params, &wanted).await),
                Some(_) => (
                    "update",
                    self.api.replace(&self.name, &params, &wanted).await,
                ),
            };
            match written {
                Ok(lease) => return Ok(Some(observed.keep(lease))),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(self.reason(what, &error)),
            }
        }
        Err("it changes all the time".to_owned())
    }

    async fn get(&self) -> Result<Option<Lease>, String> {
        let found = self.api.get_opt(&self.name).await;
        found.map_err(|error| self.reason("get", &error))
    }

    /// Ends a term that is over.
    fn expire(&self) {
        let now = Instant::now();
        let ended = self.term.send_if_modified(|term| {
            let over = term.as_ref().is_some_and(|term| term.until <= now);
            if over {
                *term = None;
            }
            over
        });
        if ended {
            tracing::warn!(lease = self.place, "not renewed in time: leading no more");
        }
    }

    /// Whether it was ours.
    async fn give_back(&self) -> Result<bool, String> {
        let params = PostParams::default();
        // What was on its way when we resigned may have changed it since.
        let Some(free) = released(self.get().await?, &self.identity) else {
            return Ok(false);
        };
        let written = self.api.replace(&self.name, &params, &free).await;
        written.map_err(|error| self.reason("update", &error))?;
        Ok(true)
    }

    fn reason(&self, what: &str, error: &kube::Error) -> String {
        let reason = client::reason(error);
        match error {
            kube::Error::Api(status) if status.code == 403 => format!(
                "the service account may not: grant it get, create and update on leases ({reason})"
            ),
            _ => format!("cannot {what} Lease {}: {reason}", self.place),
        }
    }
}

/// A name for this process that no other has: the machine's or pod's, and a random part.
#[must_use]
pub fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    // The keys of a hash map are from the system's source of random numbers.
    let random = RandomState::new().build_hasher().finish();
    format!("{}_{random:016x}", host.trim())
}

#[cfg(test)]
mod tests;
