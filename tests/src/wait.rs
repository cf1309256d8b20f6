//! Waiting with a deadline, instead of sleeping and hoping.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};

const PAUSE: Duration = Duration::from_millis(50);

/// Asks `probe` until it has an answer, at most for `limit`.
///
/// `Ok(None)` and `Err` both mean "not yet"; the last error is part of the
/// message when the time is over. `what` completes "waited 5 s for …".
///
/// # Errors
/// When the deadline passes without an answer.
pub fn wait_until<T>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        let last = match probe() {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => anyhow!("not yet"),
            Err(error) => error,
        };
        if start.elapsed() >= limit {
            return Err(last.context(format!("waited {} s for {what}", limit.as_secs())));
        }
        thread::sleep(PAUSE);
    }
}
