//! The places of connections: so many are open at a time. A new one takes the
//! place of the one that was silent longest, of the peer that has most: an API
//! server has one or a few, so that nobody keeps it out by being silent.

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    io,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Instant,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
};

/// Connections that are open at a time. An API server has one, or a few where
/// more requests are under way than one takes.
const MOST: usize = 64;

/// The connections that are open.
#[derive(Debug, Default)]
pub(super) struct Places(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    open: BTreeMap<u64, Open>,
    next: u64,
}

#[derive(Debug)]
struct Open {
    peer: IpAddr,
    /// When it last sent something.
    heard: Instant,
    /// Ends the connection when it goes.
    _end: oneshot::Sender<()>,
}

impl Places {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `stream`, which is one of `peer`'s, in a place of its own.
    pub(super) fn take<S>(self: &Arc<Self>, stream: S, peer: IpAddr) -> Placed<S> {
        let (end, ended) = oneshot::channel();
        let mut state = self.state();
        if state.open.len() >= MOST {
            state.make_room();
        }
        let number = state.next;
        state.next += 1;
        let open = Open {
            peer,
            heard: Instant::now(),
            _end: end,
        };
        state.open.insert(number, open);
        Placed {
            stream,
            ended,
            number,
            places: Arc::clone(self),
        }
    }
}

impl State {
    fn make_room(&mut self) {
        let mut peers = HashMap::<_, usize>::new();
        for open in self.open.values() {
            *peers.entry(open.peer).or_default() += 1;
        }
        let rank = |open: &Open| {
            (
                peers.get(&open.peer).copied(),
                std::cmp::Reverse(open.heard),
            )
        };
        let last = self.open.iter().max_by_key(|(_, open)| rank(open));
        let Some((&number, peer)) = last.map(|(number, open)| (number, open.peer)) else {
            return;
        };
        tracing::warn!(%peer, "{MOST} connections are open: closing one that is silent for one more");
        self.open.remove(&number);
    }
}

/// A connection with a place; ends when another takes it.
#[derive(Debug)]
pub(super) struct Placed<S> {
    stream: S,
    ended: oneshot::Receiver<()>,
    number: u64,
    places: Arc<Places>,
}

impl<S> Drop for Placed<S> {
    fn drop(&mut self) {
        self.places.state().open.remove(&self.number);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Placed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // A receiver that has ended must not be asked again.
        if self.ended.is_terminated() || Pin::new(&mut self.ended).poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before
            && let Some(open) = self.places.state().open.get_mut(&self.number)
        {
            open.heard = Instant::now();
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Placed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
