//! The time by which pods wait: that of the API server, which stamps them.

use std::time::Duration;

use http::Request;
use k8s_openapi::jiff::{Timestamp, fmt::rfc2822};
use kube::{Client, client::Body};
use nvlink_planner::Millis;
use tokio::time::{Instant, timeout};

/// API servers cut their time to seconds.
const SECOND: Millis = 1_000;
/// A larger difference to the API server's clock is not a matter of rounding.
const JUMP: Millis = 2_000;
/// An answer that took longer says too little about the time, unless it is the first.
const SLOW: Duration = Duration::from_secs(1);
/// How long an answer may take: until the first, nothing is done.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time between two questions, and before the first answer.
const ASK: Duration = Duration::from_secs(30);
const FIRST: Duration = Duration::from_secs(1);

/// The time of the API server, as last heard, plus the time that has passed since by a clock that
/// nobody sets. So a jump of this machine's clock changes nothing, and one of the API server's is
/// seen ([`Clock::hear`]).
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    heard: Millis,
    at: Instant,
    set: bool,
}

/// The time of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    /// Its time, cut to seconds, at some moment while it was asked.
    pub(super) server: Millis,
    /// How long the answer took.
    pub(super) took: Duration,
}

/// The API server's clock was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Jump {
    /// By how much; negative if it was set back.
    pub(super) by: Millis,
    /// The time before.
    pub(super) before: Millis,
}

impl Clock {
    /// Returns a clock that has heard nothing: its time is that of this machine, which may be any.
    pub(super) fn start() -> Self {
        Self {
            heard: Timestamp::now().as_millisecond(),
            at: Instant::now(),
            set: false,
        }
    }

    /// Reports whether the API server was heard. Before that, nothing can be said about how long
    /// a pod has waited.
    pub(super) fn is_set(&self) -> bool {
        self.set
    }

    /// Returns the time.
    pub(super) fn now(&self) -> Millis {
        let passed = Millis::try_from(self.at.elapsed().as_millis());
        self.heard.saturating_add(passed.unwrap_or_default())
    }

    /// Returns when it will be `time`.
    pub(super) fn instant(&self, time: Millis) -> Instant {
        let wait = u64::try_from(time.saturating_sub(self.now())).unwrap_or(0);
        Instant::now() + Duration::from_millis(wait)
    }

    /// Returns how long to wait until the API server is asked again.
    pub(super) fn pause(&self) -> Duration {
        if self.set { ASK } else { FIRST }
    }

    /// Takes over the API server's time. Reports a jump of its clock since it was heard before:
    /// what it stamped earlier is then by another clock than what it stamps now.
    pub(super) fn hear(&mut self, heard: Heard) -> Option<Jump> {
        let Heard { server, took } = heard;
        let own = self.now();
        if !self.set {
            self.take(server);
            return None;
        }
        if took > SLOW {
            return None;
        }
        let took = Millis::try_from(took.as_millis()).unwrap_or(Millis::MAX);
        let latest = server.saturating_add(SECOND).saturating_add(took);
        let ahead = own > latest.saturating_add(JUMP);
        if server > own || ahead {
            self.take(server);
        }
        let by = server - own;
        (by > JUMP || ahead).then_some(Jump { by, before: own })
    }

    fn take(&mut self, server: Millis) {
        *self = Self {
            heard: server,
            at: Instant::now(),
            set: true,
        };
    }
}

/// Asks the API server for its time; `None` if it does not answer. What lies between may remove
/// the time from the answer: then it is that of this machine.
pub(super) async fn ask(client: Client) -> Option<Heard> {
    let request = Request::get("/version").body(Body::empty()).ok()?;
    let asked = Instant::now();
    let answer = timeout(PATIENCE, client.send(request)).await;
    let answer = answer.ok()?.ok()?;
    let took = asked.elapsed();
    let date = answer.headers().get("date").and_then(|date| {
        let date = rfc2822::parse(date.to_str().ok()?).ok()?;
        Some(date.timestamp())
    });
    let server = date.unwrap_or_else(Timestamp::now).as_millisecond();
    Some(Heard { server, took })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Millis = 1_785_585_600_000;
    const HOUR: Millis = 3_600_000;

    /// Returns a clock that heard noon a minute ago.
    async fn clock() -> Clock {
        let mut clock = Clock::start();
        assert!(!clock.is_set());
        assert_eq!(clock.hear(heard(NOON, 2_000)), None, "the first is no jump");
        assert!(clock.is_set());
        tokio::time::advance(Duration::from_secs(60)).await;
        clock
    }

    fn heard(server: Millis, took: u64) -> Heard {
        let took = Duration::from_millis(took);
        Heard { server, took }
    }

    #[tokio::test(start_paused = true)]
    async fn rounding_and_slow_answers_are_no_jumps() {
        for (server, took, now) in [
            (60_000, 10, 60_000),
            (59_000, 10, 60_000),
            (61_000, 10, 61_000),
            (58_000, 900, 60_000),
            (40_000, 20_000, 60_000),
            (90_000, 20_000, 60_000),
        ] {
            let mut clock = clock().await;
            assert_eq!(clock.hear(heard(NOON + server, took)), None, "{server}");
            assert_eq!(clock.now(), NOON + now, "{server} in {took} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_was_set_is_followed_and_reported() {
        for by in [HOUR, -HOUR] {
            let mut clock = clock().await;
            let before = NOON + 60_000;
            let jump = clock.hear(heard(before + by, 10));
            assert_eq!(jump, Some(Jump { by, before }));
            assert_eq!(clock.now(), before + by);
            assert_eq!(clock.hear(heard(before + by, 10)), None, "once");
        }
    }
}
