//! SIGTERM and SIGINT.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end the program.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// From now on the signals wait to be asked for. To be called before anything
/// that takes time: process 1 of a container does not get a signal that it
/// does not handle. Within a tokio runtime.
///
/// # Errors
/// When the system refuses.
pub fn install() -> io::Result<Signals> {
    Ok(Signals {
        terminate: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
    })
}

impl Signals {
    /// Waits for a signal and names it. May be dropped and called again: none is lost.
    pub async fn received(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
