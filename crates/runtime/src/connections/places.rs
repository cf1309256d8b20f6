//! Places for connections, and room in memory for their responses.
//!
//! A new connection gets a place as long as an idle connection, or one whose
//! response is pending for too long, can give up its own. The peers with the
//! most connections give up places first, and of those the silent connections
//! (whose TLS handshake may not even have begun). So many silent connections
//! cannot keep other clients out.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fmt,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use tokio::{sync::oneshot, time::Instant};

use super::{
    Bounds,
    cut_offs::{CutOff, CutOffs},
    pace::{Load, Pace},
};

/// Who is at the other end of a connection: an IPv4 address, or the /64 network of an IPv6 address, all
/// addresses of which one machine may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer(IpAddr);

impl Peer {
    /// Returns who has this address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        const HOST: u128 = u64::MAX as u128;
        Self(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !HOST).into()),
            address @ IpAddr::V4(_) => address,
        })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(network) => write!(f, "{network}/64"),
        }
    }
}

/// The places of all servers that share them.
#[derive(Clone, Debug)]
pub struct Places {
    bounds: Bounds,
    open: Arc<Mutex<Open>>,
    cut_offs: CutOffs,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    connections: BTreeMap<u64, Connection>,
    /// Memory that responses hold, in bytes, including responses of connections
    /// that have lost their place but are not closed yet.
    held: BTreeMap<Peer, usize>,
}

#[derive(Debug)]
struct Connection {
    peer: Peer,
    pace: Pace,
    /// Dropping it ends the connection.
    _place: oneshot::Sender<()>,
}

impl Open {
    fn of_peer(&self, peer: Peer) -> usize {
        let all = self.connections.values();
        all.filter(|one| one.peer == peer).count()
    }

    /// Returns the connection that gives up its place to `peer`; none if all are busy.
    fn victim(&self, peer: Peer, bounds: &Bounds, now: Instant) -> Option<u64> {
        let own = self.of_peer(peer) >= bounds.connections_of_peer;
        let mut crowds = BTreeMap::<Peer, usize>::new();
        for one in self.connections.values() {
            *crowds.entry(one.peer).or_default() += 1;
        }
        let all = self.connections.iter();
        let others = all.filter(|(_, one)| !own || one.peer == peer);
        let ranked = others.filter_map(|(&number, one)| {
            let Load { asked, idle } = one.pace.load();
            let patient = asked.is_none_or(|asked| now.duration_since(asked) >= bounds.patience);
            let crowd = Reverse(crowds.get(&one.peer));
            let since = asked.unwrap_or(idle);
            patient.then_some(((crowd, asked.is_some(), since), number))
        });
        ranked.min().map(|(_, number)| number)
    }

    /// Reserves `bytes` of memory for `peer`, and reports whether there was room.
    fn hold(&mut self, peer: Peer, bytes: usize, bounds: &Bounds) -> bool {
        let all: usize = self.held.values().sum();
        let own = self.held.get(&peer).copied().unwrap_or_default();
        let fits = |held: usize, most: usize| held == 0 || held.saturating_add(bytes) <= most;
        let room = fits(all, bounds.bytes) && fits(own, bounds.bytes_of_peer);
        if room && bytes > 0 {
            self.held.insert(peer, own + bytes);
        }
        room
    }

    fn let_go(&mut self, peer: Peer, bytes: usize) {
        if let Some(held) = self.held.get_mut(&peer) {
            *held -= bytes;
            if *held == 0 {
                self.held.remove(&peer);
            }
        }
    }
}

impl Places {
    /// Returns places that are all free.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            open: Arc::default(),
            cut_offs: CutOffs::default(),
        }
    }

    /// Returns the same places, which count clients that are cut off in `cut_offs`.
    #[must_use]
    pub fn counting(self, cut_offs: CutOffs) -> Self {
        Self { cut_offs, ..self }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counts of clients that were cut off.
    #[must_use]
    pub fn cut_offs(&self) -> &CutOffs {
        &self.cut_offs
    }

    /// Returns a place for `peer`; none if there is no room.
    #[must_use]
    pub fn enter(&self, peer: Peer) -> Option<Place> {
        let mut open = self.open();
        let full = open.connections.len() >= self.bounds.connections
            || open.of_peer(peer) >= self.bounds.connections_of_peer;
        if full {
            let Some(victim) = open.victim(peer, &self.bounds, Instant::now()) else {
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

/// The place of one connection, held as long as this value lives.
#[derive(Debug)]
pub struct Place {
    seat: Arc<Seat>,
    lost: oneshot::Receiver<()>,
}

impl Place {
    /// Returns the part of the place that the connection's service uses.
    #[must_use]
    pub fn seat(&self) -> Arc<Seat> {
        Arc::clone(&self.seat)
    }

    pub(super) fn bounds(&self) -> &Bounds {
        &self.seat.places.bounds
    }

    pub(super) fn pace(&self) -> &Pace {
        &self.seat.pace
    }

    pub(super) fn cut_off(&self, why: CutOff) {
        self.seat.places.cut_offs.add(why, self.seat.peer);
    }

    /// Becomes ready when another connection needs the place.
    pub(super) fn poll_lost(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.lost.is_terminated() {
            return Poll::Ready(());
        }
        Pin::new(&mut self.lost).poll(context).map(drop)
    }

    /// Waits until another connection needs the place.
    pub(super) async fn lost(&mut self) {
        std::future::poll_fn(|context| self.poll_lost(context)).await;
    }
}

/// The state that a connection and its service share.
#[derive(Debug)]
pub struct Seat {
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
    /// Reserves room in memory for a response of `bytes`; none if others hold it.
    #[must_use]
    pub fn hold(self: &Arc<Self>, bytes: usize) -> Option<Held> {
        let Places {
            bounds, cut_offs, ..
        } = &self.places;
        if !self.places.open().hold(self.peer, bytes, bounds) {
            cut_offs.add(CutOff::Memory, self.peer);
            return None;
        }
        Some(Held {
            seat: Arc::clone(self),
            bytes,
        })
    }
}

/// Room in memory, held as long as this value lives.
#[derive(Debug)]
pub struct Held {
    seat: Arc<Seat>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        let Seat { places, peer, .. } = &*self.seat;
        places.open().let_go(*peer, self.bytes);
    }
}
