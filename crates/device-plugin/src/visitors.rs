//! Counts and reports the peers that connect to the registration socket and leave without a
//! registration.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::Router;
use nvlink_kubelet::socket::innermost;
use tokio::{net::UnixStream, time::timeout};

use super::{
    directories::{KUBELET, PREFIX},
    statistics::{Left, Statistics},
    wire,
};

/// How long a peer may take to register. NVIDIA's plugin does so at once after it has connected.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two lines of the log, and how long it must fail until this program is not ready.
const MINUTE: Duration = Duration::from_secs(60);
/// How long a socket may take to answer.
const ANSWER: Duration = Duration::from_secs(1);
/// After so long without another failure, the peer has given up: NVIDIA's plugin tries again after
/// 30 s.
const GIVEN_UP: Duration = Duration::from_secs(150);

/// What peers of the registration socket did.
#[derive(Debug, Default)]
pub(super) struct Visitors {
    statistics: Arc<Statistics>,
    failing: Mutex<Failing>,
}

/// A run of failures.
#[derive(Debug)]
struct Run {
    first: Instant,
    last: Instant,
    /// How the last one failed, and why.
    left: Left,
    reason: String,
}

/// What failed, and when something succeeded.
#[derive(Debug, Default)]
struct Failing {
    run: Option<Run>,
    succeeded: Option<Instant>,
    /// When they were last logged, and how many there were since then.
    logged: Option<Instant>,
    unlogged: u32,
}

impl Visitors {
    pub(super) fn new(statistics: Arc<Statistics>) -> Self {
        Self {
            statistics,
            failing: Mutex::default(),
        }
    }

    /// Returns why device plugins that try to register have failed to for a minute. Where the kubelet
    /// has GPUs from this program (`offers`), peers that never register may be anybody's probes.
    pub(super) fn obstacle(&self, now: Instant, offers: bool) -> Option<String> {
        let failing = self.lock();
        let run = failing.run.as_ref()?;
        let lasts = run.last.duration_since(run.first) >= MINUTE
            && now.duration_since(run.last) < GIVEN_UP
            && failing.succeeded.is_none_or(|at| at < run.last)
            && !(offers && run.left == Left::Unregistered);
        let reason = &run.reason;
        lasts.then(|| format!("device plugins connect and fail to register: {reason}"))
    }

    fn succeed(&self) {
        self.lock().succeeded = Some(Instant::now());
    }

    fn fail(&self, left: Left, reason: String, now: Instant) {
        self.statistics.left(left);
        let mut failing = self.lock();
        failing.unlogged += 1;
        let due = |at| now.duration_since(at) >= MINUTE;
        if failing.logged.is_none_or(due) {
            tracing::warn!(
                attempts = failing.unlogged,
                reason,
                "device plugins connected and did not register"
            );
            (failing.logged, failing.unlogged) = (Some(now), 0);
        }
        let run = failing.run.as_ref();
        let run = run.filter(|run| now.duration_since(run.last) < GIVEN_UP);
        failing.run = Some(Run {
            first: run.map_or(now, |run| run.first),
            last: now,
            left,
            reason,
        });
    }

    fn lock(&self) -> MutexGuard<'_, Failing> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection to the registration socket.
#[derive(Debug)]
pub(super) struct Visitor {
    visitors: Arc<Visitors>,
    router: Router,
    registered: Arc<AtomicBool>,
}

impl Visitor {
    /// Receives a peer. `router` returns what answers its calls, and tells [`Attempt`] how each
    /// registration ends.
    pub(super) fn new(visitors: &Arc<Visitors>, router: impl FnOnce(Attempt) -> Router) -> Self {
        let registered = Arc::new(AtomicBool::default());
        let attempt = Attempt {
            visitors: Arc::clone(visitors),
            registered: Arc::clone(&registered),
        };
        Self {
            visitors: Arc::clone(visitors),
            router: router(attempt),
            registered,
        }
    }
}

/// Learns how the registrations of one connection end.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    visitors: Arc<Visitors>,
    registered: Arc<AtomicBool>,
}

impl Attempt {
    pub(super) fn ended(&self, how: Result<(), &str>) {
        self.registered.store(true, Ordering::Relaxed);
        match how {
            Ok(()) => self.visitors.succeed(),
            Err(reason) => {
                let visitors = &self.visitors;
                visitors.fail(Left::Refused, reason.to_owned(), Instant::now());
            }
        }
    }
}

impl wire::Visit for Visitor {
    fn router(&self) -> Router {
        self.router.clone()
    }

    async fn overdue(&self) {
        tokio::time::sleep(PATIENCE).await;
        if self.registered.load(Ordering::Relaxed) {
            std::future::pending().await
        }
    }

    fn ended(self, how: io::Result<()>) {
        if self.registered.load(Ordering::Relaxed) {
            return;
        }
        let reason = match how {
            Ok(()) => "the connection ended without a call of Register".to_owned(),
            Err(error) => innermost(&error),
        };
        self.visitors
            .fail(Left::Unregistered, reason, Instant::now());
    }
}

/// Looks for device plugins that serve on a socket and have not registered with this program: any
/// plugin in its own directory, and NVIDIA's in the kubelet's.
pub(super) async fn unregistered(kubelet: &Path, vendor: &Path) -> Option<String> {
    let foreign = |name: &str| name != KUBELET && !name.starts_with(PREFIX);
    if let Some(socket) = answering(vendor, foreign).await {
        let socket = socket.display();
        return Some(format!(
            "{socket} answers, and its device plugin has not registered"
        ));
    }
    let nvidia = |name: &str| name.starts_with("nvidia");
    let socket = answering(kubelet, nvidia).await?;
    Some(format!(
        "{} answers: NVIDIA's device plugin registers with the kubelet itself, so change the directory of its DaemonSet",
        socket.display()
    ))
}

/// Returns the first socket of a directory that somebody listens on, also if nobody accepts.
async fn answering(directory: &Path, wanted: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).ok()?.flatten();
    let mut sockets: Vec<_> = entries
        .filter(|entry| wanted(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .collect();
    sockets.sort();
    for socket in sockets {
        let listens = match timeout(ANSWER, UnixStream::connect(&socket)).await {
            Ok(Ok(_)) | Err(_) => true,
            Ok(Err(error)) => error.kind() == io::ErrorKind::WouldBlock,
        };
        if listens {
            return Some(socket);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_unready_while_peers_fail_for_a_minute_and_have_not_given_up() {
        let visitors = Visitors::default();
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let fail = |seconds| visitors.fail(Left::Unregistered, "because".to_owned(), at(seconds));
        let obstacle = |seconds| visitors.obstacle(at(seconds), false);
        assert_eq!(obstacle(0), None);
        // One alone may be anybody.
        fail(0);
        assert_eq!(obstacle(100), None);
        fail(30);
        fail(61);
        let reason = "device plugins connect and fail to register: because";
        assert_eq!(obstacle(61).as_deref(), Some(reason));
        assert_eq!(visitors.obstacle(at(61), true), None);
        assert_eq!(obstacle(61 + 151), None);
        visitors.fail(Left::Refused, "no".to_owned(), at(90));
        assert!(visitors.obstacle(at(90), true).is_some());
        visitors.lock().succeeded = Some(at(91));
        assert_eq!(obstacle(92), None);
        // One plugin registers and another one does not, in each of their rounds.
        fail(120);
        assert_eq!(obstacle(121).as_deref(), Some(reason));
    }
}
