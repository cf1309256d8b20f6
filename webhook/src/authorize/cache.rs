//! Rights that were granted a moment ago.
//!
//! Only those: who was just denied, ran the commands of the denial and tries
//! again must not be denied for what is no longer true. A right that was taken
//! away holds for [`TTL`] longer here, which a denial by the policies is not
//! subject to.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::User;

/// How long a granted right is believed.
pub(super) const TTL: Duration = Duration::from_secs(5);
/// Most rights that are kept: beyond them the outlived go, and if that is not enough, all.
const MOST: usize = 4096;

/// One right: who, what, where.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Right {
    pub(super) user: User,
    pub(super) verb: &'static str,
    /// Empty: all classes.
    pub(super) class: String,
    /// Empty: in the whole cluster.
    pub(super) namespace: String,
}

/// The rights, each with the moment when it was granted.
#[derive(Debug, Default)]
pub(super) struct Cache {
    granted: Mutex<HashMap<Right, Instant>>,
}

impl Cache {
    /// Whether `right` was granted less than [`TTL`] before `now`.
    pub(super) fn holds(&self, right: &Right, now: Instant) -> bool {
        let granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        let age = |since: &Instant| now.saturating_duration_since(*since);
        granted.get(right).is_some_and(|since| age(since) < TTL)
    }

    /// Keeps a right that was granted at `now`.
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
            verb: super::super::USE,
            class: "c".to_owned(),
            namespace: "n".to_owned(),
        }
    }

    #[test]
    fn a_right_is_believed_for_a_moment() {
        let (cache, now) = (Cache::default(), Instant::now());
        cache.keep(right("alice", &["dev"]), now);
        assert!(cache.holds(&right("alice", &["dev"]), now + TTL / 2));
        assert!(!cache.holds(&right("alice", &["dev"]), now + TTL));
        // Rights may come from groups, so another set of groups is another question.
        assert!(!cache.holds(&right("alice", &[]), now));
        let mut elsewhere = right("alice", &["dev"]);
        elsewhere.namespace = "m".to_owned();
        assert!(!cache.holds(&elsewhere, now));
    }

    #[test]
    fn it_does_not_grow_without_bound() {
        let (cache, now) = (Cache::default(), Instant::now());
        for index in 0..3 * MOST {
            cache.keep(right(&format!("user-{index}"), &[]), now);
        }
        assert!(cache.granted.lock().unwrap().len() <= MOST);
        assert!(cache.holds(&right(&format!("user-{}", 3 * MOST - 1), &[]), now));
    }
}
