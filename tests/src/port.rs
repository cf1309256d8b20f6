//! Free loopback ports.

use std::{
    net::TcpListener,
    process,
    sync::atomic::{AtomicU16, Ordering},
    time::SystemTime,
};

use anyhow::{Result, bail};

/// Below the range from which the kernel takes ports for outgoing
/// connections, so that none of them takes a port between the choice and its use.
const FIRST: u16 = 20_000;
const COUNT: u16 = 10_000;

/// A loopback port that nothing listens on, never the same twice.
///
/// # Errors
/// When all ports of the range are taken.
pub fn free() -> Result<u16> {
    static CURSOR: AtomicU16 = AtomicU16::new(u16::MAX);
    // Start where another process that runs at the same time probably does not.
    let _ = CURSOR.compare_exchange(u16::MAX, start(), Ordering::Relaxed, Ordering::Relaxed);
    for _ in 0..COUNT {
        let port = FIRST + CURSOR.fetch_add(1, Ordering::Relaxed) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port between {FIRST} and {}", FIRST + COUNT)
}

fn start() -> u16 {
    let nanos = SystemTime::UNIX_EPOCH
        .elapsed()
        .map_or(0, |time| time.subsec_nanos());
    let mixed = (process::id() ^ nanos).wrapping_mul(0x9E37_79B9) >> 16;
    u16::try_from(mixed).unwrap_or_default() % COUNT
}
