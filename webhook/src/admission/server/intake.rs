//! How reviews come in: within a time, and within the memory that all of them
//! may take together.
//!
//! A parsed document takes far more than its text: an object with one field in
//! seven bytes becomes a map of 640. Measured with 7 MiB of each: 118 times the
//! text where maps are nested, 96 times for a list of `{"":0}`, 66 times for
//! nested arrays, 26 times for a list of variables, 9 to 16 times for long flat
//! ones; a pod of 10 KiB takes 10 to 20 times. So the text is weighed before it
//! is parsed ([`weight`] is above each of these), and waits until there is room.
//!
//! All reviews together take 256 MiB at most: [`SMALL_ROOM`] and [`LARGE_ROOM`]
//! parsed, and [`LARGE_BODIES`] unparsed. Beside it each connection may be in
//! the middle of sending [`SMALL`] bytes. The allocator keeps what was once
//! used for later reviews.

use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use futures::StreamExt;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout_at},
};

use crate::admission::review::{Invalid, uid_of_prefix};

/// Largest body that is read. An API server takes requests of 3 MiB at most,
/// and a review of an update holds two objects.
pub const MAX_BODY: usize = 7 << 20;
/// What is read and thrown away of a larger one, so that the client hears the answer.
const MAX_DRAINED: usize = 64 << 20;
/// What a review gets to arrive and to wait: the API server waits 5 seconds for the answer.
pub const ARRIVAL: Duration = Duration::from_secs(4);

/// Bodies up to here, which those of almost all pods are, are read without
/// asking for room: whoever sends slowly keeps nobody else waiting.
pub const SMALL: usize = 64 << 10;
/// Room for larger bodies, in bytes.
const LARGE_BODIES: usize = 32 << 20;
/// Room for what small bodies become, in bytes. Their weight is taken for the
/// largest possible, so it is room for 76 of 10 KiB, and 12 of the largest.
pub const SMALL_ROOM: usize = 96 << 20;
/// Room for what larger bodies become, in bytes, and the most that one may
/// become. The heaviest object that etcd takes has 1.5 MB; made of nothing but
/// variables of 25 bytes it weighs 57 MiB, and an update has two.
const LARGE_ROOM: usize = 128 << 20;

/// Times its length: more than any text weighs.
const HEAVIEST: usize = 128;
/// Room is handed out in units of so many bytes.
const UNIT: usize = 1 << 10;

/// Where reviews come in.
#[derive(Debug)]
pub(super) struct Intake {
    bodies: Semaphore,
    small: Semaphore,
    large: Semaphore,
}

/// A review's text, and the room that it has until this is dropped.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    pub(super) body: Vec<u8>,
    _parsed: SemaphorePermit<'a>,
    _unparsed: Option<SemaphorePermit<'a>>,
}

impl Default for Intake {
    fn default() -> Self {
        Self {
            bodies: Semaphore::new(LARGE_BODIES / UNIT),
            small: Semaphore::new(SMALL_ROOM / UNIT),
            large: Semaphore::new(LARGE_ROOM / UNIT),
        }
    }
}

impl Intake {
    /// Reads a review, and waits until there is room to parse it.
    ///
    /// # Errors
    /// When it does not arrive until `deadline`, is too large or too heavy, or
    /// there is no room until then.
    pub(super) async fn take(&self, body: Body, deadline: Instant) -> Result<Taken<'_>, Invalid> {
        let mut reader = Reader::new(body, deadline);
        let mut unparsed = None;
        if let Some(chunk) = reader.read_small().await? {
            let permit = room(&self.bodies, reader.expected, deadline).await;
            unparsed = Some(permit.ok_or_else(|| reader.invalid(BUSY))?);
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
        let permit = room(rooms, weight, deadline).await;
        Ok(Taken {
            _parsed: permit.ok_or_else(|| reader.invalid(BUSY))?,
            _unparsed: unparsed,
            body: reader.read,
        })
    }
}

const BUSY: &str = "other reviews take all the memory that there is for them: try again";

async fn room(rooms: &Semaphore, bytes: usize, deadline: Instant) -> Option<SemaphorePermit<'_>> {
    let units = u32::try_from(bytes.div_ceil(UNIT)).ok()?;
    let permit = timeout_at(deadline, rooms.acquire_many(units)).await;
    permit.ok()?.ok()
}

/// The most that the document in `body` takes when it is parsed, in bytes.
/// Quick, and exact enough: what stands in strings does not count.
fn weight(body: &[u8]) -> usize {
    let (mut objects, mut arrays, mut commas) = (0, 0, 0);
    let (mut inside, mut escaped) = (false, false);
    for &byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = inside,
            b'"' => inside = !inside,
            _ if inside => {}
            b'{' => objects += 1,
            b'[' => arrays += 1,
            b',' => commas += 1,
            _ => {}
        }
    }
    2 * body.len() + 648 * objects + 144 * arrays + 150 * commas
}

/// A body that arrives.
struct Reader {
    stream: BodyDataStream,
    deadline: Instant,
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
            expected: size.map_or(MAX_BODY, |size| size.min(MAX_BODY)),
            read: Vec::new(),
        }
    }

    /// Reads what is small. Gives the chunk with which it is not any more.
    async fn read_small(&mut self) -> Result<Option<Bytes>, Invalid> {
        while let Some(chunk) = self.chunk().await? {
            if self.read.len() + chunk.len() > SMALL {
                return Ok(Some(chunk));
            }
            self.read.extend_from_slice(&chunk);
        }
        Ok(None)
    }

    /// Reads the rest, which begins with `chunk`.
    async fn read_large(&mut self, chunk: Bytes) -> Result<(), Invalid> {
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

    async fn chunk(&mut self) -> Result<Option<Bytes>, Invalid> {
        let why = match timeout_at(self.deadline, self.stream.next()).await {
            Ok(None) => return Ok(None),
            Ok(Some(Ok(chunk))) => return Ok(Some(chunk)),
            Ok(Some(Err(error))) => error.to_string(),
            Err(_) => format!("it did not arrive within {} seconds", ARRIVAL.as_secs()),
        };
        Err(self.invalid(&format!("the request ended early: {why}")))
    }

    fn invalid(&self, message: &str) -> Invalid {
        Invalid {
            uid: uid_of_prefix(&self.read),
            message: message.to_owned(),
        }
    }
}
