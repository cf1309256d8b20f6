//! Places for connections, and room in memory for their answers.
//!
//! Whoever comes gets in as long as somebody who does nothing, or who asks for
//! much, can make room: a connection that is silent (its TLS handshake may not
//! even have begun) loses its place to a new one, the peers with most
//! connections first. So many silent connections keep no scrape out.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use super::pace::{Load, Pace};

/// Connections that are open at a time, over all addresses.
const MAX: usize = 128;
/// Those of one peer.
const MAX_OF_PEER: usize = 32;
/// An answer that is under way for so long may lose its place to a new connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// What all answers that are under way hold in memory, bytes; one that is
/// larger has it alone.
const MAX_BYTES: usize = 32 << 20;
/// Those of one peer.
const MAX_BYTES_OF_PEER: usize = MAX_BYTES / 2;
/// What is cut off is told in one line for so long.
const TELL: Duration = Duration::from_secs(60);

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Peer(pub(super) IpAddr);

/// Why a client lost its connection or did not get its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutOff {
    /// It did nothing, and another needed its place.
    Idle,
    /// There was no place for it.
    Full,
    /// There was no room in memory for its answer.
    Memory,
    /// It did not take its answer.
    Slow,
}

impl CutOff {
    pub const ALL: [Self; 4] = [Self::Idle, Self::Full, Self::Memory, Self::Slow];

    /// The word used in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Full => "full",
            Self::Memory => "memory",
            Self::Slow => "slow",
        }
    }
}

/// The places of all servers.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    open: Arc<Mutex<Open>>,
    cut_offs: CutOffs,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    connections: BTreeMap<u64, Connection>,
}

#[derive(Debug)]
struct Connection {
    peer: Peer,
    pace: Pace,
    /// Its end is the end of the connection.
    _place: oneshot::Sender<()>,
}

impl Open {
    fn of_peer(&self, peer: Peer) -> impl Iterator<Item = &Connection> {
        let all = self.connections.values();
        all.filter(move |one| one.peer == peer)
    }

    /// Who gives its place to `peer`; none where all are at work.
    fn victim(&self, peer: Peer, now: Instant) -> Option<u64> {
        let own = self.of_peer(peer).count() >= MAX_OF_PEER;
        let all = self.connections.iter();
        let others = all.filter(|(_, one)| !own || one.peer == peer);
        let ranked = others.filter_map(|(&number, one)| {
            let Load { asked, idle, .. } = one.pace.load();
            let patient = asked.is_none_or(|asked| now.duration_since(asked) >= PATIENCE);
            let connections = Reverse(self.of_peer(one.peer).count());
            let since = asked.unwrap_or(idle);
            patient.then_some(((asked.is_some(), connections, since), number))
        });
        ranked.min().map(|(_, number)| number)
    }
}

impl Places {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn cut_offs(&self) -> &CutOffs {
        &self.cut_offs
    }

    /// A place for `peer`; none where there is no room.
    pub(super) fn enter(&self, peer: Peer) -> Option<Place> {
        let mut open = self.open();
        let full = open.connections.len() >= MAX || open.of_peer(peer).count() >= MAX_OF_PEER;
        if full {
            let Some(victim) = open.victim(peer, Instant::now()) else {
                drop(open);
                self.cut_offs.add(CutOff::Full, peer);
                return None;
            };
            let victim = open.connections.remove(&victim);
            let idle = victim.map(|one| (one.peer, one.pace.load().asked.is_none()));
            if let Some((peer, idle)) = idle {
                let why = if idle { CutOff::Idle } else { CutOff::Slow };
                self.cut_offs.add(why, peer);
            }
        }
        let (place, lost) = oneshot::channel();
        let number = open.next;
        open.next += 1;
        let pace = Pace::default();
        let connection = Connection {
            peer,
            pace: pace.clone(),
            _place: place,
        };
        open.connections.insert(number, connection);
        let seat = Arc::new(Seat {
            places: self.clone(),
            number,
            peer,
            pace,
        });
        Some(Place { seat, lost })
    }
}

/// The place of one connection, for as long as it lives.
#[derive(Debug)]
pub(super) struct Place {
    seat: Arc<Seat>,
    lost: oneshot::Receiver<()>,
}

impl Place {
    pub(super) fn seat(&self) -> Arc<Seat> {
        Arc::clone(&self.seat)
    }

    pub(super) fn pace(&self) -> &Pace {
        &self.seat.pace
    }

    pub(super) fn cut_off(&self, why: CutOff) {
        self.seat.places.cut_offs.add(why, self.seat.peer);
    }

    /// Ready when another needs it.
    pub(super) fn poll_lost(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.lost.is_terminated() {
            return Poll::Ready(());
        }
        Pin::new(&mut self.lost).poll(context).map(drop)
    }

    /// Waits until another needs it.
    pub(super) async fn lost(&mut self) {
        std::future::poll_fn(|context| self.poll_lost(context)).await;
    }
}

/// What a connection and its service share.
#[derive(Debug)]
pub(super) struct Seat {
    places: Places,
    number: u64,
    pub(super) peer: Peer,
    pub(super) pace: Pace,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.places.open().connections.remove(&self.number);
    }
}

impl Seat {
    /// Whether there is room in memory for so many bytes more.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        let open = self.places.open();
        let sum = |held: &mut dyn Iterator<Item = &Connection>| -> usize {
            held.map(|one| one.pace.load().bytes).sum()
        };
        let all = sum(&mut open.connections.values());
        let own = sum(&mut open.of_peer(self.peer));
        let fits = |held: usize, most: usize| held == 0 || held + bytes <= most;
        let room = fits(all, MAX_BYTES) && fits(own, MAX_BYTES_OF_PEER);
        drop(open);
        if !room {
            self.places.cut_offs.add(CutOff::Memory, self.peer);
        }
        room
    }
}

/// How many clients were cut off since the start.
#[derive(Clone, Debug, Default)]
pub struct CutOffs(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    counts: [AtomicU64; CutOff::ALL.len()],
    told: Mutex<Option<(Instant, u64)>>,
}

impl CutOffs {
    #[must_use]
    pub fn counts(&self) -> [(CutOff, u64); 4] {
        CutOff::ALL.map(|why| (why, self.0.counts[why as usize].load(Ordering::Relaxed)))
    }

    fn add(&self, why: CutOff, peer: Peer) {
        self.0.counts[why as usize].fetch_add(1, Ordering::Relaxed);
        let all: u64 = self.counts().iter().map(|(_, count)| count).sum();
        let mut told = self.0.told.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let before = match *told {
            Some((at, _)) if now.duration_since(at) < TELL => return,
            Some((_, before)) => before,
            None => 0,
        };
        *told = Some((now, all));
        tracing::warn!(
            peer = %peer.0,
            reason = why.as_str(),
            times = all - before,
            "clients are cut off: they hold connections or answers and do nothing with them, or there are too many of them"
        );
    }
}
