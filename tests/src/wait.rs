//! Waits for a condition with a deadline, instead of sleeping for a fixed time.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};

/// The shortest and the longest pause between two probes.
const PAUSE: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(500)];

/// Calls `probe` until it returns a value, for `limit` at most; longer while many processes share a processor.
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
        let waited = start.elapsed();
        if waited >= limit && waited >= limit * crowd() {
            return Err(last.context(format!("waited {} s for {what}", waited.as_secs())));
        }
        thread::sleep((2 * began.elapsed()).clamp(PAUSE[0], PAUSE[1]));
    }
}

/// Returns how many processes share a processor: what takes a minute on an idle machine takes so many minutes. At
/// most 4, so that a test that fails ends.
#[must_use]
pub fn crowd() -> u32 {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let whole = load.split('.').next().and_then(|text| text.parse().ok());
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let processors = u32::try_from(processors).unwrap_or(1);
    (whole.unwrap_or(0_u32) / processors).clamp(1, 4)
}
