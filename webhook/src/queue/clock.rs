//! The time by which pods wait: that of the API server, which stamps them.

use std::time::Duration;

use axum::http::Request;
use k8s_openapi::jiff::{Timestamp, fmt::rfc2822};
use kube::{Client, client::Body};
use nvlink_planner::Millis;
use tokio::time::Instant;

/// A difference to the API server's clock above which it is not a matter of rounding.
const JUMP: Millis = 2_000;

/// The time of the API server, as last heard, plus the time that has passed since by a clock that
/// nobody sets. So a jump of this machine's clock changes nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    heard: Millis,
    at: Instant,
}

impl Clock {
    /// Starts with this machine's time, until the API server is heard.
    pub(super) fn start() -> Self {
        Self {
            heard: Timestamp::now().as_millisecond(),
            at: Instant::now(),
        }
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

    /// Takes over the API server's time, which is cut to seconds: the latest one is the best.
    pub(super) fn hear(&mut self, server: Millis) {
        let own = self.now();
        if server > own || own - server > JUMP {
            *self = Self {
                heard: server,
                at: Instant::now(),
            };
        }
    }
}

/// Asks the API server for its time, in whole seconds.
pub(super) async fn ask(client: Client) -> Option<Millis> {
    let request = Request::get("/version").body(Body::empty()).ok()?;
    let answer = client.send(request).await.ok()?;
    let date = answer.headers().get("date")?.to_str().ok()?;
    Some(rfc2822::parse(date).ok()?.timestamp().as_millisecond())
}
