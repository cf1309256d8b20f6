//! An API server that answers access reviews late, or whose clock is wrong. It forwards everything
//! else to the real one.

use std::{
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::{
        Arc,
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

/// A running slow API server. It ends when dropped.
#[derive(Debug)]
pub struct SlowApi {
    /// The kubeconfig file for it, with the administrator's rights.
    pub kubeconfig: PathBuf,
    state: Arc<Reviews>,
    _runtime: Runtime,
}

#[derive(Debug, Default)]
struct Reviews {
    /// Milliseconds.
    delay: AtomicU64,
    asked: AtomicUsize,
    /// How far the clock is ahead, seconds.
    ahead: AtomicI64,
}

impl SlowApi {
    /// Starts one in front of `control_plane`. It is not late yet.
    ///
    /// # Errors
    /// When it cannot listen, or cannot create a client.
    pub fn start(control_plane: &ControlPlane) -> Result<Self> {
        let runtime = Runtime::new()?;
        let client = runtime.block_on(control_plane.client())?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen")?;
        let address: SocketAddr = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let state = Arc::<Reviews>::default();
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

    /// Returns the number of access reviews that it received.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.state.asked.load(Ordering::Relaxed)
    }
}

async fn pass(
    State((reviews, client)): State<(Arc<Reviews>, kube::Client)>,
    request: Request,
) -> Response {
    if request.uri().path().ends_with("/subjectaccessreviews") {
        reviews.asked.fetch_add(1, Ordering::Relaxed);
        let delay = reviews.delay.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(delay)).await;
    }
    match forward(client, request).await {
        Ok(mut response) => {
            let ahead = reviews.ahead.load(Ordering::Relaxed);
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
