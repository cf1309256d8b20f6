//! Free loopback ports.

use std::{
    net::{SocketAddr, TcpListener},
    process,
    sync::atomic::{AtomicU16, Ordering},
    time::SystemTime,
};

use anyhow::{Result, bail};

/// The first port, below the range that the kernel uses for outgoing connections, so that none of
/// them gets a port between its choice and its use.
const FIRST: u16 = 20_000;
const COUNT: u16 = 10_000;

/// Returns a loopback port on which nothing listens, never the same twice.
///
/// # Errors
/// When all ports of the range are in use.
pub fn free() -> Result<u16> {
    static CURSOR: AtomicU16 = AtomicU16::new(u16::MAX);
    // Start at a random port, unlike other processes that run at the same time.
    let _ = CURSOR.compare_exchange(u16::MAX, start(), Ordering::Relaxed, Ordering::Relaxed);
    for _ in 0..COUNT {
        let port = FIRST + CURSOR.fetch_add(1, Ordering::Relaxed) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port between {FIRST} and {}", FIRST + COUNT)
}

/// Returns a loopback address with such a port.
///
/// # Errors
/// As [`free`].
pub fn address() -> Result<SocketAddr> {
    Ok(SocketAddr::from(([127, 0, 0, 1], free()?)))
}

fn start() -> u16 {
    let nanos = SystemTime::UNIX_EPOCH
        .elapsed()
        .map_or(0, |time| time.subsec_nanos());
    let mixed = (process::id() ^ nanos).wrapping_mul(0x9E37_79B9) >> 16;
    u16::try_from(mixed).unwrap_or_default() % COUNT
}
