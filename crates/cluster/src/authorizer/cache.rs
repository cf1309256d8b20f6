//! A cache of rights that were granted a moment ago.
//!
//! Denials are not cached: a user who was just refused, ran the commands of the
//! refusal and retries must not be refused again for an outdated reason. A revoked
//! right holds for up to [`TTL`] longer here; the policies refuse it at once.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use nvlink_admission::authorize::User;

/// How long a granted right is cached.
pub(super) const TTL: Duration = Duration::from_secs(5);
/// The most rights in the cache. Beyond it expired rights are dropped, and if that
/// is not enough, all.
const MOST: usize = 4096;

/// A right: a user, a verb, a class and a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Right {
    pub(super) user: User,
    pub(super) verb: &'static str,
    /// Empty: all classes.
    pub(super) class: String,
    /// Empty: in the whole cluster.
    pub(super) namespace: String,
}

/// Rights, each with the time when it was granted.
#[derive(Debug, Default)]
pub(super) struct Cache {
    granted: Mutex<HashMap<Right, Instant>>,
}

impl Cache {
    /// Reports whether `right` was granted less than [`TTL`] before `now`.
    pub(super) fn holds(&self, right: &Right, now: Instant) -> bool {
        let granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        let age = |since: &Instant| now.saturating_duration_since(*since);
        granted.get(right).is_some_and(|since| age(since) < TTL)
    }

    /// Caches a right that was granted at `now`.
    pub(super) fn keep(&self, right: Right, now: Instant) {
        let mut granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        if granted.len() >= MOST {
            granted.retain(|_, since| now.saturating_duration_since(*since) < TTL);
        }
        if granted.len() >= MOST {
            granted.clear();
        }
        granted.insert(right, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(user: &str, groups: &[&str]) -> Right {
        let user = User {
            username: user.to_owned(),
            groups: groups.iter().map(|&name| name.to_owned()).collect(),
            ..User::default()
        };
        Right {
            user,
            verb: nvlink_admission::authorize::USE,
            class: "c".to_owned(),
            namespace: "n".to_owned(),
        }
    }

    #[test]
    fn a_right_is_cached_for_the_ttl() {
        let (cache, now) = (Cache::default(), Instant::now());
        cache.keep(right("alice", &["dev"]), now);
        assert!(cache.holds(&right("alice", &["dev"]), now + TTL / 2));
        assert!(!cache.holds(&right("alice", &["dev"]), now + TTL));
        // Rights may come from groups, so other groups need another review.
        assert!(!cache.holds(&right("alice", &[]), now));
        let mut elsewhere = right("alice", &["dev"]);
        elsewhere.namespace = "m".to_owned();
        assert!(!cache.holds(&elsewhere, now));
    }

    #[test]
    fn the_cache_does_not_grow_without_bound() {
        let (cache, now) = (Cache::default(), Instant::now());
        for index in 0..3 * MOST {
            cache.keep(right(&format!("user-{index}"), &[]), now);
        }
        assert!(cache.granted.lock().unwrap().len() <= MOST);
        assert!(cache.holds(&right(&format!("user-{}", 3 * MOST - 1), &[]), now));
    }
}
