//! An API server that answers late or wrongly, or whose clock is wrong. It forwards everything else
//! to the real one.

use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use k8s_openapi::jiff::{SignedDuration, fmt::rfc2822};
use tokio::runtime::Runtime;

use crate::{
    ControlPlane,
    kubeconfig::{self, Server, User},
    workdir,
};

/// The delay of late answers, longer than any client waits.
const LATE: Duration = Duration::from_secs(60);

/// A running faulty API server. It ends when dropped.
#[derive(Debug)]
pub struct FaultyApi {
    /// The kubeconfig file for it.
    pub kubeconfig: PathBuf,
    state: Arc<Faults>,
    _runtime: Runtime,
}

/// What it answers instead of the real one.
#[derive(Clone, Copy, Debug)]
pub struct Wrong {
    /// To which requests; `None` to all.
    pub method: Option<&'static str>,
    pub status: u16,
    pub body: &'static str,
}

#[derive(Debug, Default)]
struct Faults {
    /// The delay of access reviews, milliseconds.
    delay: AtomicU64,
    /// Access faults.
    asked: AtomicUsize,
    wrong: Mutex<Option<Wrong>>,
    /// Requests that were answered wrongly.
    wronged: AtomicUsize,
    /// How far the clock is ahead, seconds.
    ahead: AtomicI64,
}

impl FaultyApi {
    /// Starts one in front of `control_plane`, with the administrator's rights. It has no fault yet.
    ///
    /// # Errors
    /// When it cannot listen, or cannot create a client.
    pub fn start(control_plane: &ControlPlane) -> Result<Self> {
        Self::start_as(control_plane, control_plane.kubeconfig())
    }

    /// Does the same with the rights of another kubeconfig.
    ///
    /// # Errors
    /// As [`FaultyApi::start`].
    pub fn start_as(control_plane: &ControlPlane, kubeconfig: &Path) -> Result<Self> {
        let runtime = Runtime::new()?;
        let client = runtime.block_on(kubeconfig::client(kubeconfig))?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen")?;
        let address: SocketAddr = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let state = Arc::<Faults>::default();
        let router = Router::new()
            .fallback(pass)
            .with_state((Arc::clone(&state), client));
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(listener, router).await
        });
        let directory = workdir::fresh("slow-api")?;
        let kubeconfig = directory.join("kubeconfig");
        let server = Server {
            url: &format!("http://{address}"),
            authority: &control_plane.authority(),
            name: None,
        };
        let admin = User {
            token: "admin",
            ..User::default()
        };
        kubeconfig::write(&kubeconfig, &server, admin)?;
        Ok(Self {
            kubeconfig,
            state,
            _runtime: runtime,
        })
    }

    /// Sets whether it answers access reviews late from now on.
    pub fn set_late(&self, late: bool) {
        self.set_delay(if late { LATE } else { Duration::ZERO });
    }

    /// Sets by how much it delays the answers to access reviews from now on.
    pub fn set_delay(&self, delay: Duration) {
        let delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.state.delay.store(delay, Ordering::Relaxed);
    }

    /// Sets how many seconds its clock is ahead from now on, as far as answers show it.
    pub fn set_ahead(&self, seconds: i64) {
        self.state.ahead.store(seconds, Ordering::Relaxed);
    }

    /// Sets what it answers instead of the real one from now on, and counts these answers anew.
    pub fn set_wrong(&self, wrong: Option<Wrong>) {
        *self.state.wrong() = wrong;
        self.state.wronged.store(0, Ordering::Relaxed);
    }

    /// Returns the number of requests that were answered wrongly since the last [`Self::set_wrong`].
    #[must_use]
    pub fn wronged(&self) -> usize {
        self.state.wronged.load(Ordering::Relaxed)
    }

    /// Returns the number of access reviews that it received.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.state.asked.load(Ordering::Relaxed)
    }
}

impl Faults {
    fn wrong(&self) -> MutexGuard<'_, Option<Wrong>> {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the wrong answer to a request, if it gets one.
    fn answer(&self, request: &Request) -> Option<Response> {
        let wrong = (*self.wrong())?;
        if wrong
            .method
            .is_some_and(|method| request.method() != method)
        {
            return None;
        }
        self.wronged.fetch_add(1, Ordering::Relaxed);
        let status = StatusCode::from_u16(wrong.status).ok()?;
        Some((status, wrong.body).into_response())
    }
}

async fn pass(
    State((faults, client)): State<(Arc<Faults>, kube::Client)>,
    request: Request,
) -> Response {
    if request.uri().path().ends_with("/subjectaccessreviews") {
        faults.asked.fetch_add(1, Ordering::Relaxed);
        let delay = faults.delay.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(delay)).await;
    }
    if let Some(wrong) = faults.answer(&request) {
        return wrong;
    }
    match forward(client, request).await {
        Ok(mut response) => {
            let ahead = faults.ahead.load(Ordering::Relaxed);
            if let Some(date) = response.headers_mut().get_mut(header::DATE)
                && ahead != 0
                && let Some(other) = shifted(date, ahead)
            {
                *date = other;
            }
            response
        }
        Err(error) => (StatusCode::BAD_GATEWAY, format!("{error:#}")).into_response(),
    }
}

/// Returns the time of a header, moved by so many seconds.
fn shifted(date: &HeaderValue, seconds: i64) -> Option<HeaderValue> {
    let time = rfc2822::parse(date.to_str().ok()?).ok()?.timestamp();
    let time = time.checked_add(SignedDuration::from_secs(seconds)).ok()?;
    let text = rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&time);
    text.ok()?.parse().ok()
}

async fn forward(client: kube::Client, request: Request) -> Result<Response> {
    let (mut head, body) = request.into_parts();
    // The client sets its own.
    head.headers.remove(header::AUTHORIZATION);
    head.headers.remove(header::HOST);
    let body = to_bytes(body, usize::MAX).await?;
    let request = axum::http::Request::from_parts(head, kube::client::Body::from(body));
    let response = client.send(request).await?;
    Ok(response.map(Body::new))
}
