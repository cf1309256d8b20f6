//! Flags of the allocations.

use std::path::{Path, PathBuf};

use clap::Args;

/// The kubelet's default socket.
const SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";

/// Flags of the allocations.
#[derive(Clone, Debug, Default, Args)]
pub struct AllocationArgs {
    /// Socket on which the kubelet reports which pods hold which GPUs; none disables it
    /// [default: /var/lib/kubelet/pod-resources/kubelet.sock if it exists]
    ///
    /// Mount its directory, not the socket: a kubelet that restarts creates a new socket.
    #[arg(
        long,
        env = "NVLINK_EXPORTER_KUBELET_SOCKET",
        value_name = "PATH",
        value_parser = clap::value_parser!(Socket)
    )]
    pub kubelet_socket: Option<Socket>,

    /// Read the pods and ResourceSlices of this node from the Kubernetes API (needs --node-name);
    /// implied by --publish
    ///
    /// From pods: the pattern that the webhook chose, and which pods have ended. From
    /// ResourceSlices: the GPUs of DRA device names. From the ResourceClaims of the node's pods:
    /// which devices they only look at (admin access).
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
