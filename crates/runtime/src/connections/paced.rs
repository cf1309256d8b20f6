//! A connection whose client must keep pace. Clients must read responses in
//! time: one that sends requests and does not read would hold the responses in
//! memory, and its connection, forever.
//!
//! Existing timeouts do not catch such clients. Hyper limits the time for the
//! head of a request (`header_read_timeout`) and pings HTTP/2 peers, but a peer
//! that never opens its window still answers pings. The write timeout of
//! `tokio-io-timeout` restarts with each byte that is written, and sees no write
//! at all while HTTP/2 waits for a window. The body timeout of `tower-http`
//! limits how long the server waits for the next part of a body; here the body
//! is ready and waits for the client.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use super::{cut_offs::CutOff, places::Place};

/// A connection that ends when its client does not keep pace, when the client
/// is silent for too long, or when another connection needs its place.
pub struct Paced<S> {
    stream: S,
    place: Place,
    /// Since when bytes have been waiting for the client.
    blocked: Option<Instant>,
    alarm: Pin<Box<Sleep>>,
}

impl<S> Paced<S> {
    pub(super) fn new(stream: S, place: Place) -> Self {
        let alarm = Box::pin(sleep_until(Instant::now() + place.bounds().taken));
        Self {
            stream,
            place,
            blocked: None,
            alarm,
        }
    }

    /// Fails when the connection must end; otherwise sets the alarm for the next check.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.place.poll_lost(context).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let load = self.place.pace().load();
        let waits = self.blocked.into_iter().chain(load.asked).min();
        let bounds = self.place.bounds();
        let due = waits.map_or(load.idle + bounds.silent, |since| since + bounds.taken);
        if self.alarm.deadline() != due {
            self.alarm.as_mut().reset(due);
        }
        if self.alarm.as_mut().poll(context).is_pending() {
            return Ok(());
        }
        if waits.is_some() {
            self.place.cut_off(CutOff::Slow);
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Records the result of a write: a pending write waits for the client. Only
    /// a complete flush shows that nothing waits any more.
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
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.place.pace().heard();
        }
        result
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
