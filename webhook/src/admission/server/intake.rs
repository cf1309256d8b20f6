//! Reads reviews, within their deadline and within a memory limit for all reviews together.
//!
//! A parsed document takes far more memory than its text. The memory is therefore
//! estimated from the text before it is parsed ([`weight`]), and parsing waits
//! until there is room.
//!
//! All reviews together take at most 256 MiB: [`ARRIVING`] and [`LARGE_BODIES`]
//! for unparsed bodies, [`SMALL_ROOM`] and [`LARGE_ROOM`] for reviews that are
//! parsed and decided on, and [`WAITING_ROOM`] for reviews that wait for the API
//! server to answer access reviews. A review that waits gives up its place among
//! those that are decided on. These only need CPU time, so a slow API server
//! delays none of them. A body must arrive within [`ARRIVES`], and one peer gets
//! at most half of the room for arriving bodies, so a client that sends nothing
//! keeps no other out. [`super::listen`] limits the other memory of a connection.
//! The allocator keeps freed memory for later reviews.

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

/// The largest accepted body, in bytes. An API server accepts requests of at most
/// 3 MiB, and a review of an update holds two objects.
pub const MAX_BODY: usize = 7 << 20;
/// How much of a larger body is read and discarded, in bytes, so that the client
/// gets the answer.
const MAX_DRAINED: usize = 64 << 20;

/// The largest body that counts as small, in bytes, as those of almost all pods
/// do. Small bodies do not wait for larger ones, so a slow sender delays few others.
pub const SMALL: usize = 64 << 10;
/// Room for arriving small bodies, in bytes: 384 of the largest.
const ARRIVING: usize = 24 << 20;
/// Room for arriving larger bodies, in bytes.
const LARGE_BODIES: usize = 24 << 20;
/// Room for parsed small bodies, in bytes. Each counts with the largest weight
/// that its length allows, so there is room for 25 of 10 KiB, or 4 of the largest.
const SMALL_ROOM: usize = 32 << 20;
/// Room for parsed larger bodies, in bytes, and the most that one may take. The
/// largest object that etcd accepts has 1.5 MB; if it consists of environment
/// variables of 25 bytes it takes 57 MiB, and an update has two objects.
const LARGE_ROOM: usize = 128 << 20;
/// Room for pods that wait for the API server, in bytes: about 2,000 whose text
/// has 1 KiB, or 240 of 10 KiB.
pub const WAITING_ROOM: usize = 48 << 20;

/// The largest possible ratio of a document's weight to the length of its text.
const HEAVIEST: usize = 128;
/// Time for a body to arrive once there is room for it, plus a second for each
/// MiB: an API server sends it at once.
const ARRIVES: Duration = Duration::from_secs(2);

/// The memory for incoming reviews.
#[derive(Debug)]
pub(super) struct Intake {
    arriving: Shared,
    bodies: Shared,
    small: Semaphore,
    large: Semaphore,
    waiting: Semaphore,
}

/// Why there is no decision on a review.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unread {
    Invalid(Invalid),
    /// There was no time or no room for it.
    Overloaded(Overloaded),
}

/// There was no time or no room for a review. Nothing was decided, and the API
/// server applies the failure policy of the registration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub(super) struct Overloaded {
    /// Id of the request; empty if it is unknown.
    pub(super) uid: String,
    /// Whether time or room was missing, and why.
    pub(super) reason: &'static str,
}

impl Overloaded {
    pub(super) const LATE: &str =
        "the API server did not answer the access reviews in time: try again";
    const GONE: &str = "the client closed the connection before the whole request arrived";
    const SLOW: &str = "the request did not arrive in time";
    const FULL: &str = "other reviews use all the memory that reviews may use: try again";
}

/// A review's text, and the room that it holds until this is dropped.
#[derive(Debug)]
pub(super) struct Seat<'a> {
    intake: &'a Intake,
    pub(super) body: Vec<u8>,
    /// Room for the text and for the parsed document; none while it waits.
    deciding: Option<(Part<'a>, SemaphorePermit<'a>)>,
    waiting: Option<SemaphorePermit<'a>>,
}

impl Seat<'_> {
    /// Makes room for others, because the decision waits for the API server.
    /// Drops the text; the parsed document counts with its weight.
    ///
    /// # Errors
    /// When too many reviews wait already.
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
    /// Reads a review from `peer`, and waits until there is room to parse it.
    ///
    /// # Errors
    /// When it is too large or too heavy, or when it has not arrived or has no
    /// room by `deadline`.
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
            // Release the first room only now: it covers what was read so far.
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
                "the request has so many values that they take more than {mib} MiB of memory"
            )));
        }
        // A weight that exceeds the whole room was refused above.
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
    /// When all of it must have arrived.
    due: Instant,
    /// Its announced size, in bytes.
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

    /// Waits until there is room for `bytes`, and then starts the time for them to arrive.
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

    /// Reads a small body. Returns the chunk that exceeded [`SMALL`], or `None`
    /// at the end of the body.
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

    /// Reads the rest of a large body, which starts with `chunk`.
    async fn read_large(&mut self, chunk: Bytes) -> Result<(), Unread> {
        self.read
            .reserve_exact(self.expected.saturating_sub(self.read.len()));
        let (mut next, mut drained) = (Some(chunk), 0);
        while let Some(chunk) = next {
            // Keep as much as fits: the request's uid is at the beginning.
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
            // The client closed the connection: it may have waited for too long.
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
