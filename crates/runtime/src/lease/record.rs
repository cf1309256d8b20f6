//! The observed state of a Lease, and what to write next.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::api::ObjectMeta;
use tokio::time::Instant;

use super::DURATION;

/// A Lease as this process last saw it.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// The version that was read or written last, and when it was first seen.
    last: Option<(Lease, Instant)>,
    /// The highest number of a term seen so far: if somebody deletes the Lease,
    /// the numbers still ascend.
    number: i32,
}

impl Observed {
    /// Returns what to write if this process holds `found` or may acquire it;
    /// none if another process holds it.
    pub(super) fn look(
        &mut self,
        found: Option<Lease>,
        name: &str,
        identity: &str,
    ) -> Option<Lease> {
        let now = Instant::now();
        let Some(found) = found else {
            self.last = None;
            let metadata = ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            };
            let spec = Some(taken(identity, self.number.saturating_add(1)));
            return Some(Lease { metadata, spec });
        };
        let version = |lease: &Lease| lease.metadata.resource_version.clone();
        let since = match &self.last {
            Some((last, since)) if version(last) == version(&found) => *since,
            _ => now,
        };
        let spec = found.spec.clone().unwrap_or_default();
        let number = spec.lease_transitions.unwrap_or_default();
        self.number = self.number.max(number);
        self.last = Some((found.clone(), since));
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let seconds = spec
            .lease_duration_seconds
            .and_then(|seconds| seconds.try_into().ok());
        let lasts = seconds.map_or(DURATION, Duration::from_secs);
        // A number below those that were seen is that of an old copy: nobody leads by it.
        let spec = if holder == identity && number == self.number {
            LeaseSpec {
                renew_time: Some(MicroTime(Timestamp::now())),
                ..spec
            }
        } else if holder == identity || holder.is_empty() || since + lasts <= now {
            taken(identity, self.number.saturating_add(1))
        } else {
            return None;
        };
        Some(Lease {
            spec: Some(spec),
            ..found
        })
    }

    /// Records the Lease that was written, and returns the number of the term.
    pub(super) fn keep(&mut self, lease: Lease) -> i32 {
        let spec = lease.spec.as_ref();
        let number = spec.and_then(|spec| spec.lease_transitions);
        self.number = self.number.max(number.unwrap_or_default());
        self.last = Some((lease, Instant::now()));
        self.number
    }
}

/// Returns what to write to release `found`, if this process holds it.
pub(super) fn released(found: Option<Lease>, identity: &str) -> Option<Lease> {
    let mut lease = found?;
    let spec = lease.spec.as_mut()?;
    let ours = spec.holder_identity.as_deref() == Some(identity);
    // An empty holder and one second, as client-go writes: other clients may not
    // expect absent values.
    spec.holder_identity = Some(String::new());
    spec.lease_duration_seconds = Some(1);
    spec.renew_time = Some(MicroTime(Timestamp::now()));
    ours.then_some(lease)
}

fn taken(identity: &str, number: i32) -> LeaseSpec {
    let now = MicroTime(Timestamp::now());
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
        lease_transitions: Some(number),
        acquire_time: Some(now.clone()),
        renew_time: Some(now),
        ..LeaseSpec::default()
    }
}
