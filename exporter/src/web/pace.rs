//! Answers must be taken in time: a client that asks and does not read would
//! hold them in memory, and its connection, for ever.

use std::{
    collections::BTreeMap,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

/// What a client gets to take an answer, the time to make it included.
const TAKEN: Duration = Duration::from_secs(20);
/// An answer is handed over in parts of so many bytes: what HTTP/2 was given
/// waits for the client where [`Untaken`] does not see it.
const PART: usize = 16 << 10;

/// The answers of one connection that are under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// When each was asked for; numbers ascend with time.
    asked: BTreeMap<u64, Instant>,
    next: u64,
}

impl Pace {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An answer is asked for now.
    pub(super) fn ask(&self) -> Untaken {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.asked.insert(number, Instant::now());
        Untaken {
            pace: self.clone(),
            number,
        }
    }

    fn oldest(&self) -> Option<Instant> {
        self.state().asked.values().next().copied()
    }
}

/// An answer that is under way as long as this lives.
#[derive(Debug)]
pub(super) struct Untaken {
    pace: Pace,
    number: u64,
}

impl Drop for Untaken {
    fn drop(&mut self) {
        self.pace.state().asked.remove(&self.number);
    }
}

impl Untaken {
    /// `body` in parts; it is under way until the last one was handed over.
    pub(super) fn with(self, body: Body) -> Body {
        Body::new(Parts {
            body,
            left: Bytes::new(),
            _untaken: self,
        })
    }
}

struct Parts {
    body: Body,
    /// Of the frame that was read last.
    left: Bytes,
    _untaken: Untaken,
}

impl HttpBody for Parts {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.left.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.left = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return Poll::Ready(other),
            }
        }
        let part = self.left.len().min(PART);
        Poll::Ready(Some(Ok(Frame::data(self.left.split_to(part)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, left) = (self.body.size_hint(), self.left.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + left);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + left);
        }
        hint
    }
}

/// A connection that ends when its client does not keep pace.
pub(super) struct Paced<S> {
    stream: S,
    pace: Pace,
    /// Since when bytes wait for the client.
    blocked: Option<Instant>,
    alarm: Pin<Box<Sleep>>,
}

impl<S> Paced<S> {
    pub(super) fn new(stream: S, pace: Pace) -> Self {
        let alarm = Box::pin(sleep_until(Instant::now() + TAKEN));
        Self {
            stream,
            pace,
            blocked: None,
            alarm,
        }
    }

    /// Fails when an answer has waited too long; else wakes when it will have.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(since) = self.blocked.into_iter().chain(self.pace.oldest()).min() else {
            return Ok(());
        };
        let due = since + TAKEN;
        if self.alarm.deadline() != due {
            self.alarm.as_mut().reset(due);
        }
        match self.alarm.as_mut().poll(context) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => {
                tracing::debug!("a client does not take its answer: closing the connection");
                Err(io::ErrorKind::TimedOut.into())
            }
        }
    }

    /// After a write: one that is pending waits for the client. Only a flush
    /// tells that nothing waits any more.
    fn wrote<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_pending() {
            self.blocked.get_or_insert_with(Instant::now);
            self.check(context)?;
        }
        result
    }

    /// After a flush.
    fn flushed(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        if result.is_ready() {
            self.blocked = None;
        }
        self.wrote(context, result)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.wrote(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.flushed(context, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(context);
        self.flushed(context, result)
    }
}
