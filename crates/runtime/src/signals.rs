//! SIGTERM and SIGINT.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end the program.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// Installs handlers for the signals; from then on they wait to be received.
/// Call it within a tokio runtime, before anything that takes time: process 1 of
/// a container does not get a signal that it does not handle.
///
/// # Errors
/// When a handler cannot be installed.
pub fn install() -> io::Result<Signals> {
    Ok(Signals {
        terminate: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
    })
}

impl Signals {
    /// Waits for a signal and returns its name. The future may be dropped and
    /// requested again: no signal is lost.
    pub async fn received(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
