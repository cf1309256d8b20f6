//! One watch of a kind for all in this process that follow it, as in client-go's shared informers:
//! each object is sent once and parsed once. It runs while somebody follows it. For a new follower
//! a second one lists all objects, and takes the place of the first when it has.

use std::{
    collections::HashSet,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use nvlink_runtime::watch::{self, Key};
use tokio::sync::watch as channel;

/// What happens to the objects of a kind. The same calls as those of [`watch::Mirror`].
pub trait Follower<T>: Send {
    /// All objects are about to be read, more or less of each than before.
    fn begins(&mut self) {}
    /// Adds or changes an object.
    fn set(&mut self, key: &Key, item: &T);
    /// Removes an object.
    fn remove(&mut self, key: &Key);
    /// Removes all objects but these, which have all been set before, as far as they are read.
    fn retain(&mut self, keys: &HashSet<Key>, extent: Extent);
    /// Records whether the watch is in sync.
    fn follows(&mut self, _follows: bool) {}
}

/// How much of a kind is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// The metadata of those objects that have the label of a class.
    #[default]
    OfClasses,
    /// All objects as a whole.
    Whole,
}

/// The followers of a kind.
pub struct Informer<T>(Arc<Inner<T>>);

struct Inner<T> {
    followers: Mutex<Followers<T>>,
    changed: channel::Sender<()>,
}

struct Followers<T> {
    next: u64,
    all: Vec<(u64, Extent, Box<dyn Follower<T>>)>,
}

/// A follower follows until this is dropped.
#[must_use]
pub struct Subscription<T> {
    informer: Informer<T>,
    id: u64,
}

impl<T> Drop for Subscription<T> {
    fn drop(&mut self) {
        self.informer.lock().all.retain(|one| one.0 != self.id);
        self.informer.0.changed.send_replace(());
    }
}

impl<T> Clone for Informer<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Informer<T> {
    fn default() -> Self {
        let followers = Followers {
            next: 0,
            all: Vec::new(),
        };
        Self(Arc::new(Inner {
            followers: Mutex::new(followers),
            changed: channel::Sender::new(()),
        }))
    }
}

impl<T> Informer<T> {
    /// Adds a follower, which sees all objects from the beginning.
    pub fn subscribe(
        &self,
        extent: Extent,
        follower: impl Follower<T> + 'static,
    ) -> Subscription<T> {
        Subscription {
            informer: self.clone(),
            id: self.keep(extent, follower),
        }
    }

    /// Adds a follower for as long as the process runs, and returns its number.
    pub fn keep(&self, extent: Extent, follower: impl Follower<T> + 'static) -> u64 {
        let mut followers = self.lock();
        let id = followers.next;
        followers.next += 1;
        followers.all.push((id, extent, Box::new(follower)));
        drop(followers);
        self.0.changed.send_replace(());
        id
    }

    /// Runs `watch` while somebody follows; never ends.
    pub async fn run<F: Future<Output = ()>>(self, watch: impl Fn(Extent, Fan<T>) -> F) {
        let mut changed = self.0.changed.subscribe();
        let (mut current, mut next) = (None, None);
        loop {
            changed.borrow_and_update();
            self.arrange(&mut current, &mut next, &watch);
            tokio::select! {
                () = ended(&mut current) => {}
                () = ended(&mut next) => {}
                // An error is impossible: this process has the sender.
                _ = changed.changed() => {}
            }
        }
    }

    /// Starts and stops watches as the followers need them.
    fn arrange<F: Future<Output = ()>>(
        &self,
        current: &mut Option<Running<F>>,
        next: &mut Option<Running<F>>,
        watch: &impl Fn(Extent, Fan<T>) -> F,
    ) {
        if next.as_ref().is_some_and(Running::is_complete) {
            *current = next.take();
        }
        let mut followers = self.lock();
        let wanted = followers.extent();
        if current.as_ref().map(|one| one.extent) != wanted {
            (*current, *next) = (None, None);
        }
        let Some(extent) = wanted else { return };
        let before = followers.next;
        let start = |from| {
            let complete = Arc::new(AtomicBool::new(from == 0));
            let fan = Fan {
                informer: self.clone(),
                from,
                before,
                extent,
                complete: Arc::clone(&complete),
            };
            Some(Running {
                extent,
                before,
                complete,
                watch: Box::pin(watch(extent, fan)),
            })
        };
        match current {
            None => {
                let all = followers.all.iter_mut();
                all.for_each(|(_, _, follower)| follower.begins());
                *current = start(0);
            }
            Some(current) if next.is_none() => {
                let from = current.before;
                if followers.all.iter().any(|(id, ..)| *id >= from) {
                    *next = start(from);
                }
            }
            Some(_) => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, Followers<T>> {
        let followers = &self.0.followers;
        followers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Followers<T> {
    fn extent(&self) -> Option<Extent> {
        self.all.iter().map(|(_, extent, _)| *extent).max()
    }
}

/// A watch that runs.
struct Running<F> {
    extent: Extent,
    /// The followers before this number were there when it began.
    before: u64,
    complete: Arc<AtomicBool>,
    watch: Pin<Box<F>>,
}

impl<F> Running<F> {
    fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }
}

/// Waits until a watch has ended; for ever without one.
async fn ended<F: Future<Output = ()>>(running: &mut Option<Running<F>>) {
    match running {
        Some(one) => {
            one.watch.as_mut().await;
            *running = None;
        }
        None => std::future::pending().await,
    }
}

/// Passes the events of one watch on to the followers that were there when it began: a later one
/// would take a half of a list for the whole. While a watch for new followers lists, it serves only
/// these, because the others hear of all changes already.
pub struct Fan<T> {
    informer: Informer<T>,
    from: u64,
    before: u64,
    extent: Extent,
    complete: Arc<AtomicBool>,
}

impl<T> Fan<T> {
    /// Adds or changes an object.
    pub fn set(&self, key: &Key, item: &T) {
        self.each(|follower| follower.set(key, item));
    }

    /// Removes an object.
    pub fn remove(&self, key: &Key) {
        self.each(|follower| follower.remove(key));
    }

    /// Removes all objects but these.
    pub fn retain(&self, keys: &HashSet<Key>) {
        self.each(|follower| follower.retain(keys, self.extent));
        if !self.complete.swap(true, Ordering::AcqRel) {
            self.informer.0.changed.send_replace(());
        }
    }

    /// Records whether the watch is in sync.
    pub fn follows(&self, follows: bool) {
        self.each(|follower| follower.follows(follows));
    }

    fn each(&self, mut tell: impl FnMut(&mut dyn Follower<T>)) {
        let complete = self.complete.load(Ordering::Acquire);
        let from = if complete { 0 } else { self.from };
        let mut followers = self.informer.lock();
        let all = followers.all.iter_mut();
        let known = all.filter(|(id, ..)| (from..self.before).contains(id));
        known.for_each(|(_, _, follower)| tell(&mut **follower));
    }
}

/// A kind of objects, and what is read from each.
pub trait Kind: Send + 'static {
    /// The type that the objects are parsed into.
    type Object: kube::Resource
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + 'static;
    /// What the followers get.
    type Item;
    /// See [`watch::Mirror`].
    const KIND: &'static str;
    /// See [`watch::Mirror`].
    const UNKNOWN: &'static str = "";
    /// See [`watch::Mirror`].
    const FORBIDDEN: &'static str = "";

    /// Reads an object.
    fn read(&mut self, object: Self::Object) -> Self::Item;
}

/// Reads the objects of one watch for its followers.
pub struct Reader<K: Kind>(pub K, pub Fan<K::Item>);

impl<K: Kind> watch::Mirror for Reader<K> {
    type Object = K::Object;
    const KIND: &'static str = K::KIND;
    const UNKNOWN: &'static str = K::UNKNOWN;
    const FORBIDDEN: &'static str = K::FORBIDDEN;

    fn set(&mut self, object: K::Object) {
        let key = watch::key(&object);
        let item = self.0.read(object);
        self.1.set(&key, &item);
    }

    fn remove(&mut self, key: &Key) {
        self.1.remove(key);
    }

    fn retain(&mut self, keys: &HashSet<Key>) {
        self.1.retain(keys);
    }

    fn follows(&mut self, follows: bool) {
        self.1.follows(follows);
    }
}
