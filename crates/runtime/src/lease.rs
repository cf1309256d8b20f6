//! Leader election: the replica that holds a Lease does the work that only one may do.
//!
//! A [`Candidate`] acquires the Lease when it is free, renews it, and releases it
//! on request. A [`Leadership`] reports whether this process leads, and until
//! when. A leader that cannot renew the Lease stops leading, by its own clock,
//! while a third of the Lease's duration remains, so before anybody else may
//! acquire it. Clocks of other machines do not matter: a Lease is free when it
//! has not been renewed for its duration since this process first saw its
//! current version.
//!
//! If two candidates try to acquire the Lease at once, only one succeeds, since
//! each write names the version that was read. A write that a leader sends at
//! the very end of its term may arrive after the term. Writes that two leaders
//! must not both make must therefore name the version that they change, or carry
//! the [`Term::number`].
//!
//! The design is that of kubert and client-go. No crate offers it for kube 5:
//! kube-leader-election is for kube 4; kubert's lease needs kubert's own runtime;
//! and kube-lease-manager trusts the clocks of other machines, takes a Lease over
//! without naming the version that it read, and claims to lead for as long as the
//! API server does not answer.

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

/// How long a Lease lasts without a renewal. After a leader was killed, nobody
/// leads for this long.
const DURATION: Duration = Duration::from_secs(15);
/// How long a leader leads after it requested a renewal.
const TERM: Duration = Duration::from_secs(10);
/// The time between two checks of the Lease; each renews it if this process holds it.
const LOOK: Duration = Duration::from_secs(2);
/// How long a check may take.
const PATIENCE: Duration = Duration::from_secs(4);

/// A time in which this process leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// When the term ends unless the Lease is renewed; a renewal extends it.
    pub until: Instant,
    /// Counts changes of the holder: a later leader has a higher number.
    pub number: i32,
}

/// Reports whether this process leads. Clones report the same.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<Option<Term>>);

impl Leadership {
    /// Returns the term if this process leads now.
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

    /// Waits until this process does not lead by the number of `term`: the Lease was lost or
    /// released, could not be renewed in time, or was acquired anew after somebody had cleared,
    /// replaced or deleted it. What carries the old number is refused from then on.
    pub async fn lost(&mut self, term: &Term) {
        loop {
            self.0.mark_unchanged();
            let present = self.term().filter(|it| it.number == term.number);
            let Some(term) = present else { return };
            tokio::select! {
                () = sleep_until(term.until) => {}
                () = self.changed() => {}
            }
        }
    }

    async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // The candidate is gone, so there is never another term.
            std::future::pending::<()>().await;
        }
    }
}

/// The state that [`Candidate::run`] and [`Candidate::resign`] share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Lead,
    Resign,
    Resigned,
}

/// A process that tries to acquire a Lease and to keep it.
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
    /// Returns a candidate for the Lease `name` in `namespace`, as `identity`,
    /// which no other process ever has ([`identity`] makes one).
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

    /// Returns a handle that reports, at any time, whether this process leads.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        Leadership(self.term.subscribe())
    }

    /// Acquires the Lease when it is free, and renews it. Never ends. The future
    /// may be dropped and requested again.
    pub async fn run(self) {
        let mut wish = self.wish.subscribe();
        let mut observed = Observed::default();
        let mut complaints = Complaints::default();
        while *wish.borrow_and_update() == Wish::Lead {
            // Never cancel a check: a write in flight could acquire the Lease again
            // after it was released.
            if let Err(reason) = self.look(&mut observed).await
                && complaints.is_due(&reason, std::time::Instant::now())
            {
                let lease = &self.place;
                tracing::warn!(lease, reason, "cannot acquire or renew the lease; retrying");
            }
            self.expire();
            tokio::select! {
                () = sleep(LOOK) => {}
                _ = wish.changed() => {}
            }
        }
        // The last check may have renewed the term after the resignation.
        self.term.send_replace(None);
        match self.give_back().await {
            Ok(true) => tracing::info!(lease = self.place, "released the lease"),
            Ok(false) => {}
            Err(reason) => {
                tracing::warn!(
                    lease = self.place,
                    reason,
                    "cannot release the lease; it will expire"
                );
            }
        }
        self.wish.send_replace(Wish::Resigned);
        std::future::pending().await
    }

    /// Stops leading and releases the Lease, so that another replica can acquire
    /// it at once. Waits at most `limit`. Call it when the process ends, after all
    /// work that only the leader does has ended.
    pub async fn resign(&self, limit: Duration) {
        self.wish.send_replace(Wish::Resign);
        self.term.send_replace(None);
        let mut wish = self.wish.subscribe();
        let resigned = wish.wait_for(|wish| *wish == Wish::Resigned);
        if timeout(limit, resigned).await.is_err() {
            tracing::warn!(
                lease = self.place,
                "the lease was not released in time; it will expire"
            );
        }
    }

    /// Checks the Lease once, and acquires or renews it.
    async fn look(&self, observed: &mut Observed) -> Result<(), String> {
        let before = Instant::now();
        let held = timeout(PATIENCE, self.hold(observed)).await;
        let held =
            held.map_err(|_| format!("the API server did not answer within {PATIENCE:?}"))??;
        let leads = self.term.borrow().as_ref().map(|term| term.number);
        let lease = &self.place;
        match held {
            Some(number) => {
                if let Some(before) = leads.filter(|&before| before != number) {
                    tracing::warn!(
                        lease,
                        before,
                        "somebody cleared, replaced or deleted the lease; the term of its old number is over"
                    );
                }
                if leads != Some(number) {
                    tracing::info!(
                        lease,
                        number,
                        identity = self.identity,
                        "acquired the lease; this replica leads"
                    );
                }
                let until = before + TERM;
                self.term.send_replace(Some(Term { until, number }));
            }
            None if leads.is_some() => {
                tracing::warn!(
                    lease,
                    "another holder took the lease; this replica no longer leads"
                );
                self.term.send_replace(None);
            }
            None => {}
        }
        Ok(())
    }

    /// Tries to hold the Lease; returns the number of the term if this process holds it now.
    async fn hold(&self, observed: &mut Observed) -> Result<Option<i32>, String> {
        let params = PostParams::default();
        // After a conflict, read what the other process wrote.
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
        Err("the Lease keeps changing".to_owned())
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
            tracing::warn!(
                lease = self.place,
                "the lease was not renewed in time; this replica no longer leads"
            );
        }
    }

    /// Releases the Lease; reports whether this process held it.
    async fn give_back(&self) -> Result<bool, String> {
        let params = PostParams::default();
        // A write in flight when this process resigned may have changed it since.
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
                "the service account may not {what} Lease {}: grant it get, create and update on leases ({reason})",
                self.place
            ),
            _ => format!("cannot {what} Lease {}: {reason}", self.place),
        }
    }
}

/// Returns a unique name for this process: the name of the machine or pod, and a random part.
#[must_use]
pub fn identity() -> String {
    let host = host();
    // The keys of a hash map come from the system's random number source.
    let random = RandomState::new().build_hasher().finish();
    format!("{host}_{random:016x}")
}

/// Returns the name of the machine or pod.
#[must_use]
pub fn host() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host.trim().to_owned()
}

#[cfg(test)]
mod tests;
