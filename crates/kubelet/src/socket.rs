//! gRPC on Unix sockets, as a client.

use std::{io, path::Path};

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Error};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens on the socket.
    #[error(transparent)]
    Socket(#[from] io::Error),
    /// Who listens does not speak HTTP/2.
    #[error(transparent)]
    Channel(Error),
}

/// Connects to a socket, once: whoever replaces the socket is another peer. A channel of tonic's own
/// `unix:` addresses connects again by itself, with whoever listens then, and hides the error of the
/// socket in one of its own.
///
/// # Errors
/// When nobody listens on it, or who listens does not speak HTTP/2.
pub async fn connect(socket: &Path) -> Result<Channel, ConnectError> {
    let mut stream = Some(UnixStream::connect(socket).await?);
    // The channel may request a second connection if the first one fails.
    let once = tower::service_fn(move |_: Uri| {
        let gone = || io::Error::from(io::ErrorKind::ConnectionReset);
        let stream = stream.take().map(TokioIo::new).ok_or_else(gone);
        async move { stream }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    let channel = endpoint.connect_with_connector(once).await;
    channel.map_err(ConnectError::Channel)
}

/// Returns the innermost cause of an error: the outer ones are "transport error".
#[must_use]
pub fn innermost(mut error: &dyn std::error::Error) -> String {
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
