//! The attempts of one write: how long each may take, when the next one is due, and what the log says
//! of a write that nobody answers.

use std::{future::Future, time::Duration};

use nvlink_runtime::client;
use tokio::time::{Instant, sleep, timeout};

/// Pauses before a write is tried again that the API server had no time for.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);
/// How long an answer may take. A write that is not answered is tried again: it says which version
/// it changes, so it is not made twice.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How long the API server may work on a write, seconds: it then answers with an error, also where
/// it waits for a webhook of somebody else. Less than [`PATIENCE`].
const DEADLINE: &str = "timeout=4s";
/// After so many answers that the API server failed (5xx), what it was to write is read. If that
/// can be read and has not changed, the write is refused: something that it calls, such as a webhook
/// of somebody else, may be down for long. With [`FIRST`], this takes some seconds.
const FAILURES: u32 = 6;
/// The time between two lines of the log about one write.
const QUIET: Duration = Duration::from_secs(60);

/// Why and when a write is tried again.
#[derive(Clone, Debug)]
pub(super) struct Again {
    /// After this time, if the API server names one.
    wait: Option<Duration>,
    /// The API server answers that it failed.
    pub(super) failed: bool,
    /// Why the API server gave no answer that counts; `None` if it did.
    why: Option<String>,
}

impl Again {
    /// What the answer says may be otherwise soon.
    pub(super) const SOON: Self = Self {
        wait: None,
        failed: false,
        why: None,
    };

    /// There was no answer that counts, for this reason.
    pub(super) fn unanswered(error: &kube::Error) -> Self {
        Self {
            why: Some(client::reason(error)),
            ..Self::SOON
        }
    }

    /// Returns when to try again after `error`; `None` if that cannot help.
    pub(super) fn after(error: &kube::Error) -> Option<Self> {
        let unanswered = Self::unanswered(error);
        let kube::Error::Api(status) = error else {
            return Some(unanswered);
        };
        if is_too_large(status) {
            return None;
        }
        let details = status.details.as_ref();
        let seconds = details.map_or(0, |details| details.retry_after_seconds);
        let wait = Duration::from_secs(seconds.into()).min(LONGEST);
        matches!(status.code, 429 | 500..).then_some(Self {
            wait: (seconds > 0).then_some(wait),
            failed: status.code >= 500,
            ..unanswered
        })
    }
}

/// Reports whether the object is larger than the API server stores. etcd's words come as the API
/// server's own failure (etcd, `api/v3rpc/rpctypes`, `ErrGRPCRequestTooLarge`).
fn is_too_large(status: &kube::core::Status) -> bool {
    status.code == 413 || status.message.contains("request is too large")
}

/// The attempts of one write so far.
#[derive(Debug)]
pub(super) struct Attempts<'a> {
    /// The object: its kind, namespace and name.
    object: [&'a str; 3],
    /// What is written, as metrics have it.
    write: &'static str,
    began: Instant,
    /// When the log last said that it is not answered.
    told: Option<Instant>,
    pause: Duration,
    /// How often the API server has answered that it failed.
    failures: u32,
}

impl<'a> Attempts<'a> {
    /// Begins to write an object, which is this `kind`, `namespace` and `name`.
    pub(super) fn new(object: [&'a str; 3], write: &'static str) -> Self {
        Self {
            object,
            write,
            began: Instant::now(),
            told: None,
            pause: FIRST,
            failures: 0,
        }
    }

    /// Reports whether the next failure of the API server is one too many.
    pub(super) fn are_many(&self) -> bool {
        self.failures + 1 >= FAILURES
    }

    /// Waits until the next attempt is due.
    pub(super) async fn pause(&mut self, again: Again) {
        self.failures = self.failures.saturating_add(again.failed.into());
        if let Some(why) = &again.why {
            self.tell(why);
        }
        sleep(again.wait.unwrap_or(self.pause)).await;
        self.pause = (self.pause * 2).min(LONGEST);
    }

    /// Logs that the write is not answered, once a minute. A restart of the API server is no news.
    fn tell(&mut self, reason: &str) {
        let waited = self.began.elapsed();
        let quiet = self.told.is_some_and(|told| told.elapsed() < QUIET);
        if waited < PATIENCE || quiet {
            return;
        }
        self.told = Some(Instant::now());
        let ([kind, namespace, name], write) = (self.object, self.write);
        let seconds = waited.as_secs();
        tracing::warn!(
            kind,
            namespace,
            name,
            write,
            seconds,
            reason,
            "a write of the queue is not answered; retrying"
        );
    }
}

/// Waits for the end of an attempt, but no longer than an answer may take.
pub(super) async fn in_patience<T>(
    attempt: impl Future<Output = Result<T, Again>>,
) -> Result<T, Again> {
    let answer = timeout(PATIENCE, attempt).await;
    answer.unwrap_or_else(|_| {
        Err(Again {
            why: Some(format!("no answer in {} s", PATIENCE.as_secs())),
            ..Again::SOON
        })
    })
}

/// Returns the code of the API server's answer, or 0.
pub(super) fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

/// Gives a write its [`DEADLINE`].
pub(super) fn in_time(request: http::Request<Vec<u8>>) -> kube::Result<http::Request<Vec<u8>>> {
    let (mut head, body) = request.into_parts();
    let between = match head.uri.query() {
        None => "?",
        Some(query) if query.is_empty() || query.ends_with('&') => "",
        Some(_) => "&",
    };
    let uri = format!("{}{between}{DEADLINE}", head.uri).parse();
    head.uri = uri.map_err(|error: http::uri::InvalidUri| kube::Error::HttpError(error.into()))?;
    Ok(http::Request::from_parts(head, body))
}
