//! The pending responses of a connection.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use tokio::time::Instant;

use super::places::Held;

/// Size of the parts in which a response is passed to the HTTP layer, in bytes.
/// Data that HTTP/2 has already accepted waits for the client unobserved.
const PART: usize = 16 << 10;

/// The pending responses of one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// When each response was requested; numbers ascend with time.
    asked: BTreeMap<u64, Instant>,
    next: u64,
    /// When the last response ended, or when the client last sent something.
    idle: Instant,
}

impl Default for State {
    fn default() -> Self {
        Self {
            asked: BTreeMap::new(),
            next: 0,
            idle: Instant::now(),
        }
    }
}

/// The state of a connection at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// When the oldest pending response was requested.
    pub(super) asked: Option<Instant>,
    /// Since when the client has been silent.
    pub(super) idle: Instant,
}

impl Pace {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a response is requested now.
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

    pub(super) fn load(&self) -> Load {
        let state = self.state();
        Load {
            asked: state.asked.values().next().copied(),
            idle: state.idle,
        }
    }

    /// Records that the client has sent something.
    pub(super) fn heard(&self) {
        self.state().idle = Instant::now();
    }
}

/// A response that is pending as long as this value lives.
#[derive(Debug)]
pub(super) struct Untaken {
    pace: Pace,
    number: u64,
}

impl Drop for Untaken {
    fn drop(&mut self) {
        let mut state = self.pace.state();
        state.asked.remove(&self.number);
        state.idle = Instant::now();
    }
}

impl Untaken {
    /// Returns `body`, whose memory is accounted for in `held`, as a body in
    /// parts. The response is pending until the last part was passed on.
    pub(super) fn with(self, body: Body, held: Held) -> Body {
        Body::new(Parts {
            body,
            left: Bytes::new(),
            _untaken: self,
            _held: held,
        })
    }
}

struct Parts {
    body: Body,
    /// The rest of the frame that was read last.
    left: Bytes,
    _untaken: Untaken,
    _held: Held,
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
        // The last byte is a part of its own: HTTP/2 requests it only after the
        // client has opened its window for everything before it.
        let but_one = self.left.len().saturating_sub(1);
        let part = but_one.clamp(1, PART).min(self.left.len());
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
