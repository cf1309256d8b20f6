//! Calls the kubelet for the devices of each container.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use http::uri::PathAndQuery;
use tokio::time::timeout;
use tonic::{Request, Status, client::Grpc};
use tonic_prost::ProstCodec;

use crate::{
    podresources::{LIST, ListPodResourcesRequest, ListPodResourcesResponse},
    socket::{ConnectError, connect, innermost},
};

/// The deadline of a call. The kubelet answers from memory: if it takes longer, it hangs.
const DEADLINE: Duration = Duration::from_secs(3);
/// The largest accepted answer, in bytes. 250 pods with a claim of 100 devices each are
/// 5 MB.
const MOST_BYTES: usize = 16 << 20;

/// Why there is no answer from the kubelet.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    #[error("cannot connect to the kubelet at {socket}: {error}{advice}", advice = advice(error))]
    Connect { socket: String, error: io::Error },
    /// Another program listens there, or the kubelet is shutting down.
    #[error("the connection to the kubelet at {socket} failed: {reason}")]
    Broken { socket: String, reason: String },
    #[error("the kubelet at {socket} has not answered within {} s", DEADLINE.as_secs())]
    Slow { socket: String },
    /// It answered with an error, or with an invalid message.
    #[error("the kubelet at {socket} answered {}: {}", status.code(), status.message())]
    Refused { socket: String, status: Box<Status> },
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            " (mount its directory from the host, or use --kubelet-socket none)"
        }
        io::ErrorKind::PermissionDenied => " (the exporter must run as root to read it)",
        _ => "",
    }
}

/// The kubelet of this node.
#[derive(Debug)]
pub struct Kubelet {
    socket: PathBuf,
}

impl Kubelet {
    pub fn new(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
        }
    }

    pub fn is_there(&self) -> bool {
        self.socket.exists()
    }

    /// Returns the devices of each container. Each call uses a new connection: a
    /// kubelet that restarts replaces its socket.
    pub async fn list(&self) -> Result<ListPodResourcesResponse, KubeletError> {
        match timeout(DEADLINE, self.ask()).await {
            Ok(answer) => answer,
            Err(_) => Err(KubeletError::Slow {
                socket: self.name(),
            }),
        }
    }

    async fn ask(&self) -> Result<ListPodResourcesResponse, KubeletError> {
        let broken = |error: &dyn std::error::Error| KubeletError::Broken {
            socket: self.name(),
            reason: innermost(error),
        };
        let channel = connect(&self.socket).await.map_err(|error| match error {
            ConnectError::Socket(error) => KubeletError::Connect {
                socket: self.name(),
                error,
            },
            ConnectError::Channel(error) => broken(&error),
        })?;
        let mut kubelet = Grpc::new(channel).max_decoding_message_size(MOST_BYTES);
        kubelet.ready().await.map_err(|error| broken(&error))?;
        let codec = ProstCodec::<ListPodResourcesRequest, ListPodResourcesResponse>::default();
        let request = Request::new(ListPodResourcesRequest {});
        let answer = kubelet
            .unary(request, PathAndQuery::from_static(LIST), codec)
            .await;
        match answer {
            Ok(answer) => Ok(answer.into_inner()),
            Err(status) => Err(KubeletError::Refused {
                socket: self.name(),
                status: Box::new(status),
            }),
        }
    }

    fn name(&self) -> String {
        self.socket.display().to_string()
    }
}
