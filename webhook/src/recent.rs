//! The latest decisions of this replica, for its page. They are in memory only: the
//! complete record is the log.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use crate::metrics::Outcome;

/// How many decisions are kept.
pub const KEPT: usize = 500;
/// The longest text of a decision, in bytes. A name in Kubernetes has at most 253; a
/// refusal with its remedy has a few hundred.
const LONGEST: usize = 1000;

/// A decision. It has no value of an environment variable and no user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Its number since the start of the process, from 1.
    pub number: u64,
    pub time: SystemTime,
    pub namespace: String,
    /// The pod's name, or the beginning of the name that it will get, with `*`.
    pub pod: String,
    pub outcome: Outcome,
    /// The class that the pod got or did not get, if it is known.
    pub class: Option<String>,
    /// The project that the pod belongs to, if it is in a class.
    pub project: Option<String>,
    /// Number of whole GPUs that the pod requests, if it is in a class.
    pub gpus: Option<u32>,
    /// The rule that refused it.
    pub rule: Option<&'static str>,
    /// Why, in words.
    pub reason: String,
}

impl Decision {
    /// Returns a decision of now on a pod.
    #[must_use]
    pub fn new(outcome: Outcome, namespace: &str, pod: &str, reason: &str) -> Self {
        Self {
            number: 0,
            time: SystemTime::now(),
            namespace: cut(namespace),
            pod: cut(pod),
            outcome,
            class: None,
            project: None,
            gpus: None,
            rule: None,
            reason: cut(reason),
        }
    }

    /// Adds the class.
    #[must_use]
    pub fn about(self, class: Option<&str>) -> Self {
        let class = class.map(cut);
        Self { class, ..self }
    }
}

/// Shortens a text to [`LONGEST`].
fn cut(text: &str) -> String {
    if text.len() <= LONGEST {
        return text.to_owned();
    }
    let room = LONGEST - '…'.len_utf8();
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    let end = ends.take_while(|&end| end <= room).last();
    format!("{}…", &text[..end.unwrap_or(0)])
}

/// A shared handle to the latest decisions; by default none is kept.
#[derive(Clone, Debug, Default)]
pub struct Recent(Option<Arc<Mutex<Ring>>>);

#[derive(Debug, Default)]
struct Ring {
    latest: VecDeque<Arc<Decision>>,
    count: u64,
}

impl Recent {
    /// Returns a handle that keeps the latest [`KEPT`] decisions.
    #[must_use]
    pub fn keeping() -> Self {
        Self(Some(Arc::default()))
    }

    /// Keeps a decision; `make` is not called if none is kept.
    pub fn add(&self, make: impl FnOnce() -> Decision) {
        let Some(ring) = &self.0 else { return };
        let decision = make();
        let mut ring = lock(ring);
        ring.count += 1;
        let number = ring.count;
        if ring.latest.len() == KEPT {
            ring.latest.pop_back();
        }
        ring.latest
            .push_front(Arc::new(Decision { number, ..decision }));
    }

    /// Returns the decisions after number `after`, newest first.
    #[must_use]
    pub fn since(&self, after: u64) -> Vec<Arc<Decision>> {
        let Some(ring) = &self.0 else {
            return Vec::new();
        };
        let ring = lock(ring);
        let newer = ring.latest.iter().take_while(|one| one.number > after);
        newer.cloned().collect()
    }
}

fn lock(ring: &Mutex<Ring>) -> MutexGuard<'_, Ring> {
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(pod: &str) -> Decision {
        Decision::new(Outcome::Denied, "ci", pod, "no")
    }

    #[test]
    fn the_latest_decisions_are_kept_newest_first() {
        let recent = Recent::keeping();
        for n in 1..=KEPT + 7 {
            recent.add(|| decision(&n.to_string()));
        }
        let all = recent.since(0);
        assert_eq!(all.len(), KEPT);
        assert_eq!((all[0].number, &*all[0].pod), (507, "507"));
        assert_eq!(all[KEPT - 1].number, 8);
        let newer: Vec<u64> = recent.since(505).iter().map(|one| one.number).collect();
        assert_eq!(newer, [507, 506]);
        assert!(recent.since(507).is_empty());
    }

    #[test]
    fn without_a_page_none_is_kept() {
        let recent = Recent::default();
        recent.add(|| unreachable!());
        assert!(recent.since(0).is_empty());
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = decision(&"ü".repeat(LONGEST)).pod;
        assert!(
            long.len() <= LONGEST && long.ends_with("ü…"),
            "{}",
            long.len()
        );
        assert_eq!(decision("short").pod, "short");
    }
}
