//! Which pods show something new next. Pure.
//!
//! A queue of thousands changes with each release, and nobody reads all of it at once. So only what
//! a reader would notice is written ([`Notice::after`]), the most urgent first, and at most so many
//! pods a second, fewer while pods are released.

use std::collections::{HashMap, HashSet};

use nvlink_planner::{Millis, Name, Waiting};
use serde_json::{Value, json};

use super::{
    feed::{Feed, Left},
    notice::{About, LATER, Notice, Post, SOON, Shown, Urgency},
};

/// The time between two looks at the whole queue, milliseconds.
pub(crate) const LOOK: Millis = 500;
/// The most pods that are written after a look, and while pods are being released.
const MOST: usize = 50;
const MOST_BESIDES: usize = 5;
/// The most pods whose annotations are read at a look, after a change of the leader.
const READ: usize = 200;
/// The pause after a write that failed, milliseconds, and how often it doubles.
const AGAIN: Millis = 2_000;
const MOST_FAILURES: u32 = 5;
/// The time between two Events of a pod: the first, and the longest. Each is twice the one before.
const QUIET: Millis = 60_000;
const QUIETEST: Millis = 3_600_000;

/// What the pods show.
#[derive(Debug, Default)]
pub struct Board {
    pods: HashMap<Name, Posted>,
    looked: Option<Millis>,
    next: Option<Millis>,
    /// The number of writes whose end is not known.
    open: usize,
    look: u64,
    /// The jobs for which placeholder pods request nodes.
    asking: HashSet<Name>,
}

/// What a pod shows.
#[derive(Debug)]
struct Posted {
    uid: String,
    notice: Option<Notice>,
    /// When it was written.
    at: Millis,
    /// No write before this time, after so many failures.
    pause: Millis,
    failures: u32,
    /// An earlier leader wrote the same reason, but not the rest.
    outdated: bool,
    /// It is being written.
    open: Option<Notice>,
    told: Option<Told>,
    /// The first expected start that it showed.
    first: Option<Millis>,
    /// The look that saw it last.
    seen: u64,
}

/// The latest Event of a pod.
#[derive(Clone, Copy, Debug)]
struct Told {
    word: &'static str,
    at: Millis,
    quiet: Millis,
}

/// A pod that shows something new.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// The pod.
    pub pod: Name,
    /// Its metadata: namespace, name and uid.
    pub document: Value,
    /// The strategic merge patch of its status.
    pub patch: Value,
    /// The text of an Event to create, and whether it is a warning.
    pub event: Option<(String, bool)>,
}

/// A pod that waits.
#[derive(Clone, Copy)]
struct Waiter<'a> {
    pod: &'a Name,
    uid: &'a str,
    about: About<'a>,
}

struct Candidate<'a> {
    urgency: Urgency,
    at: Millis,
    waiter: Waiter<'a>,
    notice: Notice,
}

impl Board {
    /// Returns what to write at `now`, after a round. `busy` says that pods are being released.
    pub fn look(&mut self, waiting: &[Waiting], feed: &Feed, busy: bool, now: Millis) -> Vec<Task> {
        if let Some(due) = self.rests(now) {
            self.next = Some(due);
            return Vec::new();
        }
        self.looked = Some(now);
        self.look += 1;
        self.next = None;
        let mut found = self.candidates(waiting, feed, now);
        let look = self.look;
        self.pods
            .retain(|_, it| it.seen == look || it.open.is_some() || it.pause > now);
        found.sort_by_key(|one| (one.urgency, one.at));
        let most = if busy { MOST_BESIDES } else { MOST };
        let room = most.saturating_sub(self.open);
        let mut tasks: Vec<Task> = Vec::new();
        for candidate in found {
            if tasks.len() == room {
                self.wake(now + LOOK);
                break;
            }
            tasks.extend(self.task(&candidate, feed, now));
        }
        for left in feed.left() {
            if tasks.len() >= room {
                self.wake(now + LOOK);
                break;
            }
            tasks.extend(self.leave(&left, now));
        }
        self.open += tasks.len();
        tasks
    }

    /// Sets the jobs for which placeholder pods request nodes.
    pub fn asking(&mut self, jobs: HashSet<Name>) {
        self.asking = jobs;
    }

    /// Returns when the next look is due, if that is not now.
    #[must_use]
    pub fn rests(&self, now: Millis) -> Option<Millis> {
        let looked = self.looked.filter(|at| (*at..at + LOOK).contains(&now));
        looked.map(|at| at + LOOK)
    }

    /// Returns when to look again although nothing changes.
    #[must_use]
    pub fn next(&self) -> Option<Millis> {
        self.next
    }

    fn wake(&mut self, at: Millis) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    fn candidates<'a>(
        &mut self,
        waiting: &[Waiting],
        feed: &'a Feed,
        now: Millis,
    ) -> Vec<Candidate<'a>> {
        let (mut found, mut read) = (Vec::new(), READ);
        for one in waiting {
            let notice = Notice {
                asks: self.asking.contains(&one.job),
                ..Notice::new(one, feed.obstacle_to(&one.job, &one.reason).as_ref())
            };
            let joins = feed.runs(&one.job);
            for pod in feed.pods_of(&one.job).filter(|pod| feed.waits(pod)) {
                let Some(member) = feed.member(pod) else {
                    continue;
                };
                let (uid, about) = (member.uid.as_str(), About::from(member).joining(joins));
                let waiter = Waiter { pod, uid, about };
                found.extend(self.candidate(waiter, &notice, feed, &mut read, now));
            }
        }
        for one in feed.unaccepted() {
            let (pod, uid) = (one.pod, one.uid);
            let about = About::of(one.class);
            let (waiter, notice) = (Waiter { pod, uid, about }, Notice::unaccepted(one.why));
            found.extend(self.candidate(waiter, &notice, feed, &mut read, now));
        }
        found
    }

    /// Returns a pod if it is to be written now. Of those that are not known yet, `read` more are read.
    fn candidate<'a>(
        &mut self,
        waiter: Waiter<'a>,
        notice: &Notice,
        feed: &Feed,
        read: &mut usize,
        now: Millis,
    ) -> Option<Candidate<'a>> {
        let Waiter { pod, uid, about } = waiter;
        let notice = Notice {
            since: feed.moved_to(pod),
            unseen: feed.unseen_scheduler(pod).map(Into::into),
            grows: about.grows,
            ..notice.clone()
        };
        let known = self.pods.get(pod).is_some_and(|it| it.uid == uid);
        if !known && feed.is_queued(pod) {
            if *read == 0 {
                self.wake(now + LOOK);
                return None;
            }
            *read -= 1;
            let shown = Shown::of(&feed.document(pod).unwrap_or_default());
            let posted = Posted::found(uid, &shown, &notice, about, now);
            self.pods.insert(pod.clone(), posted);
        }
        let look = self.look;
        let posted = self.pods.get_mut(pod).filter(|it| it.uid == uid);
        let (urgency, at, due) = match posted {
            Some(posted) => posted.due(&notice, look, now)?,
            None => (Urgency::Now, Millis::MIN, Millis::MIN),
        };
        if due > now {
            self.wake(due);
            return None;
        }
        Some(Candidate {
            urgency,
            at,
            waiter,
            notice,
        })
    }

    fn task(&mut self, candidate: &Candidate<'_>, feed: &Feed, now: Millis) -> Option<Task> {
        let Candidate { waiter, notice, .. } = candidate;
        let Waiter { pod, uid, about } = *waiter;
        let document = feed.document(pod)?;
        let look = self.look;
        let posted = self.pods.entry(pod.clone());
        let posted = posted.or_insert_with(|| Posted::new(uid, look));
        if posted.uid != uid {
            *posted = Posted::new(uid, look);
        }
        posted.open = Some(notice.clone());
        let post = Post::waits(notice, about, now);
        let event = posted.is_news(notice.word(), now);
        Some(Task {
            pod: pod.clone(),
            patch: post.patch(&document, feed.is_queued(pod), now),
            event: event.then(|| (notice.message(about, now), notice.is_warning())),
            document,
        })
    }

    fn leave(&mut self, left: &Left, now: Millis) -> Option<Task> {
        let posted = self.pods.get(&left.pod);
        if posted.is_some_and(|it| it.uid == left.uid && (it.open.is_some() || it.pause > now)) {
            return None;
        }
        let (namespace, name) = left.pod.split_once('/')?;
        let metadata = json!({"namespace": namespace, "name": name, "uid": left.uid});
        let document = json!({"metadata": metadata});
        let mut posted = Posted::new(&left.uid, self.look);
        // Until the watch shows it.
        posted.pause = now.saturating_add(AGAIN);
        self.wake(posted.pause);
        self.pods.insert(left.pod.clone(), posted);
        Some(Task {
            pod: left.pod.clone(),
            patch: Post::Left(left.why.clone()).patch(&document, true, now),
            event: None,
            document,
        })
    }

    /// Records how a write ended.
    pub fn posted(&mut self, pod: &Name, written: bool, now: Millis) {
        self.open = self.open.saturating_sub(1);
        let Some(posted) = self.pods.get_mut(pod) else {
            return;
        };
        let Some(notice) = posted.open.take() else {
            return;
        };
        posted.at = now;
        if !written {
            posted.pause = now.saturating_add(AGAIN << posted.failures.min(MOST_FAILURES));
            posted.failures += 1;
            return;
        }
        posted.failures = 0;
        if posted.is_news(notice.word(), now) {
            let quiet = posted
                .told
                .map_or(QUIET, |told| (told.quiet * 2).min(QUIETEST));
            posted.told = Some(Told::new(notice.word(), now, quiet));
        }
        posted.first = posted.first.or(notice.start());
        posted.notice = Some(notice);
    }

    /// Records that the clock was set by `by`: pauses last no longer because of it.
    pub fn jumped(&mut self, by: Millis) {
        let moved = |at: &mut Millis| *at = at.saturating_add(by);
        self.looked.iter_mut().for_each(moved);
        for posted in self.pods.values_mut() {
            moved(&mut posted.at);
            moved(&mut posted.pause);
            posted.told.iter_mut().for_each(|told| moved(&mut told.at));
        }
    }

    /// Returns the first expected start that the pod of this name and UID showed.
    #[must_use]
    pub fn first(&self, pod: &Name, uid: &str) -> Option<Millis> {
        self.pods.get(pod).filter(|it| it.uid == uid)?.first
    }
}

impl Told {
    fn new(word: &'static str, at: Millis, quiet: Millis) -> Self {
        Self { word, at, quiet }
    }
}

impl Posted {
    fn new(uid: &str, seen: u64) -> Self {
        Self {
            uid: uid.to_owned(),
            notice: None,
            outdated: false,
            at: Millis::MIN,
            pause: Millis::MIN,
            failures: 0,
            open: None,
            told: None,
            first: None,
            seen,
        }
    }

    /// Returns what an earlier leader wrote.
    fn found(uid: &str, shown: &Shown, notice: &Notice, about: About<'_>, now: Millis) -> Self {
        let mut this = Self::new(uid, 0);
        this.at = now;
        this.first = shown.eta;
        match notice.after_shown(shown, about, now) {
            Some(Urgency::Now) => {}
            Some(_) => {
                this.told = Some(Told::new(notice.word(), now, QUIET));
                this.outdated = true;
            }
            None => {
                this.told = Some(Told::new(notice.word(), now, QUIET));
                this.notice = Some(notice.clone());
            }
        }
        this
    }

    /// Returns how urgent the notice is, when the pod was last written, and when it may be again.
    fn due(
        &mut self,
        notice: &Notice,
        look: u64,
        now: Millis,
    ) -> Option<(Urgency, Millis, Millis)> {
        self.seen = look;
        if self.open.is_some() {
            return None;
        }
        let urgency = match &self.notice {
            Some(before) => notice.after(before, now)?,
            None if self.outdated => Urgency::Soon,
            None => Urgency::Now,
        };
        let rest = match urgency {
            Urgency::Now => Millis::MIN,
            Urgency::Soon => self.at.saturating_add(SOON),
            Urgency::Later => self.at.saturating_add(LATER),
        };
        Some((urgency, self.at, self.pause.max(rest)))
    }

    /// Reports whether an Event must say this reason.
    fn is_news(&self, word: &'static str, now: Millis) -> bool {
        self.told
            .is_none_or(|told| told.word != word && now.saturating_sub(told.at) >= told.quiet)
    }
}
