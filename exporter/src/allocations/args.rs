//! Flags of the allocations.

use std::path::{Path, PathBuf};

use clap::Args;

/// The kubelet's default socket.
const SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";

/// Flags of the allocations.
#[derive(Clone, Debug, Default, Args)]
pub struct AllocationArgs {
    /// The kubelet's pod-resources socket, to see which pods hold which GPUs; none disables it
    /// [default: /var/lib/kubelet/pod-resources/kubelet.sock if it exists]
    ///
    /// Mount its directory: a kubelet that restarts creates a new socket.
    #[arg(
        long,
        env = "NVLINK_EXPORTER_KUBELET_SOCKET",
        value_name = "PATH",
        value_parser = clap::value_parser!(Socket)
    )]
    pub kubelet_socket: Option<Socket>,

    /// Read the node's pods from the Kubernetes API (needs --node-name); implied by --publish
    ///
    /// Gives the webhook's pattern and the pods that have ended. With DRA, it also reads
    /// ResourceSlices and ResourceClaims.
    #[arg(long, env = "NVLINK_EXPORTER_KUBERNETES", requires = "node_name")]
    pub kubernetes: bool,
}

/// A value of `--kubelet-socket`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Socket {
    /// The kubelet is not called.
    Off,
    /// The socket must exist.
    At(PathBuf),
}

impl From<String> for Socket {
    fn from(text: String) -> Self {
        match text.trim() {
            "" | "none" => Self::Off,
            path => Self::At(path.into()),
        }
    }
}

impl AllocationArgs {
    /// Returns the socket, and whether it may be missing.
    pub(super) fn socket(&self) -> Option<(&Path, bool)> {
        match &self.kubelet_socket {
            None => Some((Path::new(SOCKET), true)),
            Some(Socket::Off) => None,
            Some(Socket::At(path)) => Some((path, false)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_a_path_or_off() {
        let args = |text: &str| AllocationArgs {
            kubelet_socket: Some(text.to_owned().into()),
            kubernetes: false,
        };
        assert_eq!(args("none").socket(), None);
        assert_eq!(args("").socket(), None);
        let at = Path::new("/run/k.sock");
        assert_eq!(args("/run/k.sock").socket(), Some((at, false)));
        let default = AllocationArgs::default();
        assert_eq!(default.socket(), Some((Path::new(SOCKET), true)));
    }
}
