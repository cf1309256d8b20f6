//! The client of the Kubernetes API. Every request ends: kube itself waits
//! forever for a response on a frozen connection.
//!
//! For an ordinary request, one limit covers all of it: connection, retries
//! and response. For a watch, the same limit covers the time until the response
//! begins. After that a watch is silent while nothing changes, so its reader
//! must limit the silence ([`watch::events`](crate::watch::events) does).
//!
//! A request that the API server answers with 429, 503 or 504 is repeated until that limit.

use std::{
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, DynBody},
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::{task::spawn_blocking, time::timeout};
use tower::{BoxError, Service, buffer::BufferLayer, layer::layer_fn, retry::RetryLayer};

mod tries;

use tries::{Last, Noting};

/// Requests that wait for their turn to be sent, as many as in kube's own client.
const WAITING: usize = 1024;

/// How long the client waits for the API server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For a connection, TLS handshake included.
    pub connect: Duration,
    /// For a whole request. The API server itself ends most requests after a minute.
    pub request: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            request: Duration::from_secs(30),
        }
    }
}

/// Returns a client from the kubeconfig or from the pod's service account.
///
/// The future may be dropped at any moment: what can block (files, and programs
/// that kubeconfigs name) runs on a separate thread. End the runtime with
/// `shutdown_background`; otherwise it waits for that thread.
///
/// # Errors
/// When there is neither.
pub async fn connect(limits: Limits) -> kube::Result<Client> {
    let runtime = tokio::runtime::Handle::current();
    let inferred = spawn_blocking(move || {
        let config = runtime.block_on(Config::infer());
        with(config.map_err(kube::Error::InferConfig)?, limits)
    });
    inferred
        .await
        .unwrap_or_else(|error| Err(kube::Error::Service(error.into())))
}

/// The cluster that a person means, as kubectl's flags `--kubeconfig`, `--context`, `--as` and
/// `--as-group` say it.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// The kubeconfig; `None`: that of kubectl, or the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// The context; `None`: the current one of the kubeconfig.
    pub context: Option<String>,
    /// The user whose rights apply; `None`: that of the kubeconfig.
    pub user: Option<String>,
    /// The groups of that user.
    pub groups: Vec<String>,
}

/// Returns a client for the cluster of `choice`, as [`connect`] does.
///
/// # Errors
/// When there is no such kubeconfig or context.
pub async fn connect_to(choice: Choice, limits: Limits) -> kube::Result<Client> {
    let runtime = tokio::runtime::Handle::current();
    let chosen = spawn_blocking(move || {
        let mut config = runtime.block_on(config(choice.kubeconfig, choice.context))?;
        if choice.user.is_some() {
            config.auth_info.impersonate = choice.user;
            config.auth_info.impersonate_groups = Some(choice.groups);
        }
        with(config, limits)
    });
    chosen
        .await
        .unwrap_or_else(|error| Err(kube::Error::Service(error.into())))
}

async fn config(kubeconfig: Option<PathBuf>, context: Option<String>) -> kube::Result<Config> {
    let options = KubeConfigOptions {
        context,
        ..KubeConfigOptions::default()
    };
    let config = match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path);
            let read = read.map_err(|error| kube::Error::Service(error.into()))?;
            Config::from_custom_kubeconfig(read, &options).await
        }
        None if options.context.is_some() => Config::from_kubeconfig(&options).await,
        None => return Config::infer().await.map_err(kube::Error::InferConfig),
    };
    config.map_err(|error| kube::Error::Service(error.into()))
}

/// Returns a client with `config`, with its limits replaced by `limits`.
///
/// # Errors
/// When the certificates or the credentials of `config` cannot be used.
pub fn with(mut config: Config, limits: Limits) -> kube::Result<Client> {
    config.connect_timeout = Some(limits.connect);
    config.default_retry = false; // [`Noting`] does it
    let server: Arc<str> = config.cluster_url.to_string().trim_end_matches('/').into();
    let layer = layer_fn(|inner| Limited {
        inner,
        server: Arc::clone(&server),
        limit: limits.request,
    });
    let client = ClientBuilder::try_from(config)?
        .with_layer(&BufferLayer::new(WAITING)) // can be cloned, which a repetition needs
        .with_layer(&RetryLayer::new(Noting::default()))
        .with_layer(&layer);
    Ok(client.build())
}

/// Returns what went wrong, for people: the API server's message, or else why
/// the request failed, with all causes.
#[must_use]
pub fn reason(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        // Nothing of Kubernetes is in the answer: kube then says that it cannot parse it.
        kube::Error::Api(status) => format!("the API server answers {}", status.code),
        kube::Error::SerdeError(error) => format!(
            "something other than the API server answered, or its answer was cut off: {error}"
        ),
        kube::Error::Service(error) => causes(&**error),
        // The user can fix a kubeconfig, so the message starts there.
        kube::Error::InferConfig(error) => {
            let why = std::error::Error::source(error).map(|why| format!(" ({why})"));
            let why = why.unwrap_or_default();
            format!(
                "not in a pod with a service account, and no kubeconfig to use{why}; set KUBECONFIG to the path of one"
            )
        }
        error => causes(error),
    }
}

/// Returns the error and its causes, without those whose text the message already contains.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    text
}

/// Names the server that did not answer, which no error of kube or hyper does.
#[derive(Debug, thiserror::Error)]
#[error("{server}: {error}")]
struct Unanswered {
    server: Arc<str>,
    #[source]
    error: BoxError,
}

/// Ends requests that take too long, and adds the server's address to errors.
struct Limited<S> {
    inner: S,
    server: Arc<str>,
    limit: Duration,
}

impl<S> Service<Request<Body>> for Limited<S>
where
    S: Service<Request<Body>, Response = Response<Box<DynBody>>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<Box<DynBody>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let last = Last::of(&mut request);
        let (watch, limit, server) = (is_watch(&request), self.limit, Arc::clone(&self.server));
        let answer = self.inner.call(request);
        let whole = async move {
            let (head, body) = answer.await?.into_parts();
            if watch {
                return Ok(Response::from_parts(head, body));
            }
            let body = Full::new(body.collect().await?.to_bytes());
            let body: Box<DynBody> = Box::new(body.map_err(|never| match never {}));
            Ok(Response::from_parts(head, body))
        };
        Box::pin(async move {
            let late = || format!("the API server did not answer within {limit:?}").into();
            let answer = match timeout(limit, whole).await {
                Ok(answer) => answer,
                Err(_) => last.answer(limit).ok_or_else(late),
            };
            answer.map_err(|error| Unanswered { server, error }.into())
        })
    }
}

/// Reports whether the request is a watch, whose response has no end.
fn is_watch(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|pair| pair == "watch=true")
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use k8s_openapi::api::core::v1::Node;
    use kube::Api;

    use super::*;

    /// Returns the reason that a request to an API server at `url` fails with.
    async fn asked(url: &str) -> String {
        crate::tls::install_provider();
        let config = Config::new(url.parse().unwrap());
        let limits = Limits {
            connect: Duration::from_secs(10),
            request: Duration::from_millis(500),
        };
        let nodes = Api::<Node>::all(with(config, limits).unwrap());
        reason(&nodes.get("n").await.unwrap_err())
    }

    #[tokio::test]
    async fn errors_name_the_server_and_the_cause() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let url = |scheme: &str| format!("{scheme}://{address}");
        let silent = asked(&url("http")).await;
        let expected = format!("http://{address}: the API server did not answer within 500ms");
        assert_eq!(silent, expected);
        let answering = std::thread::spawn(move || {
            // The first connection is the one that timed out above.
            for _ in 0..2 {
                let (mut socket, _) = listener.accept().unwrap();
                let _ = socket.read(&mut [0; 4096]);
                let _ = socket.write_all(b"no TLS at all");
            }
        });
        let no_tls = asked(&url("https")).await;
        assert!(
            no_tls.starts_with(&format!("https://{address}: ")),
            "{no_tls}"
        );
        assert!(no_tls.contains("InvalidContentType"), "{no_tls}");
        answering.join().unwrap();
        let refused = asked(&url("http")).await;
        assert!(
            refused.starts_with(&format!("http://{address}: ")),
            "{refused}"
        );
        assert!(refused.contains("Connection refused"), "{refused}");
    }
}
