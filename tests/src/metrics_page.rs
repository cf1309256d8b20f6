//! A page of metrics whose text a test makes, for programs that are not this project's.

use std::time::{Duration, Instant};

use anyhow::Result;
use axum::{Router, routing::get};
use tokio::{net::TcpListener, runtime::Runtime};

/// A running page. It ends when dropped.
#[derive(Debug)]
pub struct MetricsPage {
    /// `127.0.0.1:PORT`.
    pub address: String,
    _server: Runtime,
}

impl MetricsPage {
    /// Serves what `text` makes of the time since the start, in Prometheus' text format, at `/metrics`.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start(
        text: impl Fn(Duration) -> String + Clone + Send + Sync + 'static,
    ) -> Result<Self> {
        let server = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let listener = server.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?.to_string();
        let begin = Instant::now();
        let page = get(async move || text(begin.elapsed()));
        let router = Router::new().route("/metrics", page);
        server.spawn(async move { axum::serve(listener, router).await });
        Ok(Self {
            address,
            _server: server,
        })
    }
}
