//! Waits for a condition with a deadline, instead of sleeping for a fixed time.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};

/// The shortest and the longest pause between two probes.
const PAUSE: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(500)];

/// Calls `probe` until it returns a value, for `limit` at most.
///
/// `Ok(None)` and `Err` both mean "not yet". After the deadline, the last error is part of the
/// message. `what` completes "waited 5 s for …".
///
/// The pause between two probes is twice as long as a probe takes, so that those that start a program
/// leave the processors to the tests that do not wait.
///
/// # Errors
/// When the deadline passes without a value.
pub fn wait_until<T>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        let began = Instant::now();
        let last = match probe() {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => anyhow!("not yet"),
            Err(error) => error,
        };
        if start.elapsed() >= limit {
            return Err(last.context(format!("waited {} s for {what}", limit.as_secs())));
        }
        thread::sleep((2 * began.elapsed()).clamp(PAUSE[0], PAUSE[1]));
    }
}
