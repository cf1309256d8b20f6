//! Flags of the allocations.

use std::path::{Path, PathBuf};

use clap::Args;

/// Where the kubelet listens unless it was told otherwise.
const SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";

/// Flags of the allocations.
#[derive(Clone, Debug, Default, Args)]
pub struct AllocationArgs {
    /// Socket on which the kubelet says which pods hold which GPUs; none switches it off
    /// [default: /var/lib/kubelet/pod-resources/kubelet.sock where there is one]
    ///
    /// Mount its directory, not the socket: a kubelet that restarts makes a new one.
    #[arg(
        long,
        env = "NVLINK_EXPORTER_KUBELET_SOCKET",
        value_name = "PATH",
        value_parser = clap::value_parser!(Socket)
    )]
    pub kubelet_socket: Option<Socket>,

    /// Read the pods and ResourceSlices of this node from the Kubernetes API (needs --node-name);
    /// --publish does so, too
    ///
    /// Pods: the pattern that the webhook decided on, and which of them have ended. ResourceSlices:
    /// which GPUs the device names of DRA are.
    #[arg(long, env = "NVLINK_EXPORTER_KUBERNETES", requires = "node_name")]
    pub kubernetes: bool,
}

/// A value of `--kubelet-socket`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Socket {
    /// The kubelet is not asked.
    Off,
    /// It must be there.
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
    /// The socket to ask, and whether it may be missing.
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
