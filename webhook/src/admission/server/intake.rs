//! How reviews come in: within their time, and within the memory that all of
//! them may take together.
//!
//! A parsed document takes far more than its text, so the text is weighed
//! before it is parsed ([`weight`]), and waits until there is room.
//!
//! All reviews together take 256 MiB at most: [`ARRIVING`] and [`LARGE_BODIES`]
//! unparsed, [`SMALL_ROOM`] and [`LARGE_ROOM`] parsed and decided on, and
//! [`WAITING_ROOM`] parsed and waiting for the API server to answer access
//! reviews. Who waits for that has left the room of the others, which takes
//! as long as the computer needs, so that a slow API server keeps none of
//! them waiting. A body must arrive within [`ARRIVES`], for which one peer gets
//! half of the room at most: who sends nothing keeps no other out. What a
//! connection holds beside it is bounded by [`super::listen`]. The allocator keeps what was once used for later reviews.

use std::{future::Future, time::Duration};

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use futures::StreamExt;
use nvlink_runtime::connections::Peer;
use tokio::{
    sync::{AcquireError, Semaphore, SemaphorePermit},
    time::{Instant, timeout_at},
};

use super::{
    room::{Part, Shared, UNIT, units},
    weight::weight,
};
use crate::admission::review::{Invalid, uid_of_prefix};

/// Largest body that is read. An API server takes requests of 3 MiB at most,
/// and a review of an update holds two objects.
pub const MAX_BODY: usize = 7 << 20;
/// What is read and thrown away of a larger one, so that the client hears the answer.
const MAX_DRAINED: usize = 64 << 20;

/// Bodies up to here, which those of almost all pods are, do not wait for
/// larger ones: whoever sends slowly keeps few others waiting.
pub const SMALL: usize = 64 << 10;
/// Room for small bodies that arrive, in bytes: 384 of the largest.
const ARRIVING: usize = 24 << 20;
/// Room for larger bodies, in bytes.
const LARGE_BODIES: usize = 24 << 20;
/// Room for what small bodies become, in bytes. Their weight is taken for the
/// largest possible, so it is room for 25 of 10 KiB, and 4 of the largest.
const SMALL_ROOM: usize = 32 << 20;
/// Room for what larger bodies become, in bytes, and the most that one may
/// become. The heaviest object that etcd takes has 1.5 MB; made of nothing but
/// variables of 25 bytes it weighs 57 MiB, and an update has two.
const LARGE_ROOM: usize = 128 << 20;
/// Room for pods that wait for the API server, in bytes: some 2,000 of 1 KiB
/// of text, 240 of 10 KiB.
pub const WAITING_ROOM: usize = 48 << 20;

/// Times its length: more than any text weighs.
const HEAVIEST: usize = 128;
/// What a body gets to arrive when there is room for it, and a second more for
/// each MiB: an API server sends it at once.
const ARRIVES: Duration = Duration::from_secs(2);

/// Where reviews come in.
#[derive(Debug)]
pub(super) struct Intake {
    arriving: Shared,
    bodies: Shared,
    small: Semaphore,
    large: Semaphore,
    waiting: Semaphore,
}

/// Why a review is not decided on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unread {
    Invalid(Invalid),
    /// There is no time or no room for it.
    Overloaded(Overloaded),
}

/// There is no time or no room for a review: nothing was decided, so that the
/// API server is to do what the registration says of failed calls.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub(super) struct Overloaded {
    /// Id of the request, as far as it is known.
    pub(super) uid: String,
    /// What there was none of.
    pub(super) reason: &'static str,
}

impl Overloaded {
    pub(super) const LATE: &str =
        "the API server did not answer the access reviews in time: try again";
    const GONE: &str = "the request ended early";
    const SLOW: &str = "the request did not arrive in time";
    const FULL: &str = "other reviews take all the memory that there is for them: try again";
}

/// A review's text, and the room that it has until this is dropped.
#[derive(Debug)]
pub(super) struct Seat<'a> {
    intake: &'a Intake,
    pub(super) body: Vec<u8>,
    /// For the text and for what it becomes; none when it waits.
    deciding: Option<(Part<'a>, SemaphorePermit<'a>)>,
    waiting: Option<SemaphorePermit<'a>>,
}

impl Seat<'_> {
    /// Makes room for others, because the decision waits for the API server.
    /// The text goes, and what it has become counts by its weight.
    ///
    /// # Errors
    /// When too many wait already.
    pub(super) fn wait(&mut self) -> Result<(), &'static str> {
        if self.waiting.is_none() {
            let units = units(weight(&self.body)).ok_or(Overloaded::FULL)?;
            let permit = self.intake.waiting.try_acquire_many(units);
            self.waiting = Some(permit.map_err(|_| Overloaded::FULL)?);
            self.body = Vec::new();
            self.deciding = None;
        }
        Ok(())
    }
}

impl Default for Intake {
    fn default() -> Self {
        let room = |bytes| Semaphore::new(bytes / UNIT);
        Self {
            arriving: Shared::new(ARRIVING),
            bodies: Shared::new(LARGE_BODIES),
            small: room(SMALL_ROOM),
            large: room(LARGE_ROOM),
            waiting: room(WAITING_ROOM),
        }
    }
}

impl Intake {
    /// Reads a review that `peer` sends, and waits until there is room to parse it.
    ///
    /// # Errors
    /// When it is too large or too heavy, or does not arrive, or there is no
    /// room for it, until `deadline`.
    pub(super) async fn take(
        &self,
        peer: Option<Peer>,
        body: Body,
        deadline: Instant,
    ) -> Result<Seat<'_>, Unread> {
        let mut reader = Reader::new(body, deadline);
        let expected = reader.expected;
        let mut unparsed = reader
            .begin(&self.arriving, peer, expected.min(SMALL))
            .await?;
        if let Some(chunk) = reader.read_small().await? {
            // The first room is given up only then: what was read is in it.
            unparsed = reader.begin(&self.bodies, peer, expected).await?;
            reader.read_large(chunk).await?;
        }
        let length = reader.read.len();
        let (rooms, weight) = match length <= SMALL {
            true => (&self.small, length * HEAVIEST),
            false => (&self.large, weight(&reader.read)),
        };
        if weight > LARGE_ROOM {
            let mib = LARGE_ROOM >> 20;
            return Err(reader.invalid(&format!(
                "the request holds so many values that they take more than {mib} MiB"
            )));
        }
        // None that has to wait for more than there is comes this far.
        let units = units(weight).unwrap_or(u32::MAX);
        let parsed = reader.wait(rooms.acquire_many(units)).await?;
        Ok(Seat {
            intake: self,
            body: reader.read,
            deciding: Some((unparsed, parsed)),
            waiting: None,
        })
    }
}

/// A body that arrives.
struct Reader {
    stream: BodyDataStream,
    deadline: Instant,
    /// Until when it must have arrived.
    due: Instant,
    /// How large it says it is.
    expected: usize,
    read: Vec<u8>,
}

impl Reader {
    fn new(body: Body, deadline: Instant) -> Self {
        let size = body.size_hint().exact();
        let size = size.and_then(|size| usize::try_from(size).ok());
        Self {
            stream: body.into_data_stream(),
            deadline,
            due: deadline,
            expected: size.map_or(MAX_BODY, |size| size.min(MAX_BODY)),
            read: Vec::new(),
        }
    }

    /// Waits until there is room for so many bytes, which must arrive then.
    async fn begin<'a>(
        &mut self,
        room: &'a Shared,
        peer: Option<Peer>,
        bytes: usize,
    ) -> Result<Part<'a>, Unread> {
        let units = units(bytes).unwrap_or(u32::MAX);
        let part = self.wait(room.take(peer, units)).await?;
        let more = Duration::from_secs((bytes >> 20) as u64);
        self.due = self.deadline.min(Instant::now() + ARRIVES + more);
        Ok(part)
    }

    async fn wait<T>(
        &mut self,
        room: impl Future<Output = Result<T, AcquireError>>,
    ) -> Result<T, Unread> {
        let permit = timeout_at(self.deadline, room).await;
        let permit = permit.ok().and_then(Result::ok);
        permit.ok_or_else(|| self.overloaded(Overloaded::FULL))
    }

    /// Reads what is small. Gives the chunk with which it is not any more.
    async fn read_small(&mut self) -> Result<Option<Bytes>, Unread> {
        self.read.reserve_exact(self.expected.min(SMALL));
        while let Some(chunk) = self.chunk().await? {
            if self.read.len() + chunk.len() > SMALL {
                return Ok(Some(chunk));
            }
            self.read.extend_from_slice(&chunk);
        }
        Ok(None)
    }

    /// Reads the rest, which begins with `chunk`.
    async fn read_large(&mut self, chunk: Bytes) -> Result<(), Unread> {
        self.read
            .reserve_exact(self.expected.saturating_sub(self.read.len()));
        let (mut next, mut drained) = (Some(chunk), 0);
        while let Some(chunk) = next {
            // As much as fits, for the request's uid stands at the beginning.
            let fits = chunk.len().min(MAX_BODY - self.read.len());
            let (kept, rest) = chunk.split_at(if drained == 0 { fits } else { 0 });
            self.read.extend_from_slice(kept);
            drained += rest.len();
            if drained > MAX_DRAINED {
                break;
            }
            next = self.chunk().await?;
        }
        match drained {
            0 => Ok(()),
            _ => Err(self.invalid(&format!(
                "the request is larger than {} MiB",
                MAX_BODY >> 20
            ))),
        }
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, Unread> {
        match timeout_at(self.due, self.stream.next()).await {
            Ok(None) => Ok(None),
            Ok(Some(Ok(chunk))) => Ok(Some(chunk)),
            // The client has gone: it may have waited for too long.
            Ok(Some(Err(_))) => Err(self.overloaded(Overloaded::GONE)),
            Err(_) => Err(self.overloaded(Overloaded::SLOW)),
        }
    }

    fn invalid(&self, message: &str) -> Unread {
        Unread::Invalid(Invalid {
            uid: uid_of_prefix(&self.read),
            message: message.to_owned(),
        })
    }

    fn overloaded(&self, reason: &'static str) -> Unread {
        Unread::Overloaded(Overloaded {
            uid: uid_of_prefix(&self.read),
            reason,
        })
    }
}
